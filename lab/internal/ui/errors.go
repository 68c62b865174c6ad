package ui

import (
	"errors"
	"fmt"
)

// Exit statuses of the lab's command line.
const (
	StatusDone   = 0 // done
	StatusFailed = 1 // something did not work
	StatusUsage  = 2 // the command line was wrong
)

// hinted is an error that knows its cure.
type hinted struct {
	error
	hint string
}

func (h *hinted) Unwrap() error { return h.error }

// WithHint attaches a cure to err: what the user can do about it, best an
// exact command. The message of err stays as it is. A nil err stays nil.
func WithHint(err error, format string, a ...any) error {
	if err == nil {
		return nil
	}
	return &hinted{error: err, hint: fmt.Sprintf(format, a...)}
}

// Hint returns the cure attached to err, or "". Where several layers attached
// one, the outermost counts: it knew the most about what the user wanted.
func Hint(err error) string {
	var h *hinted
	if errors.As(err, &h) {
		return h.hint
	}
	return ""
}

// detailed is an error with the output that explains it.
type detailed struct {
	error
	title, text string
}

func (d *detailed) Unwrap() error { return d.error }

// WithDetail attaches output that explains err, such as a log's last lines
// under the title "log of the engine". Fail prints it before the error line,
// which itself stays short. A nil err stays nil, an empty text adds nothing.
func WithDetail(err error, title, text string) error {
	if err == nil || text == "" {
		return err
	}
	return &detailed{error: err, title: title, text: text}
}

// Detail returns the output attached to err (the outermost), or "".
func Detail(err error) string {
	var d *detailed
	if errors.As(err, &d) {
		return d.text
	}
	return ""
}

// withStatus is an error that asks for an exit status of its own.
type withStatus struct {
	error
	status int
}

func (w *withStatus) Unwrap() error { return w.error }

// UsageError marks err as a mistake on the command line: exit status 2. A nil
// err stays nil.
func UsageError(err error) error {
	if err == nil {
		return nil
	}
	return &withStatus{error: err, status: StatusUsage}
}

// told is an error that the user has read already.
type told struct{ error }

func (t *told) Unwrap() error { return t.error }

// Told marks err as one that another program has told the user about on stderr:
// Fail prints nothing more and returns status. A nil err stays nil.
func Told(err error, status int) error {
	if err == nil {
		return nil
	}
	return &told{&withStatus{error: err, status: status}}
}

// allTold reports whether the user has read all of err already, and not only one
// of several errors that were joined.
func allTold(err error) bool {
	if _, ok := err.(*told); ok { //nolint:errorlint // walks the tree link by link on purpose
		return true
	}
	switch e := err.(type) { //nolint:errorlint // as above
	case interface{ Unwrap() []error }:
		for _, inner := range e.Unwrap() {
			if !allTold(inner) {
				return false
			}
		}
		return true
	case interface{ Unwrap() error }:
		return allTold(e.Unwrap())
	}
	return err == nil
}

// Status returns the exit status for err: 0 for nil, the one that UsageError
// or Told asked for, else 1.
func Status(err error) int {
	if err == nil {
		return StatusDone
	}
	var w *withStatus
	if errors.As(err, &w) {
		return w.status
	}
	return StatusFailed
}

// details returns every attached output below err, the outermost first.
func details(err error) []*detailed {
	var found []*detailed
	for err != nil {
		if d, ok := err.(*detailed); ok { //nolint:errorlint // walks the tree link by link on purpose
			found = append(found, d)
		}
		switch e := err.(type) { //nolint:errorlint // as above
		case interface{ Unwrap() []error }:
			for _, inner := range e.Unwrap() {
				found = append(found, details(inner)...)
			}
			return found
		case interface{ Unwrap() error }:
			err = e.Unwrap()
		default:
			return found
		}
	}
	return found
}
