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

	"github.com/dra-lab/dra-lab/lab/timeline"
	"github.com/dra-lab/dra-lab/scenarios/internal/stage"
)

func TestBasic(t *testing.T) {
	s := &hold{Stage: stage.New(t, "basic")}
	s.Play(t, features.New("basic").
		Setup(s.Begin).
		Assess("the program finds the GPU that the claim promised", s.start).
		Assess("the Pod was Ready in time", s.checkTime).
		Assess("the Pod gives everything back", s.stop).
		Assess("unprepare comes after the end of the container", s.checkOrder))
}

func (s *hold) checkTime(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
	s.Measure(t, "Pod created to Ready", s.created, s.ready, readyLimit)
	return ctx
}

func (s *hold) checkOrder(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
	pod, claim := stage.Pod("hold"), stage.Claim(s.grant.Claim)
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
