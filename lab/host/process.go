package host

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// daemon names a background process by its command line. Pid files are not
// trusted: they may be stale, half-written, or name a process that got the
// number since. The command line has a path in it that nobody else uses.
type daemon struct {
	program string // base name of argv[0]
	arg     string // an argument that only this process has
}

// find returns the running process, or nil.
//
// The handle is taken before the command line is read, so a signal sent
// through it reaches the process that was checked or none.
func (d daemon) find() (*os.Process, error) {
	found, err := findAll(func(argv []string) bool {
		return filepath.Base(argv[0]) == d.program && slices.Contains(argv[1:], d.arg)
	})
	if err != nil || len(found) == 0 {
		return nil, err
	}
	return found[0], nil
}

// running reports whether there is such a process.
func (d daemon) running() bool {
	process, err := d.find()
	return err == nil && process != nil
}

// endDaemon ends the daemon if it runs and returns when it is gone.
func endDaemon(ctx context.Context, d daemon) error {
	process, err := d.find()
	if err != nil || process == nil {
		return err
	}
	if err := end(ctx, process, 15*time.Second); err != nil {
		return fmt.Errorf("stop %s: %w", d.program, err)
	}
	return nil
}

// findAll returns the processes whose command line match accepts.
func findAll(match func(argv []string) bool) ([]*os.Process, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	var found []*os.Process
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		if argv := commandLine(pid); argv == nil || !match(argv) {
			continue
		}
		process, err := os.FindProcess(pid)
		if err != nil {
			continue
		}
		if argv := commandLine(pid); argv == nil || !match(argv) {
			_ = process.Release()
			continue // it ended, and the number is somebody else's now
		}
		found = append(found, process)
	}
	return found, nil
}

// commandLine returns the arguments of a process, nil if it is gone, a zombie
// or a kernel thread.
func commandLine(pid int) []string {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil || len(text) == 0 {
		return nil
	}
	return strings.Split(string(bytes.TrimRight(text, "\x00")), "\x00")
}

// alive reports whether the process still runs; a zombie does not.
func alive(p *os.Process) bool {
	return p.Signal(syscall.Signal(0)) == nil && commandLine(p.Pid) != nil
}

// end asks a process to end and kills it if it does not within grace. It
// returns when the process is gone.
func end(ctx context.Context, p *os.Process, grace time.Duration) error {
	if err := signal(p, syscall.SIGTERM); err != nil {
		return err
	}
	asked, cancel := context.WithTimeout(ctx, grace)
	defer cancel()
	gone := func(context.Context) error {
		if alive(p) {
			return errors.New("still running")
		}
		return nil
	}
	if poll(asked, gone) == nil {
		return nil
	}
	if err := signal(p, syscall.SIGKILL); err != nil {
		return err
	}
	killed, cancelKilled := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancelKilled()
	if err := poll(killed, gone); err != nil {
		return fmt.Errorf("kill process %d: %w", p.Pid, err)
	}
	return nil
}

func signal(p *os.Process, s syscall.Signal) error {
	if err := p.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("signal process %d: %w", p.Pid, err)
	}
	return nil
}

// final is an error after which poll gives up.
type final struct{ error }

// poll calls try until it returns nil or a final error, or ctx ends; then it
// says what try said last. It is for conditions of other processes that nobody
// announces.
func poll(ctx context.Context, try func(context.Context) error) error {
	ticker := time.NewTicker(50 * time.Millisecond)
	defer ticker.Stop()
	for {
		last := try(ctx)
		if last == nil {
			return nil
		}
		var end final
		if errors.As(last, &end) {
			return end.error
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w (last: %w)", context.Cause(ctx), last)
		case <-ticker.C:
		}
	}
}
