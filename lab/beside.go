package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/dra-lab/dra-lab/lab/internal/ui"
)

// stopTime is how long a program that is interrupted gets to tidy up.
const stopTime = 2 * time.Minute

// beside finds a program that was built together with this one.
func beside(name string) (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("find the lab's programs: %w", err)
	}
	path := filepath.Join(filepath.Dir(self), name)
	if _, err := os.Stat(path); err != nil {
		return "", ui.WithHint(fmt.Errorf("find %s: %w", name, err), "make build")
	}
	return path, nil
}

// runBeside runs a program that was built together with this one, with env added
// to the environment. What it writes goes to stdout, or to where the user sees
// it. When ctx ends, the program is interrupted, and the error is why; when the
// program says that its arguments are wrong, it has told the user.
func runBeside(ctx context.Context, name string, env []string, stdout io.Writer, args ...string) error {
	path, err := beside(name)
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Env = append(os.Environ(), env...)
	cmd.Stdout, cmd.Stderr = stdout, os.Stderr
	// Ctrl-C reaches this process only, which passes it on: once.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = stopTime
	err = cmd.Run()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) && exit.ExitCode() == ui.StatusUsage {
		return ui.Told(err, ui.StatusUsage)
	}
	return err
}
