package host

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dra-lab/dra-lab/lab/internal/ui"
)

// ErrLocked says that another process holds a lock; the error around it names
// the process.
var ErrLocked = errors.New("in use by another process")

// lockGrace is how long Lock waits for a holder that is about to end, such as
// an interrupted one that tidies up.
const lockGrace = 3 * time.Second

// Lock takes the lock with this name, such as a cluster's, in StateDir. If
// another process has it, Lock waits a moment and then fails with ErrLocked,
// naming the holder. The kernel frees the lock when its holder ends, however it
// ends. Call unlock once.
func Lock(ctx context.Context, name string, u *ui.UI) (unlock func(), err error) {
	state, err := StateDir()
	if err != nil {
		return nil, err
	}
	release, err := LockIn(ctx, filepath.Join(state, "locks"), name, u)
	if err != nil && ui.Hint(err) == "" && context.Cause(ctx) == nil {
		err = ui.WithHint(err, "see to it that %s can be written, or set %s to another directory", state, StateEnv)
	}
	if err != nil {
		return nil, err
	}
	return func() {
		release()
		_ = os.Remove(state) // fails unless nothing is left in it
	}, nil
}

// LockIn is Lock for what has a directory of its own, which may have another
// owner than StateDir: the lock lies in dir and is called name there.
func LockIn(ctx context.Context, dir, name string, u *ui.UI) (unlock func(), err error) {
	if name == "" || name != filepath.Base(name) || strings.HasPrefix(name, ".") {
		return nil, fmt.Errorf("lock %q: not a name", name)
	}
	return fileLock{path: filepath.Join(dir, name+".lock"), what: name, wait: lockGrace}.lock(ctx, u)
}

// lock keeps others from starting or stopping the same private engine. It
// waits: neither takes long.
func (p privateEngine) lock(ctx context.Context, u *ui.UI) (func(), error) {
	return fileLock{
		path: p.run + ".lock",
		what: "private engine",
		wait: 15 * time.Minute, // apt-get may be at work
	}.lock(ctx, u)
}

// fileLock is a lock that is a file.
type fileLock struct {
	path string
	what string // what it locks, for messages
	wait time.Duration
}

// holder is what a lock file says about who has it.
type holder struct {
	PID   int       `json:"pid"`
	Since time.Time `json:"since"`
	Verb  string    `json:"verb"`
}

func (h holder) String() string {
	if h.PID == 0 {
		return "another process"
	}
	return fmt.Sprintf("%q (pid %d, since %s)", h.Verb, h.PID, h.Since.Format(time.TimeOnly))
}

func (l fileLock) lock(ctx context.Context, u *ui.UI) (func(), error) {
	f, err := l.try()
	if errors.Is(err, ErrLocked) {
		f, err = l.waitFor(ctx, u)
	}
	if err != nil {
		return nil, err
	}
	// It is held all the same, and a full disk must not keep anybody from
	// removing what fills it.
	if err := l.sign(f); err != nil {
		u.Debug("%v", err)
	}
	return func() {
		// Gone while still held, so that nothing stays behind; try sees to it
		// that nobody takes a lock on a file that has gone.
		_ = os.Remove(l.path)
		_ = os.Remove(filepath.Dir(l.path)) // fails unless it was the last there
		_ = f.Close()
	}, nil
}

func (l fileLock) waitFor(ctx context.Context, u *ui.UI) (f *os.File, err error) {
	step := u.Step("waiting for %s", l.holder())
	defer func() { step.Done(err) }()
	wait, cancel := context.WithTimeout(ctx, l.wait)
	defer cancel()
	err = poll(wait, func(context.Context) error {
		f, err = l.try()
		if err != nil && !errors.Is(err, ErrLocked) {
			return final{err}
		}
		return err
	})
	if errors.Is(err, ErrLocked) {
		if cause := context.Cause(ctx); cause != nil {
			return nil, fmt.Errorf("lock %s: %w", l.what, cause)
		}
		by := l.holder()
		err = fmt.Errorf("lock %s: %w: %s", l.what, ErrLocked, by)
		if by.PID == 0 {
			return nil, ui.WithHint(err, "wait until it is done and run this again")
		}
		return nil, ui.WithHint(err, "wait until it is done, or end it with \"kill %d\" and run this again", by.PID)
	}
	return f, err
}

// try takes the lock or fails at once.
func (l fileLock) try() (*os.File, error) {
	f, err := l.open()
	if err != nil {
		return nil, fmt.Errorf("lock %s: %w", l.what, err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, ErrLocked
		}
		return nil, fmt.Errorf("lock %s: %w", l.what, err)
	}
	// Between opening and locking, the last holder may have removed the
	// file: then this is a lock that nobody else will ever see.
	mine, err := f.Stat()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", l.what, err), f.Close())
	}
	there, err := os.Stat(l.path)
	if err != nil || !os.SameFile(mine, there) {
		_ = f.Close()
		return nil, ErrLocked
	}
	return f, nil
}

// open opens the file, and makes it and its directory if need be. Another
// holder may remove the directory at any moment; then it is made again.
func (l fileLock) open() (f *os.File, err error) {
	for range 1000 {
		if err = os.MkdirAll(filepath.Dir(l.path), 0o755); err == nil {
			f, err = os.OpenFile(l.path, os.O_CREATE|os.O_RDWR, 0o644)
		}
		if !errors.Is(err, os.ErrNotExist) && !errors.Is(err, os.ErrExist) {
			break
		}
	}
	return f, err
}

// sign writes into the lock file who has it.
func (l fileLock) sign(f *os.File) error {
	verb := filepath.Base(os.Args[0])
	for _, arg := range os.Args[1:] {
		if strings.HasPrefix(arg, "-") {
			break // flags may be long, and the verb says enough
		}
		verb += " " + arg
	}
	text, err := json.Marshal(holder{PID: os.Getpid(), Since: time.Now(), Verb: verb})
	if err != nil {
		return fmt.Errorf("sign lock %s: %w", l.what, err)
	}
	if err := f.Truncate(0); err != nil {
		return fmt.Errorf("sign lock %s: %w", l.what, err)
	}
	if _, err := f.WriteAt(text, 0); err != nil {
		return fmt.Errorf("sign lock %s: %w", l.what, err)
	}
	return nil
}

func (l fileLock) holder() holder {
	var h holder
	f, err := os.Open(l.path)
	if err != nil {
		return h
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, 4<<10))
	if err != nil || json.Unmarshal(text, &h) != nil {
		return holder{}
	}
	return h
}
