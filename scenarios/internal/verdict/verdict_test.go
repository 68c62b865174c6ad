package verdict

import (
	"bytes"
	"encoding/xml"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// output is what a test binary printed under -test.v.
const output = `=== RUN   TestTraining
    stage.go:97: scenario training: it goes on
=== RUN   TestTraining/training
=== RUN   TestTraining/training/each_rank_gets_a_GPU
   +0.000s  controller-manager  -   Pod train-0 created
=== RUN   TestTraining/training/the_job_ends
    training_test.go:88: want 2 results, got 1
=== NAME  TestTraining
    stage.go:120: saved
--- FAIL: TestTraining (20.50s)
    --- FAIL: TestTraining/training (20.40s)
        --- PASS: TestTraining/training/each_rank_gets_a_GPU (1.25s)
        --- FAIL: TestTraining/training/the_job_ends (19.00s)
=== RUN   TestPending
    pending_test.go:9: no cluster
--- SKIP: TestPending (0.00s)
=== RUN   TestBasic
panic: crash
FAIL
`

func name(test string) string { return strings.ToLower(strings.TrimPrefix(test, "Test")) }

func TestResultsHaveStatusTimeAndOutput(t *testing.T) {
	var p Parser
	for line := range strings.Lines(output) {
		p.Line(strings.TrimSuffix(line, "\n"))
	}
	var got []string
	for _, r := range p.Results() {
		got = append(got, r.Name+" "+string(r.Status)+" "+r.Duration.String()+" "+FailureOf(r))
	}
	want := []string{
		"TestTraining failed 20.5s scenario training: it goes on; saved",
		"TestTraining/training failed 20.4s ",
		"TestTraining/training/each_rank_gets_a_GPU passed 1.25s ",
		"TestTraining/training/the_job_ends failed 19s want 2 results, got 1",
		"TestPending skipped 0s no cluster",
		"TestBasic unfinished 0s did not finish",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("results (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(map[Status]int{Failed: 1, Skipped: 1, Unfinished: 1}, Counts(p.Results())); diff != "" {
		t.Errorf("counts (-want +got):\n%s", diff)
	}
}

func TestShownLinesAreForPeople(t *testing.T) {
	var shown bytes.Buffer
	if _, err := Show(strings.NewReader(output), &shown, name); err != nil {
		t.Fatal(err)
	}
	want := `scenario training: it goes on
   +0.000s  controller-manager  -   Pod train-0 created
want 2 results, got 1
saved
✓ each rank gets a GPU
✗ the job ends
✗ scenario training failed (20.5s)
no cluster
- scenario pending skipped (0.0s)
panic: crash
`
	if diff := cmp.Diff(want, shown.String()); diff != "" {
		t.Errorf("shown (-want +got):\n%s", diff)
	}
}

func TestShowReadsOnWhenNobodyWatches(t *testing.T) {
	broken := errors.New("broken pipe")
	results, err := Show(strings.NewReader(output), writerFunc(func([]byte) (int, error) { return 0, broken }), name)
	if !errors.Is(err, broken) || len(results) != 6 {
		t.Errorf("Show = %d results, %v, want 6 and %v", len(results), err, broken)
	}
}

func TestJUnitReport(t *testing.T) {
	var p Parser
	for line := range strings.Lines(output) {
		p.Line(strings.TrimSuffix(line, "\n"))
	}
	data, err := JUnit(p.Results(), name)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "reports", "junit.xml")
	if err := WriteJUnit(path, data); err != nil {
		t.Fatal(err)
	}
	if data, err = os.ReadFile(path); err != nil {
		t.Fatal(err)
	}
	var report junitSuites
	if err := xml.Unmarshal(data, &report); err != nil {
		t.Fatalf("the report is no XML: %v\n%s", err, data)
	}
	if report.Tests != 4 || report.Failures != 2 || report.Skipped != 1 {
		t.Errorf("%d tests, %d failures, %d skipped, want 4, 2 and 1:\n%s", report.Tests, report.Failures, report.Skipped, data)
	}
	c := report.Suites[0].Cases[1]
	if c.Name != "the job ends" || c.Class != "training" || c.Failure == nil || c.Failure.Message != "want 2 results, got 1" {
		t.Errorf("failed case %+v with failure %+v", c, c.Failure)
	}
}

func TestJUnitReportHoldsOnlyWhatXMLCanHold(t *testing.T) {
	data, err := JUnit([]Result{{Name: "TestX", Status: Failed, Output: "    x_test.go:1: \x00\x1b[31m<&\"\u2028\n"}}, name)
	if err != nil {
		t.Fatal(err)
	}
	var report junitSuites
	if err := xml.Unmarshal(data, &report); err != nil {
		t.Errorf("the report is no XML: %v\n%s", err, data)
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(data []byte) (int, error) { return f(data) }
