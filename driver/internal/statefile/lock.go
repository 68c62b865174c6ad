package statefile

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// lockPoll is how often a held lock is tried again. flock(2) cannot be
// interrupted by a context, so waiting is done in small steps.
const lockPoll = time.Millisecond

// Lock is an exclusive lock between processes and between goroutines: each
// Acquire is a holder of its own.
type Lock struct{ f *os.File }

// Acquire takes the lock on the file at path, which it creates and which must
// not be removed, and waits as long as ctx allows. The kernel lets go of the
// lock when the process dies.
func Acquire(ctx context.Context, path string) (*Lock, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock %q: %w", path, err)
	}
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return &Lock{f: f}, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			return nil, errors.Join(fmt.Errorf("lock %q: %w", path, err), f.Close())
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(fmt.Errorf("lock %q: %w", path, context.Cause(ctx)), f.Close())
		case <-time.After(lockPoll):
		}
	}
}

// Release lets go of the lock.
func (l *Lock) Release() error { return l.f.Close() }
