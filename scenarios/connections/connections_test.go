package connections

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"
)

// TestConnections: in the situations that the article names, the lazy model
// fails as far as its design lets it, and the eager connection does not.
func TestConnections(t *testing.T) {
	o := Options{
		Goroutines:  32,
		Rounds:      20,
		Reconnects:  2000,
		DialTimeout: 500 * time.Millisecond,
		Progress:    func(what string) { t.Log(what) },
	}
	if testing.Short() {
		o.Rounds, o.Reconnects, o.DialTimeout = 10, 100, 100*time.Millisecond
	}
	if raceDetector {
		self, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		t.Setenv(raceSubject, "1")
		o.RaceCommand = []string{self}
	}
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	report, err := Run(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	for _, deviation := range report.Deviations() {
		t.Error(deviation)
	}
	if report.Race.Detector.Ran != raceDetector {
		t.Errorf("race detector ran: got %v (%s), want %v", report.Race.Detector.Ran, report.Race.Detector.Why, raceDetector)
	}
	var text strings.Builder
	if err := report.WriteText(&text); err != nil {
		t.Fatal(err)
	}
	t.Log("\n" + text.String())
}

// TestDeviations: a report in which nothing was measured is as wrong as can be,
// and says so.
func TestDeviations(t *testing.T) {
	r := Report{Race: Race{Goroutines: 2}, Growth: Growth{Reconnects: 1}}
	if got := r.Deviations(); len(got) < 5 {
		t.Errorf("deviations of an empty report: got %q, want many", got)
	}
}
