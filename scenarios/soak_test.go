// Scenario soak: the driver stays as it is while Pods come and go.
//
// Given Jobs whose Pods each use a GPU for a second, four at a time, when that
// goes on for ten minutes, then no driver has more goroutines, open files or
// resident memory than at the beginning, as the line through all samples tells,
// and nothing of any claim is left.

package scenarios

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"gonum.org/v1/gonum/stat"
	"sigs.k8s.io/e2e-framework/pkg/envconf"
	"sigs.k8s.io/e2e-framework/pkg/features"

	"github.com/dra-lab/dra-lab/scenarios/internal/stage"
)

const (
	// envSoak is how long a soak takes, as in "1m" for a short one.
	envSoak     = "DRA_LAB_SOAK"
	soakTime    = 10 * time.Minute
	soakMinimum = 30 * time.Second
	// soakSamples is how many samples are taken, not more often than soakEvery.
	soakSamples = 120
	soakEvery   = 2 * time.Second
	// soakWarmUp is the share of the time before the first sample, in which the
	// driver makes what it makes once.
	soakWarmUp = 5
	// startTime tells one process of a driver from the next.
	startTime = "process_start_time_seconds"
)

// soakFigures are what is sampled, and by how much the line through the samples
// may rise from the first to the last. What leaks with each Pod rises by
// hundreds.
var soakFigures = []struct { //nolint:gochecknoglobals // a table
	what, metric string
	scale, limit float64
	unit         string
}{
	{"goroutines", "go_goroutines", 1, 5, "more"},
	{"open files", "process_open_fds", 1, 5, "more"},
	{"resident memory", "process_resident_memory_bytes", 1 << 20, 5, "MB"},
}

type soak struct {
	jobs
	duration time.Duration
	minutes  []float64
	values   map[string][][]float64 // by node, of each figure
	started  map[string]float64
}

func TestSoak(t *testing.T) {
	s := &soak{jobs: jobs{Stage: stage.New(t, "soak")}, values: map[string][][]float64{}, started: map[string]float64{}, duration: soakTime}
	if text := os.Getenv(envSoak); text != "" {
		var err error
		if s.duration, err = time.ParseDuration(text); err != nil || s.duration < soakMinimum {
			t.Fatalf("%s is %q, want a time of at least %s", envSoak, text, soakMinimum)
		}
	}
	s.Unrecorded = true
	s.Play(t, features.New("soak").
		Setup(s.Begin).
		Setup(s.prepare).
		Assess("Pods come and go for long", s.run).
		Assess("all Pods ran", s.complete).
		Assess("the drivers stayed as they were", s.checkFlat).
		Assess("nothing of the claims is left", s.checkClean))
}

func (s *soak) run(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
	s.Remark("%s of Pods that come and go", s.duration)
	ticker := time.NewTicker(max(s.duration/soakSamples, soakEvery))
	defer ticker.Stop()
	for began := time.Now(); time.Since(began) < s.duration; {
		s.keepBusy(ctx, t)
		s.clear(ctx, t)
		if time.Since(began) > s.duration/soakWarmUp {
			s.sample(ctx, t, time.Since(began))
		}
		select {
		case <-ctx.Done():
			t.Fatal(context.Cause(ctx))
		case <-ticker.C:
		}
	}
	return ctx
}

// sample reads the figures of all drivers.
func (s *soak) sample(ctx context.Context, t *testing.T, at time.Duration) {
	t.Helper()
	names := []string{startTime}
	for _, f := range soakFigures {
		names = append(names, f.metric)
	}
	s.minutes = append(s.minutes, at.Minutes())
	for _, node := range s.nodes {
		got, err := s.DriverMetrics(ctx, node, names...)
		if err != nil {
			t.Fatal(err)
		}
		if before, ok := s.started[node]; ok && before != got[0] {
			t.Fatalf("the driver on node %s has started again", node)
		}
		s.started[node] = got[0]
		if s.values[node] == nil {
			s.values[node] = make([][]float64, len(soakFigures))
		}
		for i, f := range soakFigures {
			s.values[node][i] = append(s.values[node][i], got[1+i]/f.scale)
		}
	}
}

func (s *soak) complete(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
	s.Remark("%d Pods ran", s.jobs.complete(ctx, t))
	return ctx
}

// checkFlat puts a line through the samples of each figure, by least squares.
func (s *soak) checkFlat(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
	if len(s.minutes) < 2 {
		t.Fatalf("there are %d samples only", len(s.minutes))
	}
	sampled := s.minutes[len(s.minutes)-1] - s.minutes[0]
	for _, node := range s.nodes {
		for i, f := range soakFigures {
			values := s.values[node][i]
			_, slope := stat.LinearRegression(s.minutes, values, nil, false)
			s.Remark("driver on %s: %s rise by %+.3f a minute, at most %.3f allowed; first %.4g, last %.4g of %d samples",
				node, f.what, slope, f.limit/sampled, values[0], values[len(values)-1], len(values))
			s.MeasureValue(t, fmt.Sprintf("growth of %s of the driver on %s in %s", f.what, node, s.duration), slope*sampled, f.limit, f.unit)
		}
	}
	return ctx
}
