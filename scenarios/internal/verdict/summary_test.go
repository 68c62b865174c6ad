package verdict

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dra-lab/dra-lab/lab/timeline"
)

func TestSummariesSayWhyAndHaveTheFiguresOfThisRunOnly(t *testing.T) {
	// Given timelines of two scenarios, one of them from an earlier run,
	t.Setenv("DRA_LAB_STATE", t.TempDir())
	began := time.Now()
	keep := func(scenario string, origin time.Time) string {
		path, err := timeline.Kept(scenario)
		if err != nil {
			t.Fatal(err)
		}
		recorded := timeline.Timeline{Version: 1, Origin: origin, Events: []timeline.Event{
			{Kind: timeline.PodReady}, {Kind: timeline.Measured, Pod: "p", Detail: "created to Ready", Duration: 500 * time.Millisecond},
		}}
		if err := recorded.Save(path); err != nil {
			t.Fatal(err)
		}
		return path
	}
	path := keep("training", began.Add(time.Second))
	keep("basic", began.Add(-time.Hour))
	var p Parser
	for line := range strings.Lines(output) {
		p.Line(strings.TrimSuffix(line, "\n"))
	}

	// when the results are summarized, then each has what belongs to it.
	want := []Summary{
		{
			Name: "training", Status: Failed, Seconds: 20.5, Failures: []string{"the job ends: want 2 results, got 1"},
			Figures: []Figure{{Name: "created to Ready", Pod: "p", Seconds: 0.5}}, Timeline: path,
		},
		{Name: "pending", Status: Skipped},
		{Name: "basic", Status: Unfinished, Failures: []string{"did not finish"}},
	}
	if diff := cmp.Diff(want, Summarize(p.Results(), name, began)); diff != "" {
		t.Errorf("summaries (-want +got):\n%s", diff)
	}
}

func TestAFailureOutsideThePartsIsNotLost(t *testing.T) {
	t.Setenv("DRA_LAB_STATE", t.TempDir())
	results := []Result{
		{Name: "TestBasic", Status: Failed, Output: "    stage.go:99: tidy up after scenario basic: no engine\n"},
		{Name: "TestBasic/basic", Status: Passed},
		{Name: "TestBasic/basic/the_Pod", Status: Passed},
	}
	got := Summarize(results, name, time.Now())
	if want := []string{"tidy up after scenario basic: no engine"}; !cmp.Equal(want, got[0].Failures) {
		t.Errorf("failures %q, want %q", got[0].Failures, want)
	}
}
