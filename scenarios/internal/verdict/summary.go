package verdict

import (
	"time"

	"github.com/dra-lab/dra-lab/lab/timeline"
)

// Summary is a scenario's result for programs.
type Summary struct {
	Name     string   `json:"name"`
	Status   Status   `json:"status"`
	Seconds  float64  `json:"seconds"`
	Failures []string `json:"failures,omitempty"`
	Figures  []Figure `json:"figures,omitempty"`
	Timeline string   `json:"timeline,omitempty"` // path
}

// Figure is something that the scenario measured.
type Figure struct {
	Name    string  `json:"name"`
	Pod     string  `json:"pod,omitempty"`
	Seconds float64 `json:"seconds,omitempty"`
	// Value is of figures that are no times, in Unit.
	Value float64 `json:"value,omitempty"`
	Unit  string  `json:"unit,omitempty"`
}

// Summarize puts the results together, a summary per test. name turns a test's
// name into the scenario's. Figures are from the timelines that were kept since
// the tests began.
func Summarize(results []Result, name func(test string) string, began time.Time) []Summary {
	all := []Summary{}
	for _, test := range results {
		if test.Depth() != 0 {
			continue
		}
		s := Summary{Name: name(test.Name), Status: test.Status, Seconds: test.Duration.Seconds()}
		for _, part := range leaves(results, test.Name) {
			if part.Status == Failed {
				s.Failures = append(s.Failures, PartName(part.Name)+": "+FailureOf(part))
			}
		}
		if (test.Status == Failed || test.Status == Unfinished) && len(s.Failures) == 0 {
			// It went wrong outside the parts, as in tidying up.
			s.Failures = append(s.Failures, FailureOf(test))
		}
		if test.Status != Skipped {
			s.Timeline, s.Figures = figures(s.Name, began)
		}
		all = append(all, s)
	}
	return all
}

// figures reads what a scenario measured from its timeline. One that failed
// before there was a timeline has none, though there may be that of an earlier
// run.
func figures(scenario string, began time.Time) (path string, all []Figure) {
	path, err := timeline.Kept(scenario)
	if err != nil {
		return "", nil
	}
	recorded, err := timeline.Load(path)
	if err != nil || recorded.Origin.Before(began) {
		return "", nil
	}
	for _, e := range recorded.Events {
		if e.Kind == timeline.Measured {
			all = append(all, Figure{Name: e.Detail, Pod: e.Pod, Seconds: e.Duration.Seconds(), Value: e.Value, Unit: e.Unit})
		}
	}
	return path, all
}
