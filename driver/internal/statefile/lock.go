package statefile

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// lockPoll is how often a held lock is tried again. flock(2) cannot be
// interrupted by a context, so waiting is done in small steps.
const lockPoll = 2 * time.Millisecond

// Lock is an exclusive lock between processes and between goroutines: each
// Acquire is a holder of its own.
type Lock struct{ f *os.File }

// Acquire takes the lock on path, which it creates, and waits as long as ctx
// allows. The kernel lets go of the lock when the process dies.
func Acquire(ctx context.Context, path string) (*Lock, error) {
	for {
		l, err := tryAcquire(path)
		if err == nil || !errors.Is(err, unix.EWOULDBLOCK) {
			return l, err
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("lock %q: %w", path, context.Cause(ctx))
		case <-time.After(lockPoll):
		}
	}
}

// tryAcquire takes the lock if nobody has it, else gives EWOULDBLOCK.
func tryAcquire(path string) (*Lock, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock %q: %w", path, err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, errors.Join(fmt.Errorf("lock %q: %w", path, err), f.Close())
	}
	// Whoever had the lock may have removed the file meanwhile: then this is a
	// lock on nothing, and the next one to come would create another file.
	same, err := isStill(f, path)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("lock %q: %w", path, err), f.Close())
	}
	if !same {
		return nil, errors.Join(fmt.Errorf("lock %q: %w", path, unix.EWOULDBLOCK), f.Close())
	}
	return &Lock{f: f}, nil
}

func isStill(f *os.File, path string) (bool, error) {
	held, err := f.Stat()
	if err != nil {
		return false, err
	}
	named, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return os.SameFile(held, named), nil
}

// Release lets go of the lock and leaves the file.
func (l *Lock) Release() error { return l.f.Close() }

// ReleaseAndRemove lets go of the lock and removes the file, for locks of
// things that come and go.
func (l *Lock) ReleaseAndRemove() error {
	err := os.Remove(l.f.Name())
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return errors.Join(err, l.f.Close())
}
