package ui

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// Step is a piece of work that the user is waiting for. Its methods are safe
// for concurrent use.
type Step struct {
	ui    *UI
	name  string
	start time.Time

	// Guarded by ui.mu.
	detail string
	spoke  time.Time // when a plain line last said that it goes on
	done   bool
}

// Step begins a step. The name completes the sentence "the lab is ...":
// "starting cluster \"dra\"". The caller must call Done once.
func (u *UI) Step(format string, a ...any) *Step {
	now := time.Now()
	s := &Step{ui: u, name: fmt.Sprintf(format, a...), start: now, spoke: now}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.active = append(u.active, s)
	if u.width == nil {
		u.lineLocked(prefix + "• " + s.name + " ...")
	}
	if !u.ticking {
		u.ticking = true
		go u.tick()
	}
	return s
}

// Update says what the step is at, such as "compiling k8s.io/api". Only the
// last detail is ever shown, so it may be called as often as it changes.
func (s *Step) Update(detail string) {
	s.ui.mu.Lock()
	defer s.ui.mu.Unlock()
	if s.done {
		return
	}
	s.detail = oneLine(detail)
	if i := slices.Index(s.ui.active, s); i >= 0 {
		s.ui.active = append(slices.Delete(s.ui.active, i, i+1), s)
	}
}

// Done ends the step: well if err is nil. It does not print err, which is
// for the caller to return. A second call does nothing.
func (s *Step) Done(err error) {
	u := s.ui
	u.mu.Lock()
	defer u.mu.Unlock()
	if s.done {
		return
	}
	s.done = true
	u.active = slices.DeleteFunc(u.active, func(other *Step) bool { return other == s })
	mark := "✓"
	if err != nil {
		mark = "✗"
	}
	text := prefix + mark + " " + s.name
	if took := time.Since(s.start); took >= slowStep {
		text += fmt.Sprintf(" (%.1fs)", took.Seconds())
	}
	u.lineLocked(text)
}

// tick shows the progress of the active steps and ends when none is left.
func (u *UI) tick() {
	interval := plainInterval / 20
	if u.width != nil {
		interval = liveInterval
	}
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for now := range ticker.C {
		if !u.showProgress(now) {
			return
		}
	}
}

// showProgress reports whether there is any step left to show.
func (u *UI) showProgress(now time.Time) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	if len(u.active) == 0 {
		u.ticking = false
		return false
	}
	if u.width != nil {
		u.drawLocked(now)
		return true
	}
	for _, s := range u.active {
		if now.Sub(s.spoke) < plainInterval {
			continue
		}
		s.spoke = now
		u.lineLocked(prefix + "• " + s.progress(now))
	}
	return true
}

// progress describes a step that goes on, as in "building image (20s): runc".
func (s *Step) progress(now time.Time) string {
	text := s.name
	if took := now.Sub(s.start); took >= slowStep {
		text += fmt.Sprintf(" (%s)", took.Round(time.Second))
	}
	if s.detail != "" {
		text += ": " + s.detail
	}
	return text
}

// drawLocked draws the live line: the step that moved last, and how many
// others there are.
func (u *UI) drawLocked(now time.Time) {
	if u.midLine {
		return // a line of somebody else is not finished; don't write into it
	}
	spinner := []rune("⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏")
	u.frame = (u.frame + 1) % len(spinner)
	text := prefix + string(spinner[u.frame]) + " " + u.active[len(u.active)-1].progress(now)
	if others := len(u.active) - 1; others > 0 {
		text += fmt.Sprintf(" (and %d more)", others)
	}
	u.drawn = true
	_, _ = io.WriteString(u.stderr, "\r"+cut(text, u.width()-1)+clearToEnd)
}

const clearToEnd = "\x1b[K"

func (u *UI) clearLocked() {
	if u.drawn {
		_, _ = io.WriteString(u.stderr, "\r"+clearToEnd)
		u.drawn = false
	}
}

// cut shortens text to at most columns characters, so that the live line never
// wraps: a wrapped line cannot be overwritten.
func cut(text string, columns int) string {
	text = strings.Map(func(r rune) rune {
		if r < ' ' {
			return ' '
		}
		return r
	}, text)
	if utf8.RuneCountInString(text) <= columns || columns < 1 {
		return text
	}
	runes := []rune(text)
	return string(runes[:columns-1]) + "…"
}
