package timeline

import (
	"io"
	"slices"
	"time"
)

const (
	// settle is how long a line is held back, so that reports, which travel
	// through two log files, still come out in the order of their times.
	settle = 400 * time.Millisecond
	// maxHeld bounds how long lines wait for the first Pod, from whose
	// creation times are counted.
	maxHeld = 10 * time.Second
)

// show writes the log's events to w as they come, until the log is closed. The
// first error of w ends the writing and is returned.
func show(l *log, w io.Writer) error {
	var held []Event
	var origin time.Time
	seen := 0
	ticker := time.NewTicker(settle / 4)
	defer ticker.Stop()
	for {
		events, closed, changed := l.since(seen)
		seen += len(events)
		held = append(held, events...)
		slices.SortStableFunc(held, byTime)
		if origin.IsZero() {
			origin = liveOrigin(held, closed, time.Now())
		}
		if !origin.IsZero() {
			ready := settled(held, closed, time.Now())
			for _, e := range held[:ready] {
				if err := writeLine(w, origin, e); err != nil {
					return err
				}
			}
			held = slices.Delete(held, 0, ready)
		}
		if closed {
			return nil
		}
		if len(held) == 0 {
			<-changed
			continue
		}
		select {
		case <-changed:
		case <-ticker.C:
		}
	}
}

// liveOrigin is the creation of the first Pod, or of the first event when there
// has been none for too long.
func liveOrigin(held []Event, closed bool, now time.Time) time.Time {
	origin := originOf(held)
	hasPod := slices.ContainsFunc(held, func(e Event) bool { return e.Kind == PodCreated })
	if hasPod || closed || now.Sub(origin) > maxHeld {
		return origin
	}
	return time.Time{}
}

// settled counts the first events that are old enough to be written.
func settled(held []Event, closed bool, now time.Time) int {
	if closed {
		return len(held)
	}
	for i, e := range held {
		if now.Sub(e.Time) < settle {
			return i
		}
	}
	return len(held)
}
