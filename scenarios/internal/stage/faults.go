package stage

import (
	"context"
	"fmt"
	"strconv"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/dra-lab/dra-lab/driver/api"
	"github.com/dra-lab/dra-lab/lab/fault"
	"github.com/dra-lab/dra-lab/lab/timeline"
)

// BreakNode gives the driver on a node, or the node itself, a fault, and returns
// the event of asking for it.
func (s *Stage) BreakNode(ctx context.Context, t *testing.T, node string, f api.Fault) timeline.Event {
	t.Helper()
	f.ID = s.faultID()
	what := f.Kind
	if f.Code != 0 {
		what += " " + strconv.Itoa(f.Code)
	}
	if f.Step != "" {
		what += " after " + f.Step
	}
	if f.Times != 0 {
		what += fmt.Sprintf(", %d ×", f.Times)
	}
	asked := timeline.Event{
		Time: time.Now(), Component: timeline.User, Kind: timeline.FaultAsked, Node: node, Detail: what,
		Text: fmt.Sprintf("lab fault inject %s on %s", what, node),
	}
	s.Recorder.Note(asked)
	if err := fault.Inject(ctx, s.lab, fault.Target{Node: node}, f); err != nil {
		t.Fatal(err)
	}
	return asked
}

// CheckFaults checks that the lab lists faults of exactly these kinds of the
// scenario.
func (s *Stage) CheckFaults(ctx context.Context, t *testing.T, want ...string) {
	t.Helper()
	list, err := fault.List(ctx, s.lab)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, f := range list {
		if f.ID == s.faultID() {
			got = append(got, f.Kind)
		}
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("lab fault list has %v, want %v", got, want)
	}
}

// Poke has the kubelet look at a Pod now. After a failed prepare it would do so by
// itself only with the next regular look, after 60 to 90 s.
func (s *Stage) Poke(ctx context.Context, t *testing.T, pod string) {
	t.Helper()
	patch := fmt.Appendf(nil, `{"metadata":{"annotations":{"%s/poked":%q}}}`, api.DriverName, time.Now().Format(time.RFC3339Nano))
	if _, err := s.Client.CoreV1().Pods(s.Namespace).Patch(ctx, pod, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Fatalf("poke Pod %s: %v", pod, err)
	}
}

// AwaitPoked is Await for what takes the kubelet's look at a Pod, which it gets
// every second.
func (s *Stage) AwaitPoked(ctx context.Context, t *testing.T, d time.Duration, pod, what string, match Match) timeline.Event {
	t.Helper()
	ctx, cancel := context.WithTimeoutCause(ctx, d, fmt.Errorf("not within %s", d))
	defer cancel()
	for {
		s.Poke(ctx, t, pod)
		once, stop := context.WithTimeout(ctx, time.Second)
		e, err := s.Recorder.Wait(once, what, match)
		stop()
		switch {
		case err == nil:
			return e
		case ctx.Err() != nil:
			t.Fatal(err)
		}
	}
}

// CheckQuiet checks that for a while nothing happens that match finds.
func (s *Stage) CheckQuiet(ctx context.Context, t *testing.T, d time.Duration, what string, match Match) {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	if e, err := s.Recorder.Wait(ctx, what, match); err == nil {
		t.Errorf("%s, which should not: %s", what, e.Text)
	}
}
