// Scenario partitions: claims have partitions of one GPU in MIG mode, which are
// made for them and go with them.
//
// Given a GPU in MIG mode and two Pods that want a partition of it each, when they
// are created, then both run at the same time, and each finds its partition and
// nothing else; a Pod that wants the whole of the GPU waits meanwhile and says
// why; when the GPU has a memory error, then both Pods say that they are unhealthy
// and are evicted; when they are gone, then so are the partitions, and when the
// GPU is well again the third Pod has all of it.

package scenarios

import (
	"context"
	_ "embed"
	"fmt"
	"path"
	"strings"
	"testing"

	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/e2e-framework/pkg/envconf"
	"sigs.k8s.io/e2e-framework/pkg/features"

	"github.com/dra-lab/dra-lab/driver/api"
	"github.com/dra-lab/dra-lab/lab/timeline"
	"github.com/dra-lab/dra-lab/lab/timeline/workload"
	"github.com/dra-lab/dra-lab/scenarios/internal/stage"
)

//go:embed partitions.yaml
var partitionsManifest string //nolint:gochecknoglobals // filled by the compiler

type partitions struct {
	*stage.Stage
	gpu      stage.GPU // the whole
	profile  string    // of which there are two places: "3g.40gb"
	manifest []string  // the two Pods, then the one that wants all
	baseline map[stage.GPU]uint64
	grants   map[string]stage.Grant
}

func TestPartitions(t *testing.T) {
	s := &partitions{Stage: stage.New(t, "partitions"), grants: map[string]stage.Grant{}}
	if !s.find(t) {
		t.Skip("no GPU is in MIG mode: lab up --gpus simulated=h100:3,h100:1:mig")
	}
	s.Play(t, features.New("partitions").
		Setup(s.Begin).
		Assess("two Pods have a partition of one GPU each, and see no more", s.startTwo).
		Assess("the whole GPU cannot be had meanwhile", s.wait).
		Assess("a fault of the GPU reaches both", s.fail).
		Assess("the partitions go with their claims", s.checkGone).
		Assess("the GPU is a whole again", s.whole))
}

