package host

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Engine is a container engine that the lab can use.
type Engine struct {
	Kind     string // "docker", "podman" or "nerdctl": the name of its command
	Host     string // address of its socket, such as unix:///run/docker.sock; "" where the command knows
	Private  bool   // the lab started it, and StopEngine stops it
	DataRoot string // directory with its images; "" where unknown

	// Restrictions is what the engine's privileged containers lack.
	Restrictions Restrictions
}

// Restrictions is what a host withholds and a cluster has to work around. The
// zero value is an ordinary host. Each true field is one restriction.
type Restrictions struct {
	CapSysResource bool `json:"capSysResource"` // CAP_SYS_RESOURCE is missing: nobody can raise limits or lower OOM scores
	CgroupV1       bool `json:"cgroupV1"`       // the control groups are version 1
	UserNamespace  bool `json:"userNamespace"`  // root in a container is an ordinary user of the host

	// Missing names all capabilities that even privileged containers of a
	// private engine lack, such as "CAP_SYS_RESOURCE".
	Missing []string `json:"missing,omitempty"`
}

// Env returns the environment variables that lead this program's children, and
// kind's library, to the engine.
func (e *Engine) Env() []string {
	env := []string{"KIND_EXPERIMENTAL_PROVIDER=" + e.Kind}
	// Where the socket is not a local one, more than its address may be
	// needed, and the command found it by itself.
	if e.Kind == "docker" && strings.HasPrefix(e.Host, "unix://") {
		env = append(env, "DOCKER_HOST="+e.Host)
	}
	return env
}

// Use sets Env for this process. Call it once, before anything else reads the
// environment.
func (e *Engine) Use() error {
	for _, entry := range e.Env() {
		name, value, _ := strings.Cut(entry, "=")
		if err := os.Setenv(name, value); err != nil {
			return fmt.Errorf("use engine %q: %w", e.Kind, err)
		}
	}
	return nil
}

// Command returns a call of the engine's command line. When ctx ends it is
// asked to end, and killed ten seconds later.
func (e *Engine) Command(ctx context.Context, args ...string) *exec.Cmd {
	program := findProgram(e.Kind)
	if program == "" {
		program = e.Kind // let the call say that it is missing
	}
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env = append(os.Environ(), e.Env()...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 10 * time.Second
	return cmd
}

// commandError is a call of an engine's command line that failed.
type commandError struct {
	args []string
	said string // on stderr, all of it
	err  error
}

func (e *commandError) Error() string {
	return fmt.Sprintf("%s: %s", strings.Join(e.args[:min(2, len(e.args))], " "), cmp.Or(gist(e.said), e.err.Error()))
}

func (e *commandError) Unwrap() error { return e.err }

// gist returns the last line that says something; engines like to close with
// where help is to be had.
func gist(said string) string {
	for _, line := range slices.Backward(strings.Split(said, "\n")) {
		line = strings.TrimSpace(line)
		if line != "" && !strings.HasPrefix(line, "See '") && !strings.HasPrefix(line, "Run '") {
			return line
		}
	}
	return ""
}

// output runs a command and returns its stdout. The error is a *commandError.
func output(cmd *exec.Cmd) (string, error) {
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		args := append([]string{filepath.Base(cmd.Path)}, cmd.Args[1:]...)
		return stdout.String(), &commandError{args: args, said: stderr.String(), err: err}
	}
	return stdout.String(), nil
}
