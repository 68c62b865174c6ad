package timeline

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
)

const (
	// maxEvents bounds what a recorder keeps.
	maxEvents = 20_000
	// shownWhenMissed is how many of the last events an error shows when the
	// awaited one did not come.
	shownWhenMissed = 5
)

var errStopped = errors.New("the recorder has stopped")

// log keeps events in the order in which they come and wakes those who wait for
// one. It is safe for concurrent use.
type log struct {
	max int

	mu      sync.Mutex
	events  []Event
	dropped int
	closed  bool
	changed chan struct{} // closed and replaced at each change
}

func newLog(most int) *log { return &log{max: most, changed: make(chan struct{})} }

// add appends events and gives them their sequence. When the log is full they
// are counted, not kept.
func (l *log) add(events ...Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range events {
		if l.closed || len(l.events) >= l.max {
			l.dropped++
			continue
		}
		e.Sequence = len(l.events) + 1
		l.events = append(l.events, e)
	}
	l.wake()
}

func (l *log) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	l.wake()
}

func (l *log) wake() {
	close(l.changed)
	l.changed = make(chan struct{})
}

// since returns the events after the first n, whether more can come, and a
// channel that is closed when they do. The slice must not be changed.
func (l *log) since(n int) (events []Event, closed bool, changed <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clip(l.events[min(n, len(l.events)):]), l.closed, l.changed
}

func (l *log) lost() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.dropped
}

// wait returns the first event that matches, among those that have come and
// those that come. The error of a missed event has the last ones.
func (l *log) wait(ctx context.Context, what string, match func(Event) bool) (Event, error) {
	seen := 0
	for {
		events, closed, changed := l.since(seen)
		for _, e := range events {
			if match(e) {
				return e, nil
			}
		}
		seen += len(events)
		if closed {
			return Event{}, l.missed(what, errStopped)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return Event{}, l.missed(what, context.Cause(ctx))
		}
	}
}

func (l *log) missed(what string, cause error) error {
	events, _, _ := l.since(0)
	var last []string
	for _, e := range events[max(0, len(events)-shownWhenMissed):] {
		last = append(last, e.Text)
	}
	return fmt.Errorf("wait for %s: %w (last events: %s)", what, cause, strings.Join(last, "; "))
}