// find looks for a GPU in MIG mode.
func (s *partitions) find(t *testing.T) bool {
	t.Helper()
	err := s.EachDevice(t.Context(), func(g stage.GPU, d resourcev1.Device) {
		text := func(name resourcev1.QualifiedName) string { return ptr.Deref(d.Attributes[name].StringValue, "") }
		if profile := text(api.AttributeProfile); s.profile == "" && strings.HasPrefix(profile, "3g.") {
			s.gpu, s.profile = stage.GPU{Node: g.Node, Name: text(api.AttributeParent)}, profile
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return s.profile != ""
}

func (s *partitions) startTwo(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
	var err error
	if s.baseline, err = s.Memory(ctx); err != nil {
		t.Fatal(err)
	}
	uuid, err := s.UUID(ctx, s.gpu)
	if err != nil {
		t.Fatal(err)
	}
	s.manifest = strings.SplitAfterN(fmt.Sprintf(partitionsManifest, uuid, s.profile), "\n---\n", 4)
	if err := s.Create(ctx, []byte(strings.Join(s.manifest[:3], ""))); err != nil {
		t.Fatal(err)
	}
	seen := map[string]string{}
	for _, pod := range []string{"one", "other"} {
		g := s.AwaitGrant(ctx, t, stage.Pod(pod))
		s.grants[pod] = g
		if g.GPU.Node != s.gpu.Node || !strings.HasPrefix(g.GPU.Name, s.gpu.Name+"-mig-") {
			t.Errorf("Pod %s has %s, want a partition of %s", pod, g.GPU, s.gpu)
		}
		started := s.Await(ctx, t, stage.Start, "the program of Pod "+pod, stage.Is(timeline.Workload(workload.EventStarted), stage.Pod(pod)))
		devices, err := api.ParseDevices(started.Workload.Devices)
		if err != nil {
			t.Fatal(err)
		}
		if len(devices) != 1 || devices[0].Name != g.GPU.Name || !strings.HasPrefix(devices[0].UUID, "MIG-") {
			t.Errorf("the program of Pod %s found %q, want the partition %s and nothing else", pod, started.Workload.Devices, g.GPU.Name)
		}
		if other, ok := seen[devices[0].UUID]; ok {
			t.Errorf("Pods %s and %s both have %s", other, pod, devices[0].UUID)
		}
		seen[devices[0].UUID] = pod
		s.CheckPrepared(ctx, t, g)
	}
	if n := len(s.instances(ctx, t)); n != 2 {
		t.Errorf("%s is cut into %d partitions, want 2", s.gpu, n)
	}
	return ctx
}

// instances lists the partitions that the hardware has.
func (s *partitions) instances(ctx context.Context, t *testing.T) []string {
	t.Helper()
	out, err := s.OnNode(ctx, s.gpu.Node, "find", path.Join(api.HardwareDir, s.gpu.Name, "mig"), "-mindepth", "1", "-maxdepth", "1")
	if err != nil {
		t.Fatal(err)
	}
	return strings.Fields(out)
}

func (s *partitions) wait(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
	if err := s.Create(ctx, []byte(s.manifest[3])); err != nil {
		t.Fatal(err)
	}
	s.Await(ctx, t, soon, "the reason why the third Pod waits",
		stage.Is(timeline.PodUnschedulable, stage.Pod("whole"), stage.Says("cannot allocate all claims")))
	return ctx
}

func (s *partitions) fail(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
	s.Break(ctx, t, s.gpu, api.Fault{Kind: api.FaultECCDouble, Message: "scenario partitions"})
	for pod, g := range s.grants {
		s.Await(ctx, t, soon, "Unhealthy in the status of Pod "+pod,
			stage.Is(timeline.PodHealth, stage.Pod(pod), stage.Device(g.GPU), stage.Detail(api.HealthUnhealthy)))
		s.Await(ctx, t, soon, "the eviction of Pod "+pod, stage.Is(timeline.PodDeleted, stage.Pod(pod), stage.Detail(timeline.TaintEviction)))
	}
	return ctx
}

func (s *partitions) checkGone(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
	for _, g := range s.grants {
		claim := stage.Claim(g.Claim)
		s.Await(ctx, t, soon, "unprepare", stage.Is(timeline.Unprepared, claim))
		s.Await(ctx, t, soon, "the end of the claim", stage.Is(timeline.ClaimGone, claim))
		s.InOrder(t,
			stage.Step{What: "CDI spec removed", Match: stage.Is(timeline.UnprepareStep, claim, stage.Says("CDI spec removed"))},
			stage.Step{What: "memory back", Match: stage.Is(timeline.UnprepareStep, claim, stage.Says("back to its baseline"))},
			stage.Step{What: "partition destroyed", Match: stage.Is(timeline.UnprepareStep, claim, stage.Says("partitions "+g.GPU.Name+" destroyed"))},
			stage.Step{What: "checkpoint entry removed", Match: stage.Is(timeline.UnprepareStep, claim, stage.Says("checkpoint entry removed"))},
		)
		s.CheckNoTrace(ctx, t, g)
	}
	if left := s.instances(ctx, t); len(left) > 0 {
		t.Errorf("%s still has the partitions %v", s.gpu, left)
	}
	return ctx
}

func (s *partitions) whole(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
	s.Mend(ctx, t)
	g := s.AwaitGrant(ctx, t, stage.Pod("whole"))
	s.AwaitProgram(ctx, t, "whole", g)
	if g.GPU != s.gpu {
		t.Errorf("the third Pod has %s, want %s", g.GPU, s.gpu)
	}
	if err := s.Client.CoreV1().Pods(s.Namespace).Delete(ctx, "whole", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	s.Await(ctx, t, soon, "unprepare", stage.Is(timeline.Unprepared, stage.Claim(g.Claim)))
	s.Await(ctx, t, soon, "the end of the claim", stage.Is(timeline.ClaimGone, stage.Claim(g.Claim)))
	s.CheckNoTrace(ctx, t, g)
	s.CheckMemory(ctx, t, s.baseline)
	return ctx
}
