package devices

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/dra-lab/dra-lab/driver/api"
)

// Use makes the process a user of the granted simulated GPUs, each with the
// given memory, as creating a CUDA context does on real ones: on a GPU that its
// claim has made exclusive, only if no other process does. release ends the use;
// so does the process's end, however it comes, because the kernel drops the
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
		if err := c.fits(ref, process.Bytes); err != nil {
			return nil, errors.Join(fmt.Errorf("use %s: %w", ref.Name, err), release())
		}
		exclusive := c.env(api.ExclusiveEnvName(ref.Name)) == "true"
		u, err := register(c.processes(ref), uniqueName(process.Name), content, exclusive)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("use %s: %w", ref.Name, err), release())
		}
		held = append(held, u)
	}
	return release, nil
}

// ErrMemory marks the refusal of more memory than the claim has.
var ErrMemory = errors.New("out of memory")

// fits says whether the claim has as much memory of a GPU.
func (c Container) fits(ref api.DeviceRef, bytes uint64) error {
	limit := c.env(api.MemoryEnvName(ref.Name))
	if limit == "" {
		return nil
	}
	most, err := strconv.ParseUint(limit, 10, 64)
	if err != nil {
		return fmt.Errorf("read %s: %w", api.MemoryEnvName(ref.Name), err)
	}
	if bytes > most {
		return fmt.Errorf("%w: %d bytes wanted, the claim has %d", ErrMemory, bytes, most)
	}
	return nil
}

// ErrExclusive marks the refusal of a second process on an exclusive GPU.
var ErrExclusive = errors.New("the GPU is for one process at a time, and another one uses it")

// register makes a locked file under its final name, so that no reader sees it
// without its lock or its content.
func register(folder, name string, content []byte, exclusive bool) (_ *use, err error) {
	if exclusive {
		// Two that come together must not both find nobody there.
		dir, err := os.Open(folder)
		if err != nil {
			return nil, err
		}
		defer dir.Close()
		if err := unix.Flock(int(dir.Fd()), unix.LOCK_EX); err != nil {
			return nil, fmt.Errorf("lock %q: %w", folder, err)
		}
		if used, err := inUse(folder); err != nil || used {
			return nil, errors.Join(err, ErrExclusive)
		}
	}
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

// inUse says whether a process holds its file in a folder.
func inUse(folder string) (bool, error) {
	paths, err := filepath.Glob(filepath.Join(folder, "*.json"))
	if err != nil {
		return false, err
	}
	for _, path := range paths {
		f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
		if errors.Is(err, fs.ErrNotExist) {
			continue // it has just ended
		}
		if err != nil {
			return false, err
		}
		err = errors.Join(unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB), f.Close())
		if errors.Is(err, unix.EWOULDBLOCK) {
			return true, nil
		}
		if err != nil {
			return false, err
		}
	}
	return false, nil
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
