// Scenario shared-gpu: claims have parts of one GPU's memory, as many as fit.
//
// Given a shared GPU and three Pods that want two fifths of its memory each,
// when they are created, then two of them run on that GPU, each with its part,
// and the third waits; when one of the two goes, then the third takes its place.

package scenarios

import (
	"context"
	_ "embed"
	"fmt"
	"testing"

	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/e2e-framework/pkg/envconf"
	"sigs.k8s.io/e2e-framework/pkg/features"

	"github.com/dra-lab/dra-lab/driver/api"
	"github.com/dra-lab/dra-lab/lab/timeline"
	"github.com/dra-lab/dra-lab/scenarios/internal/stage"
)

//go:embed sharedgpu.yaml
var sharedGPUManifest string //nolint:gochecknoglobals // filled by the compiler

type sharedGPU struct {
	*stage.Stage
	gpu      stage.GPU
	memory   int64 // of the GPU
	baseline map[stage.GPU]uint64
	grants   map[string]stage.Grant
}

func TestSharedGPU(t *testing.T) {
	s := &sharedGPU{Stage: stage.New(t, "shared-gpu"), grants: map[string]stage.Grant{}}
	if !s.find(t) {
		t.Skip("no GPU is shared: lab up --gpus simulated=h100:3,t4:1:shared")
	}
	s.Play(t, features.New("shared GPU").
		Setup(s.Begin).
		Assess("two Pods have a part of one GPU each", s.startTwo).
		Assess("a third one waits until one of them goes", s.third).
		Assess("everything is given back", s.stop))
}

// find looks for a shared GPU.
func (s *sharedGPU) find(t *testing.T) bool {
	t.Helper()
	err := s.EachDevice(t.Context(), func(g stage.GPU, d resourcev1.Device) {
		if ptr.Deref(d.AllowMultipleAllocations, false) && s.memory == 0 {
			s.gpu, s.memory = g, ptr.To(d.Capacity[api.CapacityMemory].Value).Value()
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return s.memory > 0
}

func (s *sharedGPU) startTwo(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
	var err error
	if s.baseline, err = s.Memory(ctx); err != nil {
		t.Fatal(err)
	}
	uuid, err := s.UUID(ctx, s.gpu)
	if err != nil {
		t.Fatal(err)
	}
	part := s.memory * 2 / 5
	if err := s.Create(ctx, fmt.Appendf(nil, sharedGPUManifest, uuid, part)); err != nil {
		t.Fatal(err)
	}
	// Which two of the three it is, the scheduler decides.
	s.Await(ctx, t, soon, "the reason why one Pod waits", stage.Is(timeline.PodUnschedulable, stage.Says("cannot allocate all claims")))
	waiting := 0
	for _, pod := range []string{"first", "second", "third"} {
		if _, ok := s.Recorder.Timeline().First(stage.Is(timeline.PodUnschedulable, stage.Pod(pod))); ok {
			waiting++
			continue
		}
		s.grants[pod] = s.AwaitGrant(ctx, t, stage.Pod(pod))
		s.AwaitProgram(ctx, t, pod, s.grants[pod])
		if s.grants[pod].GPU != s.gpu {
			t.Errorf("Pod %s has %s, want a part of %s", pod, s.grants[pod].GPU, s.gpu)
		}
		s.CheckPrepared(ctx, t, s.grants[pod])
		s.Await(ctx, t, soon, "the part", stage.Is(timeline.PrepareStep, stage.Claim(s.grants[pod].Claim),
			stage.Says(fmt.Sprintf("%d MiB of %s", part>>20, s.gpu.Name))))
	}
	if waiting != 1 {
		t.Errorf("%d Pods wait, want 1", waiting)
	}
	return ctx
}

func (s *sharedGPU) third(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
	for pod, g := range s.grants {
		s.end(ctx, t, pod, g)
		break
	}
	for _, pod := range []string{"first", "second", "third"} {
		if _, ok := s.grants[pod]; !ok {
			s.grants[pod] = s.AwaitGrant(ctx, t, stage.Pod(pod))
			s.AwaitProgram(ctx, t, pod, s.grants[pod])
			return ctx
		}
	}
	t.Error("no Pod was waiting")
	return ctx
}

// end deletes a Pod. Its grant stays known, so that nobody waits for it again.
func (s *sharedGPU) end(ctx context.Context, t *testing.T, pod string, g stage.Grant) {
	t.Helper()
	if _, ok := s.Recorder.Timeline().First(stage.Is(timeline.PodDeleted, stage.Pod(pod))); ok {
		return
	}
	if err := s.Client.CoreV1().Pods(s.Namespace).Delete(ctx, pod, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	s.Await(ctx, t, soon, "unprepare", stage.Is(timeline.Unprepared, stage.Claim(g.Claim)))
	s.Await(ctx, t, soon, "the end of the claim", stage.Is(timeline.ClaimGone, stage.Claim(g.Claim)))
	s.CheckNoTrace(ctx, t, g)
}

func (s *sharedGPU) stop(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
	for pod, g := range s.grants {
		s.end(ctx, t, pod, g)
	}
	s.CheckMemory(ctx, t, s.baseline)
	return ctx
}
