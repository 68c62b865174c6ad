package scenarios

import (
	"context"
	_ "embed"
	"fmt"
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/e2e-framework/pkg/envconf"

	"github.com/dra-lab/dra-lab/driver/api"
	"github.com/dra-lab/dra-lab/lab/timeline"
	"github.com/dra-lab/dra-lab/scenarios/internal/stage"
)

//go:embed fault.yaml
var faultManifest string

// faulty is what scenarios with faults have in common.
type faulty struct {
	*stage.Stage
	nodes    []string // with GPUs, by name
	baseline map[stage.GPU]uint64
}

// look finds the nodes, and how their GPUs are before anything happens.
func (s *faulty) look(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
	var err error
	if s.baseline, err = s.Memory(ctx); err != nil {
		t.Fatal(err)
	}
	for gpu := range s.baseline {
		if !slices.Contains(s.nodes, gpu.Node) {
			s.nodes = append(s.nodes, gpu.Node)
		}
	}
	slices.Sort(s.nodes)
	return ctx
}

// create makes a Pod with GPUs of a node, and its claim of the same name.
func (s *faulty) create(ctx context.Context, t *testing.T, pod, node string, gpus int) {
	t.Helper()
	if err := s.Create(ctx, fmt.Appendf(nil, faultManifest, pod, node, gpus)); err != nil {
		t.Fatal(err)
	}
}

// start is create, and waits until the Pod is Ready. It returns its GPUs by name.
func (s *faulty) start(ctx context.Context, t *testing.T, pod, node string, gpus int) []stage.GPU {
	t.Helper()
	s.create(ctx, t, pod, node, gpus)
	s.Await(ctx, t, stage.Start, "Pod "+pod+" to be Ready", stage.Is(timeline.PodReady, stage.Pod(pod)))
	return s.devices(ctx, t, pod)
}

// devices are the GPUs of the Pod's claim.
func (s *faulty) devices(ctx context.Context, t *testing.T, pod string) []stage.GPU {
	t.Helper()
	claim, err := s.Client.ResourceV1().ResourceClaims(s.Namespace).Get(ctx, pod, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if claim.Status.Allocation == nil {
		t.Fatalf("claim %s has no GPU", pod)
	}
	var gpus []stage.GPU
	for _, r := range claim.Status.Allocation.Devices.Results {
		gpus = append(gpus, stage.GPU{Node: r.Pool, Name: r.Device})
	}
	return gpus
}

// grant is the Pod's claim with its first GPU.
func (s *faulty) grant(ctx context.Context, t *testing.T, pod string) stage.Grant {
	t.Helper()
	claim, err := s.Client.ResourceV1().ResourceClaims(s.Namespace).Get(ctx, pod, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return stage.Grant{Claim: pod, UID: string(claim.UID), GPU: s.devices(ctx, t, pod)[0]}
}

// remove deletes the Pod. It does not wait.
func (s *faulty) remove(ctx context.Context, t *testing.T, pod string) timeline.Event {
	t.Helper()
	asked := s.Note("Pod "+pod+" is deleted", "")
	if err := s.Client.CoreV1().Pods(s.Namespace).Delete(ctx, pod, metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](1)}); err != nil {
		t.Fatal(err)
	}
	return asked
}

// stop deletes the Pod and waits until its claim is unprepared and it is gone.
func (s *faulty) stop(ctx context.Context, t *testing.T, pod string) {
	t.Helper()
	grant := s.grant(ctx, t, pod)
	s.remove(ctx, t, pod)
	s.Await(ctx, t, long, "unprepare of "+pod, stage.Is(timeline.Unprepared, stage.Claim(pod)))
	s.Await(ctx, t, long, "the end of Pod "+pod, stage.Is(timeline.PodGone, stage.Pod(pod)))
	s.CheckNoTrace(ctx, t, grant)
}

// checkClean is the last step: everything is as it was.
func (s *faulty) checkClean(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
	s.CheckFaults(ctx, t)
	s.CheckMemory(ctx, t, s.baseline)
	return ctx
}

// steady is a scenario in which one Pod, called steady, has a GPU of the last node
// all the while.
type steady struct {
	faulty
	node string
}

func (s *steady) startPod(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
	s.node = s.nodes[len(s.nodes)-1]
	s.start(ctx, t, "steady", s.node, 1)
	return ctx
}

func (s *steady) stopPod(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
	s.stop(ctx, t, "steady")
	return ctx
}

// anyOf is an event that one of matches finds.
func anyOf(matches ...stage.Match) stage.Match {
	return func(e timeline.Event) bool {
		return slices.ContainsFunc(matches, func(m stage.Match) bool { return m(e) })
	}
}

// podHealth is the step at which a Pod's status says of a GPU how it is.
func podHealth(pod string, gpu stage.GPU, health, says string) stage.Match {
	return stage.Is(timeline.PodHealth, stage.Pod(pod), stage.Device(gpu), stage.Detail(health), stage.Says(says))
}

// driverStep is a step that the driver on a node reports.
func driverStep(node, step string) stage.Match {
	return stage.Is(timeline.DriverStep, stage.Detail(step), stage.Node(node))
}

// acts is the step at which the driver on a node tells of a fault that acts.
func acts(node, kind string) stage.Match {
	return stage.Is(timeline.DriverStep, stage.Detail(api.StepFault), stage.Node(node), stage.Says(kind))
}
