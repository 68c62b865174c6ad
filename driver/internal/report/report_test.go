package report_test

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dra-lab/dra-lab/driver/api"
	"github.com/dra-lab/dra-lab/driver/internal/report"
)

func TestReportsAreWrittenInOrder(t *testing.T) {
	var out bytes.Buffer
	r := report.New(&out, "node-1")
	r.Report(api.Report{Step: api.StepStarted})
	r.Report(api.Report{Step: api.StepError, Err: strings.Repeat("e", 100_000)})
	r.Close()
	r.Close()
	var steps []string
	for line := range bytes.Lines(out.Bytes()) {
		got, ok := api.ParseReport(line)
		if !ok || got.Node != "node-1" || got.Time.IsZero() {
			t.Errorf("%.80q is read as %+v", line, got)
		}
		steps = append(steps, got.Step)
	}
	if strings.Join(steps, " ") != "started error" || r.Dropped() != 0 {
		t.Errorf("steps %v, %d dropped", steps, r.Dropped())
	}
}

func TestNoReporterDropsEverything(t *testing.T) {
	var r *report.Reporter
	r.Report(api.Report{Step: api.StepStarted})
}

// writer is a reader's end that does what the test says.
type writer func([]byte) (int, error)

func (w writer) Write(p []byte) (int, error) { return w(p) }

func TestWriterThatFailsIsCounted(t *testing.T) {
	r := report.New(writer(func([]byte) (int, error) { return 0, errors.New("broken pipe") }), "node-1")
	r.Report(api.Report{Step: api.StepStarted})
	r.Close()
	if r.Dropped() != 1 {
		t.Errorf("%d dropped, want 1", r.Dropped())
	}
}

func TestReaderThatHangsHoldsNobodyUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hang := make(chan struct{})
		defer close(hang)
		r := report.New(writer(func(p []byte) (int, error) {
			<-hang
			return len(p), nil
		}), "node-1")
		for range 2000 {
			r.Report(api.Report{Step: api.StepStarted})
		}
		if r.Dropped() == 0 {
			t.Error("the queue has no bound")
		}
		// The process has to end some time.
		start := time.Now()
		r.Close()
		if took := time.Since(start); took > 5*time.Second {
			t.Errorf("Close took %s", took)
		}
	})
}
