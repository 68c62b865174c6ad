package scenarios

import (
	"context"
	_ "embed"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/e2e-framework/pkg/envconf"

	"github.com/dra-lab/dra-lab/lab/timeline"
	"github.com/dra-lab/dra-lab/lab/timeline/workload"
	"github.com/dra-lab/dra-lab/scenarios/internal/stage"
)

//go:embed hold.yaml
var holdManifest []byte //nolint:gochecknoglobals // filled by the compiler

// hold is a Pod that uses one GPU until it is deleted; several scenarios do
// something in between.
type hold struct {
	*stage.Stage
	created, ready timeline.Event
	claim          string
	claimUID       string
	gpu            stage.GPU
	baseline       map[stage.GPU]uint64
}

// start creates the Pod and waits until its program has found its GPU.
func (s *hold) start(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
	var err error
	if s.baseline, err = s.Memory(ctx); err != nil {
		t.Fatal(err)
	}
	if err := s.Create(ctx, holdManifest); err != nil {
		t.Fatal(err)
	}
	pod := stage.Pod("hold")
	s.ready = s.Await(ctx, t, soon, "the Pod to be Ready", stage.Is(timeline.PodReady, pod))
	s.created = s.Await(ctx, t, soon, "its creation", stage.Is(timeline.PodCreated, pod))
	allocated := s.Await(ctx, t, soon, "its GPU", stage.Is(timeline.ClaimAllocated, pod))
	s.claim, s.gpu = allocated.Claim, stage.GPU{Node: allocated.Node, Name: allocated.Device}
	claim, err := s.Client.ResourceV1().ResourceClaims(s.Namespace).Get(ctx, s.claim, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	s.claimUID = string(claim.UID)
	s.Await(ctx, t, soon, "the program to start", stage.Is(timeline.Workload(workload.EventStarted), pod))
	traces, err := s.Traces(ctx, s.gpu.Node, s.claimUID)
	if err != nil {
		t.Fatal(err)
	}
	if len(traces) != 3 {
		t.Errorf("of a prepared claim the node has %q, want a CDI spec, a checkpoint entry and the driver's word", traces)
	}
	return ctx
}

// stop deletes the Pod and waits until the driver has unprepared its claim.
func (s *hold) stop(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
	if err := s.Client.CoreV1().Pods(s.Namespace).Delete(ctx, "hold", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	s.Await(ctx, t, soon, "unprepare", stage.Is(timeline.Unprepared, stage.Claim(s.claim)))
	s.Await(ctx, t, soon, "the end of the Pod", stage.Is(timeline.PodGone, stage.Pod("hold")))
	s.Await(ctx, t, soon, "the end of the claim", stage.Is(timeline.ClaimGone, stage.Claim(s.claim)))
	traces, err := s.Traces(ctx, s.gpu.Node, s.claimUID)
	if err != nil {
		t.Fatal(err)
	}
	if len(traces) > 0 {
		t.Errorf("the claim left on %s: %s", s.gpu.Node, strings.Join(traces, ", "))
	}
	checkMemory(ctx, t, s.Stage, s.baseline)
	return ctx
}

// checkMemory checks that on every GPU as much memory is in use as before.
func checkMemory(ctx context.Context, t *testing.T, s *stage.Stage, before map[stage.GPU]uint64) {
	t.Helper()
	now, err := s.Memory(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for gpu, used := range now {
		if used != before[gpu] {
			t.Errorf("%s has %d bytes in use, %d before", gpu, used, before[gpu])
		}
	}
}
