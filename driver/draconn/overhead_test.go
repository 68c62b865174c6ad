package draconn

import (
	"context"
	"math"
	"sync"
	"testing"
	"time"

	drav1 "k8s.io/kubelet/pkg/apis/dra/v1"
)

// maxOverhead is what a call through draconn may cost above the bare stub.
const maxOverhead = 20 // ns

// TestCallOverhead: an eager call costs at most maxOverhead more than the bare
// generated stub, for any number of goroutines, and does not get slower with
// their number. Both are measured in turn, in many short batches of which the
// fastest counts: whatever else runs on the machine makes batches slower, never
// faster.
func TestCallOverhead(t *testing.T) {
	if raceDetector {
		t.Skip("the race detector is on")
	}
	const calls, batches = 6400, 60
	ctx := context.Background()
	req := &drav1.NodePrepareResourcesRequest{}
	stub := drav1.NewDRAPluginClient(nowhere{})
	conn := &Conn{clients: newClients(nowhere{}, nil, false)}
	perCall := func(n int, call func()) float64 {
		var wg sync.WaitGroup
		begin := time.Now()
		for range n {
			wg.Go(func() {
				for range calls / n {
					call()
				}
			})
		}
		wg.Wait()
		return float64(time.Since(begin).Nanoseconds()) / calls
	}
	var single float64
	for _, n := range goroutines {
		bare, eager := math.Inf(1), math.Inf(1)
		for range batches {
			bare = min(bare, perCall(n, func() { _, _ = stub.NodePrepareResources(ctx, req) }))
			eager = min(eager, perCall(n, func() { _, _ = conn.Prepare(ctx, req) }))
		}
		t.Logf("%2d goroutines: stub %.1f ns, eager %.1f ns per call", n, bare, eager)
		if eager-bare > maxOverhead {
			t.Errorf("%d goroutines: overhead %.1f ns per call, want at most %d ns", n, eager-bare, maxOverhead)
		}
		if n == 1 {
			single = eager
		} else if eager > single+maxOverhead {
			t.Errorf("%d goroutines: %.1f ns per call, want no more than the %.1f ns of one goroutine", n, eager, single)
		}
	}
}
