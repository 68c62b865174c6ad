// Scenario unprepare-faults: a claim is held until it is unprepared, however long
// the driver fails to do that.
//
// Given a Pod with a GPU, when unprepare fails, takes long or does not return, then
// the Pod does not go and the node keeps its claim, and when that is over, the
// kubelet's next call unprepares it. Nothing is left.

package scenarios

import (
	"context"
	"testing"
	"time"

	"sigs.k8s.io/e2e-framework/pkg/envconf"
	"sigs.k8s.io/e2e-framework/pkg/features"

	"github.com/dra-lab/dra-lab/driver/api"
	"github.com/dra-lab/dra-lab/lab/timeline"
	"github.com/dra-lab/dra-lab/scenarios/internal/stage"
)

type unprepareFaults struct{ faulty }

func TestUnprepareFaults(t *testing.T) {
	s := &unprepareFaults{faulty{Stage: stage.New(t, "unprepare-faults")}}
	s.Play(t, features.New("unprepare faults").
		Setup(s.Begin).
		Setup(s.look).
		Assess("a claim is held until it is unprepared, whatever keeps the driver from it", s.unprepare).
		Assess("everything is as it was", s.checkClean))
}

func (s *unprepareFaults) unprepare(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
	node := s.nodes[0]
	fails := func(pod string) stage.Match {
		return stage.Is(timeline.UnprepareFailed, stage.Claim(pod), stage.Says("injected fault unprepare-fails"))
	}
	for _, c := range []struct {
		fault api.Fault
		sees  stage.Match
	}{
		{api.Fault{Kind: api.FaultUnprepareFails}, fails(api.FaultUnprepareFails)},
		{api.Fault{Kind: api.FaultUnprepareSlow, Code: 30}, acts(node, api.FaultUnprepareSlow)},
		{api.Fault{Kind: api.FaultUnprepareHangs}, acts(node, api.FaultUnprepareHangs)},
	} {
		pod := c.fault.Kind
		s.start(ctx, t, pod, node, 1)
		grant := s.grant(ctx, t, pod)
		s.BreakNode(ctx, t, node, c.fault)
		s.remove(ctx, t, pod)
		s.Await(ctx, t, soon, pod+" to show", c.sees)
		s.CheckQuiet(ctx, t, time.Second, "it is unprepared", stage.Is(timeline.Unprepared, stage.Claim(pod)))
		s.CheckPrepared(ctx, t, grant)
		mended := s.Mend(ctx, t)
		unprepared := s.Await(ctx, t, soon, "unprepare", stage.Is(timeline.Unprepared, stage.Claim(pod)))
		s.Measure(t, pod+" cleared, to unprepared", mended, unprepared, 25*time.Second)
		s.Await(ctx, t, soon, "the end of the Pod", stage.Is(timeline.PodGone, stage.Pod(pod)))
		s.CheckNoTrace(ctx, t, grant)
	}
	return ctx
}
