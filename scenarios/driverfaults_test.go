// Scenario driver-faults: whatever goes wrong in the driver while it prepares, the
// kubelet's next call finds the node whole.
//
// Given a node with GPUs, when prepare fails, is slow or hangs for a while, when
// there is no space for the checkpoint or for CDI specs, when the API server is
// out of reach or the driver is killed between two steps, then the Pod waits, its
// event says why, and it runs once that is over. Nothing is left of any of them.

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

// prepareFault is a fault and what a Pod that starts meanwhile sees of it.
type prepareFault struct {
	pod   string
	fault api.Fault
	sees  func(s *driverFaults, pod string) stage.Match
	mend  bool // it does not end by itself
}

type driverFaults struct {
	faulty
	node string
}

func TestDriverFaults(t *testing.T) {
	s := &driverFaults{faulty: faulty{Stage: stage.New(t, "driver-faults")}}
	feature := features.New("driver faults").Setup(s.Begin).Setup(s.look).Setup(s.choose)
	for _, c := range []prepareFault{
		{pod: "fails", fault: api.Fault{Kind: api.FaultPrepareFails, Times: 1}, sees: failed("injected fault prepare-fails")},
		{pod: "slow", fault: api.Fault{Kind: api.FaultPrepareSlow, Code: 2, Times: 1}, sees: acting(api.FaultPrepareSlow)},
		{pod: "hangs", fault: api.Fault{Kind: api.FaultPrepareHangs}, sees: acting(api.FaultPrepareHangs), mend: true},
		{pod: "cdi-full", fault: api.Fault{Kind: api.FaultCDIFull, Times: 1}, sees: failed("no space left on device")},
		{pod: "checkpoint-full", fault: api.Fault{Kind: api.FaultCheckpointFull, Times: 1}, sees: failed("no space left on device")},
		{pod: "unreachable", fault: api.Fault{Kind: api.FaultAPIUnreachable}, sees: warned("injected fault api-unreachable"), mend: true},
		{pod: "killed", fault: api.Fault{Kind: api.FaultDriverKill, Step: "prepare/bound", Times: 1}, sees: started},
	} {
		feature.Assess("the Pod runs once "+c.fault.Kind+" is over", func(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
			s.prepare(ctx, t, c)
			return ctx
		})
	}
	s.Play(t, feature.
		Assess("everything is as it was", s.checkClean))
}

func (s *driverFaults) choose(ctx context.Context, _ *testing.T, _ *envconf.Config) context.Context {
	s.node = s.nodes[0]
	return ctx
}

// failed is a prepare that fails with these words.
func failed(says string) func(*driverFaults, string) stage.Match {
	return func(_ *driverFaults, pod string) stage.Match {
		return stage.Is(timeline.PrepareFailed, stage.Claim(pod), stage.Says(says))
	}
}

// warned is an event of the Pod with these words: the driver did not get as far as
// preparing.
func warned(says string) func(*driverFaults, string) stage.Match {
	return func(_ *driverFaults, pod string) stage.Match {
		return stage.Is(timeline.Warning, stage.Pod(pod), stage.Says(says))
	}
}

// acting is the driver's word that the fault acts.
func acting(kind string) func(*driverFaults, string) stage.Match {
	return func(s *driverFaults, _ string) stage.Match { return acts(s.node, kind) }
}

// started is the start of a new driver.
func started(s *driverFaults, _ string) stage.Match { return driverStep(s.node, api.StepStarted) }

func (s *driverFaults) prepare(ctx context.Context, t *testing.T, c prepareFault) {
	t.Helper()
	asked := s.BreakNode(ctx, t, s.node, c.fault)
	s.CheckFaults(ctx, t, c.fault.Kind)
	s.create(ctx, t, c.pod, s.node, 1)
	sees := c.sees(s, c.pod)
	seen := s.Await(ctx, t, soon, c.fault.Kind+" to show", func(e timeline.Event) bool { return stage.After(asked)(e) && sees(e) })
	s.CheckQuiet(ctx, t, 500*time.Millisecond, "the Pod runs", stage.Is(timeline.ContainerStarted, stage.Pod(c.pod)))
	if c.mend {
		s.Mend(ctx, t)
	}
	prepared := s.AwaitPoked(ctx, t, long, c.pod, "its claim to be prepared", stage.Is(timeline.Prepared, stage.Claim(c.pod)))
	s.Await(ctx, t, stage.Start, "Pod "+c.pod+" to be Ready", stage.Is(timeline.PodReady, stage.Pod(c.pod)))
	s.CheckPrepared(ctx, t, s.grant(ctx, t, c.pod))
	s.Measure(t, c.fault.Kind+" seen, to prepared", seen, prepared, 30*time.Second)
	s.Mend(ctx, t)
	s.stop(ctx, t, c.pod)
}
