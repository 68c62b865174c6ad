package devices

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/dra-lab/dra-lab/driver/api"
)

// Use makes the process a user of the granted simulated GPUs, each with the
// given memory, as creating a CUDA context does on real ones. release ends the
// use; so does the process's end, however it comes, because the kernel drops the
// locks. For real GPUs it does nothing.
func (c Container) Use(g Granted, process api.Process) (release func() error, err error) {
	var held []*use
	release = func() error {
		var errs []error
		for _, u := range held {
			errs = append(errs, u.end())
		}
		return errors.Join(errs...)
	}
	if !g.Simulated {
		return release, nil
	}
	content, err := process.Encode()
	if err != nil {
		return nil, fmt.Errorf("use GPU: %w", err)
	}
	for _, ref := range g.Devices {
		u, err := register(c.processes(ref), uniqueName(process.Name), content)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("use %s: %w", ref.Name, err), release())
		}
		held = append(held, u)
	}
	return release, nil
}

// register makes a locked file under its final name, so that no reader sees it
// without its lock or its content.
func register(folder, name string, content []byte) (_ *use, err error) {
	// The hidden name has no extension .json: readers pass over it.
	temporary := filepath.Join(folder, "."+name+".new")
	f, err := os.OpenFile(temporary, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.Close(), os.Remove(temporary))
		}
	}()
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, fmt.Errorf("lock %q: %w", temporary, err)
	}
	if _, err := f.Write(content); err != nil {
		return nil, err
	}
	final := filepath.Join(folder, name)
	if err := os.Rename(temporary, final); err != nil {
		return nil, err
	}
	return &use{file: f, path: final}, nil
}

// use is a process's lock on a GPU.
type use struct {
	file *os.File
	path string
}

// end removes the file while it is still locked: nobody finds it there as that
// of a dead process.
func (u *use) end() error {
	err := os.Remove(u.path)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return errors.Join(err, u.file.Close())
}

// uniqueName keeps a Pod's replacement, which has the same host name, from
// writing to the file of a predecessor that still runs.
func uniqueName(process string) string {
	return process + "." + strings.ToLower(rand.Text()[:8]) + ".json"
}
