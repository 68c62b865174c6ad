package timeline

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/dra-lab/dra-lab/lab/host"
)

const (
	version       = 1
	maxFileBytes  = 64 << 20
	filePerm      = 0o644
	directoryPerm = 0o755
)

// Timeline is a finished record. Its events are in the order of their times.
type Timeline struct {
	Version   int    `json:"version"`
	Title     string `json:"title"`
	Namespace string `json:"namespace"`
	// Origin is the time from which others are counted: the creation of the
	// first Pod, or the first event when there was none.
	Origin time.Time `json:"origin"`
	Events []Event   `json:"events"`
	// Dropped counts the events that came when the recorder was full.
	Dropped int `json:"dropped,omitempty"`
}

// newTimeline orders events by time; those of one instant keep the order in
// which they came.
func newTimeline(title, namespace string, events []Event, dropped int) Timeline {
	t := Timeline{Version: version, Title: title, Namespace: namespace, Events: slices.Clone(events), Dropped: dropped}
	slices.SortStableFunc(t.Events, byTime)
	t.Origin = originOf(t.Events)
	return t
}

func byTime(a, b Event) int {
	return cmp.Or(a.Time.Compare(b.Time), cmp.Compare(a.Sequence, b.Sequence))
}

// originOf is the time of the first Pod, else of the first event.
func originOf(events []Event) time.Time {
	for _, e := range events {
		if e.Kind == PodCreated {
			return e.Time
		}
	}
	if len(events) == 0 {
		return time.Time{}
	}
	return events[0].Time
}

// Save writes the timeline as JSON, whole or not at all, and makes the folder
// if it is not there.
func (t Timeline) Save(path string) error {
	data, err := json.MarshalIndent(t, "", "  ")
	if err != nil {
		return fmt.Errorf("encode timeline: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(path), directoryPerm); err != nil {
		return fmt.Errorf("save timeline: %w", err)
	}
	if err := host.WriteFile(path, append(data, '\n'), filePerm); err != nil {
		return fmt.Errorf("save timeline %q: %w", path, err)
	}
	return nil
}

// Load reads what Save wrote.
func Load(path string) (Timeline, error) {
	f, err := os.Open(path)
	if err != nil {
		return Timeline{}, fmt.Errorf("load timeline: %w", err)
	}
	data, err := io.ReadAll(io.LimitReader(f, maxFileBytes+1))
	if err := errors.Join(err, f.Close()); err != nil {
		return Timeline{}, fmt.Errorf("load timeline %q: %w", path, err)
	}
	if len(data) > maxFileBytes {
		return Timeline{}, fmt.Errorf("load timeline %q: over %d bytes", path, maxFileBytes)
	}
	var t Timeline
	if err := json.Unmarshal(data, &t); err != nil {
		return Timeline{}, fmt.Errorf("load timeline %q: %w", path, err)
	}
	if t.Version != version {
		return Timeline{}, fmt.Errorf("load timeline %q: version %d, this program reads version %d", path, t.Version, version)
	}
	return t, nil
}

// First is the earliest event that matches.
func (t Timeline) First(match func(Event) bool) (Event, bool) {
	i := slices.IndexFunc(t.Events, match)
	if i < 0 {
		return Event{}, false
	}
	return t.Events[i], true
}

// Since is the time of e, counted from the origin.
func (t Timeline) Since(e Event) time.Duration { return e.Time.Sub(t.Origin) }

// WriteText writes the timeline for people, a line per event.
func (t Timeline) WriteText(w io.Writer) error {
	if _, err := fmt.Fprintf(w, "%s, %s, times since the creation of the first Pod\n", t.Title, t.Origin.Format(time.RFC3339)); err != nil {
		return fmt.Errorf("write timeline: %w", err)
	}
	for _, e := range t.Events {
		if err := writeLine(w, t.Origin, e); err != nil {
			return err
		}
	}
	if t.Dropped > 0 {
		if _, err := fmt.Fprintf(w, "%d more events came when the recorder was full\n", t.Dropped); err != nil {
			return fmt.Errorf("write timeline: %w", err)
		}
	}
	return nil
}

func writeLine(w io.Writer, origin time.Time, e Event) error {
	since := fmt.Sprintf("%+.3fs", e.Time.Sub(origin).Seconds())
	if _, err := fmt.Fprintf(w, "%10s  %-18s  %-20s  %s\n", since, e.Component, cmp.Or(e.Node, "-"), e.Text); err != nil {
		return fmt.Errorf("write timeline: %w", err)
	}
	return nil
}
