// Scenario basic: a Pod gets the GPU that its claim promises, and gives
// everything back when it goes.
//
// Given a Pod with a claim for one GPU, when it is created, then it is Ready
// within 1.5 s, and its program finds that GPU and no other; when it is
// deleted, then the driver unprepares the claim only after the container has
// ended, and neither CDI spec nor checkpoint entry nor memory is left.

package scenarios

import (
	"context"
	"testing"

	"sigs.k8s.io/e2e-framework/pkg/envconf"
	"sigs.k8s.io/e2e-framework/pkg/features"

	"github.com/dra-lab/dra-lab/driver/api"
	"github.com/dra-lab/dra-lab/lab/timeline"
	"github.com/dra-lab/dra-lab/lab/timeline/workload"
	"github.com/dra-lab/dra-lab/scenarios/internal/stage"
)

func TestBasic(t *testing.T) {
	s := &hold{Stage: stage.New(t, "basic")}
	s.Play(t, features.New("basic").
		Setup(s.Begin).
		Assess("the Pod gets its GPU and is Ready in time", s.startInTime).
		Assess("the program finds the GPU that the claim promised", s.checkPromise).
		Assess("the Pod gives everything back", s.stop).
		Assess("unprepare comes after the end of the container", s.checkOrder))
}

func (s *hold) startInTime(ctx context.Context, t *testing.T, c *envconf.Config) context.Context {
	ctx = s.start(ctx, t, c)
	s.Measure(t, "Pod created to Ready", s.created, s.ready, readyLimit)
	return ctx
}

func (s *hold) checkPromise(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
	uuid, err := s.UUID(ctx, s.gpu)
	if err != nil {
		t.Fatal(err)
	}
	started := s.Await(ctx, t, soon, "the program", stage.Is(timeline.Workload(workload.EventStarted)))
	if want := (api.DeviceRef{Name: s.gpu.Name, UUID: uuid}).String(); started.Workload.Devices != want {
		t.Errorf("the program found %q, the claim promised %q", started.Workload.Devices, want)
	}
	return ctx
}

func (s *hold) checkOrder(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
	pod, claim := stage.Pod("hold"), stage.Claim(s.claim)
	s.InOrder(t,
		stage.Step{What: "deletion asked for", Match: stage.Is(timeline.PodDeleted, pod)},
		stage.Step{What: "unprepare started", Match: stage.Is(timeline.UnprepareStarted, claim)},
		stage.Step{What: "CDI spec removed", Match: stage.Is(timeline.UnprepareStep, claim, stage.Says("CDI spec removed"))},
		stage.Step{What: "memory back", Match: stage.Is(timeline.UnprepareStep, claim, stage.Says("memory"))},
		stage.Step{What: "checkpoint entry removed", Match: stage.Is(timeline.UnprepareStep, claim, stage.Says("checkpoint entry removed"))},
		stage.Step{What: "unprepared", Match: stage.Is(timeline.Unprepared, claim)},
		stage.Step{What: "Pod gone", Match: stage.Is(timeline.PodGone, pod)},
	)
	return ctx
}
