package timeline

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/dra-lab/dra-lab/lab/host"
)

// Last is the name under which the newest timeline is kept, whatever it is of.
const Last = "last"

// Kept returns the path at which the timeline called name, such as a scenario,
// is kept in the lab's state directory. It need not be there.
func Kept(name string) (string, error) {
	dir, err := keptDir()
	return filepath.Join(dir, name+".json"), err
}

// RemoveKept removes the kept timelines of all labs. None is no error.
func RemoveKept() error {
	dir, err := keptDir()
	if err == nil {
		err = os.RemoveAll(dir)
	}
	if err != nil {
		return fmt.Errorf("remove timelines: %w", err)
	}
	_ = os.Remove(filepath.Dir(dir)) // fails unless it is empty
	return nil
}

func keptDir() (string, error) {
	state, err := host.StateDir()
	return filepath.Join(state, "timelines"), err
}
