package stage

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/dra-lab/dra-lab/lab/timeline"
)

// Match says whether an event is the one that is meant.
type Match func(timeline.Event) bool

// Is is an event of a kind that has all the rest.
func Is(kind timeline.Kind, rest ...Match) Match {
	return func(e timeline.Event) bool {
		if e.Kind != kind {
			return false
		}
		for _, m := range rest {
			if !m(e) {
				return false
			}
		}
		return true
	}
}

// Pod is an event of the Pod of this name, or of one whose name begins so if
// it ends in a hyphen.
func Pod(name string) Match {
	return func(e timeline.Event) bool {
		return e.Pod == name || strings.HasSuffix(name, "-") && strings.HasPrefix(e.Pod, name)
	}
}

// Claim is an event of the claim of this name.
func Claim(name string) Match { return func(e timeline.Event) bool { return e.Claim == name } }

// Device is an event of a GPU.
func Device(g GPU) Match {
	return func(e timeline.Event) bool { return e.Device == g.Name && (e.Node == "" || e.Node == g.Node) }
}

// Node is an event on the node of this name.
func Node(name string) Match { return func(e timeline.Event) bool { return e.Node == name } }

// Detail is an event with this detail.
func Detail(detail string) Match { return func(e timeline.Event) bool { return e.Detail == detail } }

// Says is an event whose text has these words.
func Says(words string) Match {
	return func(e timeline.Event) bool { return strings.Contains(e.Text, words) }
}

// After is an event that was later than first.
func After(first timeline.Event) Match {
	return func(e timeline.Event) bool { return e.Time.After(first.Time) }
}

// AtStep is an event of a workload that has made at least so many steps.
func AtStep(step int64) Match {
	return func(e timeline.Event) bool { return e.Workload != nil && e.Workload.Step >= step }
}

// Await waits for an event, for at most d, and fails the test at once when it
// does not come.
func (s *Stage) Await(ctx context.Context, t *testing.T, d time.Duration, what string, match Match) timeline.Event {
	t.Helper()
	ctx, cancel := context.WithTimeoutCause(ctx, d, fmt.Errorf("not within %s", d))
	defer cancel()
	e, err := s.Recorder.Wait(ctx, what, match)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// jitter is how much later than it happened a change may reach a watch on a
// busy machine. Reports have their own clock and may seem earlier than it.
const jitter = 150 * time.Millisecond

// Step is one event of an order.
type Step struct {
	What  string
	Match Match
}

// InOrder checks that the timeline has an event for each step and that none is
// before the one of the step ahead of it, and returns the events.
func (s *Stage) InOrder(t *testing.T, steps ...Step) []timeline.Event {
	t.Helper()
	recorded := s.Recorder.Timeline()
	var events []timeline.Event
	for i, step := range steps {
		e, ok := recorded.First(step.Match)
		if !ok {
			t.Fatalf("the timeline has no event: %s", step.What)
		}
		if i > 0 && e.Time.Before(events[i-1].Time.Add(-jitter)) {
			t.Errorf("%s came at %+.3fs, %s only at %+.3fs", step.What, recorded.Since(e).Seconds(),
				steps[i-1].What, recorded.Since(events[i-1]).Seconds())
		}
		events = append(events, e)
	}
	return events
}

// EnvLimits says what becomes of a measured time that is over its limit: with
// "report" it is only shown. Limits are for a machine with nothing else to do; a
// test run insists on them, somebody who watches a scenario need not.
const EnvLimits = "DRA_LAB_LIMITS"

// Measure notes how long it took from one event to another, in the timeline
// and in the test's output, and fails the test when that is over the limit,
// unless EnvLimits says otherwise.
func (s *Stage) Measure(t *testing.T, what string, from, to timeline.Event, limit time.Duration) {
	t.Helper()
	took := to.Time.Sub(from.Time)
	text := fmt.Sprintf("%.3f s", took.Seconds())
	s.judge(t, timeline.Event{Pod: to.Pod, Detail: what, Duration: took}, text, fmt.Sprintf("%.1f s", limit.Seconds()), took > limit)
}

// MeasureValue is Measure of something else than a time, in a unit such as
// "times".
func (s *Stage) MeasureValue(t *testing.T, what string, got, limit float64, unit string) {
	t.Helper()
	s.judge(t, timeline.Event{Detail: what, Value: got, Unit: unit}, fmt.Sprintf("%.3g %s", got, unit), fmt.Sprintf("%.3g %s", limit, unit), got > limit)
}

// judge notes a figure and what becomes of it.
func (s *Stage) judge(t *testing.T, figure timeline.Event, got, limit string, missed bool) {
	t.Helper()
	verdict := "within"
	if missed {
		verdict = "MISSED"
		tell := t.Errorf
		if os.Getenv(EnvLimits) == "report" {
			tell = t.Logf
		}
		tell("%s: %s, at most %s allowed", figure.Detail, got, limit)
	}
	figure.Component, figure.Kind = timeline.Lab, timeline.Measured
	figure.Text = fmt.Sprintf("measured: %s: %s (%s %s)", figure.Detail, got, verdict, limit)
	s.Recorder.Note(figure)
}
