package nodeimage

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/dra-lab/dra-lab/lab/internal/ui"
)

// keptLines bounds what is remembered of a command's output: enough to see
// why it failed, never a whole build log.
const keptLines = 40

// A commandError is a command that ran and failed. Its message is one line;
// Output has the last lines that the command wrote to stderr.
type commandError struct {
	Name   string
	Output string
	Err    error
}

func (e *commandError) Error() string {
	if last := lastLine(e.Output); last != "" {
		return fmt.Sprintf("%s: %v: %s", e.Name, e.Err, last)
	}
	return fmt.Sprintf("%s: %v", e.Name, e.Err)
}

func (e *commandError) Unwrap() error { return e.Err }

// run runs cmd to its end and hands every line of its stderr to onLine, which
// may be nil. Where cmd.Stdout is nil, stdout is returned.
//
// The command gets a process group of its own, so that a Ctrl-C meant for the
// lab does not reach it by itself and that cancelling ctx ends its children,
// too. ctx must be the one that cmd was made with.
func run(ctx context.Context, cmd *exec.Cmd, onLine func(string)) (string, error) {
	isolate(cmd)
	var out bytes.Buffer
	if cmd.Stdout == nil {
		cmd.Stdout = &out
	}
	tail := &lineWriter{onLine: onLine}
	cmd.Stderr = tail
	err := cmd.Run()
	tail.flush()
	if err == nil {
		return out.String(), nil
	}
	if ctx.Err() != nil {
		return out.String(), fmt.Errorf("run %s: %w", commandName(cmd), context.Cause(ctx))
	}
	failure := &commandError{Name: commandName(cmd), Output: tail.String(), Err: err}
	return out.String(), ui.WithDetail(failure, "end of the output of "+failure.Name, failure.Output)
}

// isolate makes cmd the leader of a process group that dies as a whole when
// the command's context ends.
func isolate(cmd *exec.Cmd) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Setpgid = true
	// Should the lab be killed, nobody waits for what it was building.
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	if cmd.Cancel != nil { // nil for commands without a context
		cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	}
	// Pipes that a stray grandchild holds open must not block us for ever.
	cmd.WaitDelay = 5 * time.Second
}

// commandName shortens a command to what tells it from others: "go build".
func commandName(cmd *exec.Cmd) string {
	name := cmd.Args[0]
	if i := strings.LastIndexByte(name, '/'); i >= 0 {
		name = name[i+1:]
	}
	for _, arg := range cmd.Args[1:] {
		if strings.HasPrefix(arg, "-") || strings.ContainsAny(arg, "/= ") {
			continue
		}
		return name + " " + arg
	}
	return name
}

// lineWriter splits what is written to it into lines and keeps the last ones.
type lineWriter struct {
	onLine func(string)

	mu      sync.Mutex
	partial []byte
	lines   []string
}

func (w *lineWriter) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.partial = append(w.partial, p...)
	for {
		// Progress bars return the carriage instead of feeding a line.
		i := bytes.IndexAny(w.partial, "\r\n")
		if i < 0 {
			return len(p), nil
		}
		w.line(string(w.partial[:i]))
		w.partial = w.partial[i+1:]
	}
}

func (w *lineWriter) line(text string) {
	text = strings.TrimRight(text, " \t")
	if text == "" {
		return
	}
	if len(w.lines) == keptLines {
		w.lines = append(w.lines[:0], w.lines[1:]...)
	}
	w.lines = append(w.lines, text)
	if w.onLine != nil {
		w.onLine(text)
	}
}

func (w *lineWriter) flush() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.line(string(w.partial))
	w.partial = nil
}

func (w *lineWriter) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return strings.Join(w.lines, "\n")
}

var _ io.Writer = (*lineWriter)(nil)

// lastLine returns the last line of text that is not empty.
func lastLine(text string) string {
	var last string
	scanner := bufio.NewScanner(strings.NewReader(text))
	for scanner.Scan() {
		if line := strings.TrimSpace(scanner.Text()); line != "" {
			last = line
		}
	}
	return last
}
