package stage

import (
	"context"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/dra-lab/dra-lab/driver/api"
	"github.com/dra-lab/dra-lab/lab/timeline"
	"github.com/dra-lab/dra-lab/lab/timeline/workload"
)

// Soon is the patience for what takes seconds at most.
const Soon = 30 * time.Second

// Start is the patience for the start of a Pod. Now and then the API server
// refuses the kubelet's first look at a new claim, because its node authorizer
// has not heard of the Pod yet; the kubelet tries again with the next sync of
// the Pod, after 60 to 90 s. A limit is not affected by it: Measure tells.
const Start = 2 * time.Minute

// Grant is a claim and the GPU that it was given.
type Grant struct {
	Claim string
	UID   string
	GPU   GPU
}

// AwaitGrant waits until the claim of an event that match finds has its GPU.
func (s *Stage) AwaitGrant(ctx context.Context, t *testing.T, match Match) Grant {
	t.Helper()
	allocated := s.Await(ctx, t, Soon, "the GPU", Is(timeline.ClaimAllocated, match))
	claim, err := s.Client.ResourceV1().ResourceClaims(s.Namespace).Get(ctx, allocated.Claim, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return Grant{Claim: claim.Name, UID: string(claim.UID), GPU: GPU{Node: allocated.Node, Name: allocated.Device}}
}

// AwaitProgram waits until the program of the Pod of this name has started, and
// checks that it found the granted GPU and no other.
func (s *Stage) AwaitProgram(ctx context.Context, t *testing.T, pod string, g Grant) {
	t.Helper()
	started := s.Await(ctx, t, Start, "the program of Pod "+pod, Is(timeline.Workload(workload.EventStarted), Pod(pod)))
	uuid, err := s.UUID(ctx, g.GPU)
	if err != nil {
		t.Fatal(err)
	}
	if want := (api.DeviceRef{Name: g.GPU.Name, UUID: uuid}).String(); started.Workload.Devices != want {
		t.Errorf("the program of Pod %s found %q, claim %s promised %q", pod, started.Workload.Devices, g.Claim, want)
	}
}

// CheckPrepared checks that the node knows the claim in all three places.
func (s *Stage) CheckPrepared(ctx context.Context, t *testing.T, g Grant) {
	t.Helper()
	if traces := s.traces(ctx, t, g); len(traces) != 3 {
		t.Errorf("of claim %s the node has only %q, want a CDI spec, a checkpoint entry and the driver's word", g.Claim, traces)
	}
}

// CheckNoTrace checks that the node knows nothing of the claim any more.
func (s *Stage) CheckNoTrace(ctx context.Context, t *testing.T, g Grant) {
	t.Helper()
	if traces := s.traces(ctx, t, g); len(traces) > 0 {
		t.Errorf("claim %s left on %s: %s", g.Claim, g.GPU.Node, strings.Join(traces, ", "))
	}
}

func (s *Stage) traces(ctx context.Context, t *testing.T, g Grant) []string {
	t.Helper()
	traces, err := s.findTraces(ctx, g.GPU.Node, g.UID)
	if err != nil {
		t.Fatal(err)
	}
	return traces
}

// CheckMemory checks that on every GPU as much memory is in use as before.
func (s *Stage) CheckMemory(ctx context.Context, t *testing.T, before map[GPU]uint64) {
	t.Helper()
	now, err := s.Memory(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for gpu, used := range before {
		if got, known := now[gpu]; !known || got != used {
			t.Errorf("%s has %d bytes in use, %d before", gpu, got, used)
		}
	}
}
