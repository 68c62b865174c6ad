package timeline

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"

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

// AllKept loads the kept timelines, the newest first. One that cannot be read is
// left out: a run may be writing it, or an older lab has written it.
func AllKept() ([]Timeline, error) {
	dir, err := keptDir()
	if err != nil {
		return nil, err
	}
	paths, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil {
		return nil, fmt.Errorf("list timelines: %w", err)
	}
	var all []Timeline
	for _, path := range paths {
		// The last is one of the others, too.
		if filepath.Base(path) == Last+".json" && len(paths) > 1 {
			continue
		}
		if t, err := Load(path); err == nil {
			all = append(all, t)
		}
	}
	slices.SortStableFunc(all, func(a, b Timeline) int { return b.Origin.Compare(a.Origin) })
	return all, nil
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
