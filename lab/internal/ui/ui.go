package ui

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/term"
)

const (
	prefix = "lab: "
	// A step that is done sooner shows no time: it would be noise.
	slowStep = 2 * time.Second
	// How often a log gets a sign of life from a step that goes on.
	plainInterval = 10 * time.Second
	// How often the live line of a terminal is drawn.
	liveInterval = 100 * time.Millisecond
	// An error's details are cut to their last lines; the error names the
	// file that has all of them.
	maxDetailLines = 40
)

// UI is the user's side of a command. All methods are safe for concurrent use.
type UI struct {
	verbosity int
	width     func() int // columns of the terminal; nil: stderr is no terminal
	outShared bool       // stdout shows up on the same terminal

	mu      sync.Mutex
	stdout  io.Writer
	stderr  io.Writer
	active  []*Step // unfinished, the one that moved last at the end
	ticking bool
	drawn   bool // the live line is on the screen
	midLine bool // what was written last did not end a line
	frame   int
}

// New returns a UI that writes results to stdout and progress to stderr.
// Verbosity 0 is normal, 1 and above also shows Debug lines. The live line is
// used where stderr is a terminal that is not dumb. New starts nothing.
func New(stdout, stderr io.Writer, verbosity int) *UI {
	u := &UI{stdout: stdout, stderr: stderr, verbosity: verbosity}
	if f, ok := stderr.(*os.File); ok && term.IsTerminal(int(f.Fd())) && os.Getenv("TERM") != "dumb" {
		u.width = func() int {
			columns, _, err := term.GetSize(int(f.Fd()))
			if err != nil || columns <= 0 {
				return 80
			}
			return columns
		}
		if out, ok := stdout.(*os.File); ok {
			u.outShared = term.IsTerminal(int(out.Fd()))
		}
	}
	return u
}

// Verbosity is what New was given.
func (u *UI) Verbosity() int { return u.verbosity }

// Out returns stdout, for results. Writes do not mix with the live line.
func (u *UI) Out() io.Writer { return &stream{ui: u, w: u.stdout, shared: u.outShared} }

// Err returns stderr for text that comes as it is, such as another program's
// messages. Writes do not mix with the live line.
func (u *UI) Err() io.Writer { return &stream{ui: u, w: u.stderr, shared: true} }

// Info says something the user may want to know.
func (u *UI) Info(format string, a ...any) { u.line(prefix + fmt.Sprintf(format, a...)) }

// Warn says that something is not as it should be and that the lab goes on.
func (u *UI) Warn(format string, a ...any) { u.line(prefix + "warning: " + fmt.Sprintf(format, a...)) }

// Debug says something that only -v shows.
func (u *UI) Debug(format string, a ...any) {
	if u.verbosity > 0 {
		u.line(prefix + fmt.Sprintf(format, a...))
	}
}

// Fail prints err and its hint and returns the exit status: 0 for nil, which
// prints nothing, 2 for a usage error, else 1. The error takes one line,
// however many lines its message has; attached details come before it. Of an
// error marked with Told it prints nothing, unless another is joined with it.
func (u *UI) Fail(err error) int {
	if err == nil {
		return StatusDone
	}
	if allTold(err) {
		return Status(err)
	}
	for _, d := range details(err) {
		u.line(prefix + d.title + ":")
		for _, l := range lastLines(d.text, maxDetailLines) {
			u.line(prefix + "  | " + l)
		}
	}
	u.line(prefix + "error: " + oneLine(err.Error()))
	for l := range strings.SplitSeq(Hint(err), "\n") {
		if l = strings.TrimSpace(l); l != "" {
			u.line(prefix + "hint: " + l)
		}
	}
	return Status(err)
}

// oneLine joins the lines of text, as errors.Join makes them, with semicolons.
func oneLine(text string) string {
	var parts []string
	for l := range strings.SplitSeq(text, "\n") {
		if l = strings.TrimSpace(l); l != "" {
			parts = append(parts, l)
		}
	}
	return strings.Join(parts, "; ")
}

func lastLines(text string, limit int) []string {
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	if len(lines) > limit {
		lines = append([]string{"..."}, lines[len(lines)-limit:]...)
	}
	return lines
}

// line writes one whole line to stderr.
func (u *UI) line(text string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.lineLocked(text)
}

func (u *UI) lineLocked(text string) {
	u.clearLocked()
	if u.midLine {
		text = "\n" + text
		u.midLine = false
	}
	// The user's terminal being gone is no reason to stop the work.
	_, _ = io.WriteString(u.stderr, text+"\n")
}

// stream is an output that keeps clear of the live line.
type stream struct {
	ui     *UI
	w      io.Writer
	shared bool // appears where the live line is
}

func (s *stream) Write(p []byte) (int, error) {
	s.ui.mu.Lock()
	defer s.ui.mu.Unlock()
	if s.shared && len(p) > 0 {
		s.ui.clearLocked()
		s.ui.midLine = p[len(p)-1] != '\n'
	}
	return s.w.Write(p)
}
