package main

import (
	"context"
	"fmt"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"gonum.org/v1/gonum/stat"

	"github.com/dra-lab/dra-lab/driver/api"
	"github.com/dra-lab/dra-lab/driver/internal/figure"
)

// soakGrowth is by how much each figure of the process may seem to grow from the
// beginning to the end of a soak. What leaks with every claim, or with every
// watcher of health, grows by hundreds.
var soakGrowth = []struct { //nolint:gochecknoglobals // a table
	what, metric string
	scale, limit float64
	unit         string
}{
	{"goroutines", "go_goroutines", 1, 5, "more"},
	{"file descriptors", "process_open_fds", 1, 5, "more"},
	{"resident memory", "process_resident_memory_bytes", 1 << 20, 5, "MB"},
}

// Claims come and go for a while, and watchers of health with them: the process
// stays as it is. The scenario soak does the same for longer, with real Pods.
func TestSoak(t *testing.T) {
	if raceDetector {
		t.Skip("everything else is tested at the same time, and this measures")
	}
	duration := time.Minute
	if testing.Short() {
		duration = 5 * time.Second
	}
	n := newNode(t, fewDevices)
	for i := range fewDevices {
		n.allocate(t, fmt.Sprint("c", i), api.DeviceName(i))
	}
	p := n.start(t)
	churn := func(d time.Duration, look func(at time.Duration)) (rounds int) {
		for began := time.Now(); time.Since(began) < d; rounds++ {
			if err := p.round(t.Context()); err != nil {
				t.Fatal(err)
			}
			look(time.Since(began))
		}
		return rounds
	}
	// What is made once, such as buffers, is made in the first rounds.
	churn(duration/3, func(time.Duration) {})

	var minutes []float64
	values := make([][]float64, len(soakGrowth))
	next := time.Duration(0)
	rounds := churn(duration, func(at time.Duration) {
		if at < next {
			return
		}
		next = at + duration/50
		minutes = append(minutes, at.Minutes())
		for i, f := range soakGrowth {
			values[i] = append(values[i], p.metric(t, f.metric)/f.scale)
		}
	})
	t.Logf("%d claims came and went in %s", rounds*fewDevices, duration)
	for i, f := range soakGrowth {
		_, slope := stat.LinearRegression(minutes, values[i], nil, false)
		t.Logf("%s: %+.3f per minute, at first %.4g, in the end %.4g", f.what, slope, values[i][0], values[i][len(minutes)-1])
		figure.AtMost(t, fmt.Sprintf("growth of %s in %s of calls", f.what, duration), slope*duration.Minutes(), f.limit, f.unit)
	}
	p.stop(t)
}

// round prepares all claims at once while somebody watches the health, and
// unprepares them.
func (p *process) round(ctx context.Context) error {
	stream, err := p.WatchHealth(ctx)
	if err != nil {
		return err
	}
	defer stream.Close()
	for _, do := range []func(context.Context, string) error{p.prepare, p.unprepare} {
		var group errgroup.Group
		for i := range fewDevices {
			group.Go(func() error { return do(ctx, fmt.Sprint("c", i)) })
		}
		if err := group.Wait(); err != nil {
			return err
		}
	}
	_, err = stream.Recv()
	return err
}
