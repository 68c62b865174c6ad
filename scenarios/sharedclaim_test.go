// Scenario shared-claim: two Pods share the GPU of one claim, which is
// unprepared only after the last of them.
//
// Given a claim that exists by itself and two Pods that name it, then both run
// on the node of the one GPU, and both programs find that same GPU; when the
// first Pod goes, then the claim stays prepared and the second Pod is not
// disturbed; when the second goes, then the claim is unprepared and
// deallocated.

package scenarios

import (
	"context"
	_ "embed"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/e2e-framework/pkg/envconf"
	"sigs.k8s.io/e2e-framework/pkg/features"

	"github.com/dra-lab/dra-lab/lab/timeline"
	"github.com/dra-lab/dra-lab/scenarios/internal/stage"
)

//go:embed sharedclaim.yaml
var sharedClaimManifest []byte //nolint:gochecknoglobals // filled by the compiler

const sharedClaim = "shared-gpu"

type sharing struct {
	*stage.Stage
	grant    stage.Grant
	baseline map[stage.GPU]uint64
}

func TestSharedClaim(t *testing.T) {
	s := &sharing{Stage: stage.New(t, "shared-claim")}
	s.Play(t, features.New("shared claim").
		Setup(s.Begin).
		Assess("both Pods run with the same GPU", s.startBoth).
		Assess("the claim stays prepared while one Pod is left", s.stopFirst).
		Assess("the claim is unprepared after the last Pod", s.stopSecond))
}

func (s *sharing) startBoth(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
	var err error
	if s.baseline, err = s.Memory(ctx); err != nil {
		t.Fatal(err)
	}
	if err := s.Create(ctx, sharedClaimManifest); err != nil {
		t.Fatal(err)
	}
	s.grant = s.AwaitGrant(ctx, t, stage.Claim(sharedClaim))
	for _, pod := range []string{"first", "second"} {
		s.Await(ctx, t, stage.Start, "Pod "+pod+" to be Ready", stage.Is(timeline.PodReady, stage.Pod(pod)))
		s.AwaitProgram(ctx, t, pod, s.grant)
	}
	claim, err := s.Client.ResourceV1().ResourceClaims(s.Namespace).Get(ctx, sharedClaim, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if n := len(claim.Status.ReservedFor); n != 2 {
		t.Errorf("the claim is reserved for %d Pods, want 2", n)
	}
	return ctx
}

func (s *sharing) stopFirst(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
	s.stop(ctx, t, "first")
	s.Await(ctx, t, soon, "the end of its reservation", stage.Is(timeline.ClaimUnreserved, stage.Claim(sharedClaim), stage.Pod("first")))
	s.CheckPrepared(ctx, t, s.grant)
	if e, ok := s.Recorder.Timeline().First(stage.Is(timeline.Unprepared, stage.Claim(sharedClaim))); ok {
		t.Errorf("the claim was unprepared although the second Pod uses it: %s", e.Text)
	}
	if e, ok := s.Recorder.Timeline().First(stage.Is(timeline.ContainerExited, stage.Pod("second"))); ok {
		t.Errorf("the second Pod was disturbed: %s", e.Text)
	}
	return ctx
}

func (s *sharing) stopSecond(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
	s.stop(ctx, t, "second")
	s.Await(ctx, t, soon, "unprepare", stage.Is(timeline.Unprepared, stage.Claim(sharedClaim)))
	s.Await(ctx, t, soon, "the end of the allocation", stage.Is(timeline.ClaimDeallocated, stage.Claim(sharedClaim)))
	s.CheckNoTrace(ctx, t, s.grant)
	s.CheckMemory(ctx, t, s.baseline)
	return ctx
}

func (s *sharing) stop(ctx context.Context, t *testing.T, pod string) {
	t.Helper()
	if err := s.Client.CoreV1().Pods(s.Namespace).Delete(ctx, pod, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	s.Await(ctx, t, soon, "the end of Pod "+pod, stage.Is(timeline.PodGone, stage.Pod(pod)))
}
