package scenarios

import (
	"context"
	_ "embed"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/e2e-framework/pkg/envconf"

	"github.com/dra-lab/dra-lab/lab/timeline"
	"github.com/dra-lab/dra-lab/scenarios/internal/stage"
)

//go:embed hold.yaml
var holdManifest []byte //nolint:gochecknoglobals // filled by the compiler

// hold is a Pod that uses one GPU until it is deleted; several scenarios do
// something in between.
type hold struct {
	*stage.Stage
	created, ready timeline.Event
	grant          stage.Grant
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
	s.ready = s.Await(ctx, t, stage.Start, "the Pod to be Ready", stage.Is(timeline.PodReady, pod))
	s.created = s.Await(ctx, t, soon, "its creation", stage.Is(timeline.PodCreated, pod))
	s.grant = s.AwaitGrant(ctx, t, pod)
	s.AwaitProgram(ctx, t, "hold", s.grant)
	s.CheckPrepared(ctx, t, s.grant)
	return ctx
}

// stop deletes the Pod and waits until the driver has unprepared its claim.
func (s *hold) stop(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
	if err := s.Client.CoreV1().Pods(s.Namespace).Delete(ctx, "hold", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	claim := stage.Claim(s.grant.Claim)
	s.Await(ctx, t, soon, "unprepare", stage.Is(timeline.Unprepared, claim))
	s.Await(ctx, t, soon, "the end of the Pod", stage.Is(timeline.PodGone, stage.Pod("hold")))
	s.Await(ctx, t, soon, "the end of the claim", stage.Is(timeline.ClaimGone, claim))
	s.CheckNoTrace(ctx, t, s.grant)
	s.CheckMemory(ctx, t, s.baseline)
	return ctx
}
