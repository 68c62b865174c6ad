// Scenario requests: whichever way a Pod asks for a GPU, its program finds the
// one that it was given.
//
// Given a Pod that prefers a GPU which does not exist and is content with any,
// and a Pod that asks for a resource by name as it would of a device plugin,
// when they are created, then each program finds its GPU, and they are two.
// Given a monitoring Pod with admin access to all GPUs of a node, then it runs
// beside them, takes none of them away, and its end disturbs nobody.

package scenarios

import (
	"context"
	_ "embed"
	"fmt"
	"maps"
	"strings"
	"testing"

	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/e2e-framework/pkg/envconf"
	"sigs.k8s.io/e2e-framework/pkg/features"

	"github.com/dra-lab/dra-lab/driver/api"
	"github.com/dra-lab/dra-lab/lab/timeline"
	"github.com/dra-lab/dra-lab/lab/timeline/workload"
	"github.com/dra-lab/dra-lab/scenarios/internal/stage"
)

//go:embed requests.yaml
var requestsManifest string //nolint:gochecknoglobals // filled by the compiler

type requests struct {
	*stage.Stage
	baseline map[stage.GPU]uint64
	parts    []string
	grants   map[string]stage.Grant
}

func TestRequests(t *testing.T) {
	s := &requests{Stage: stage.New(t, "requests"), grants: map[string]stage.Grant{}}
	s.Play(t, features.New("requests").
		Setup(s.Begin).
		Setup(s.read).
		Assess("alternatives and resource names lead to a GPU", s.startBoth).
		Assess("a monitor sees all GPUs and takes none", s.monitor).
		Assess("everything is given back", s.stop))
}

func (s *requests) read(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
	var err error
	if s.baseline, err = s.Memory(ctx); err != nil {
		t.Fatal(err)
	}
	s.parts = strings.SplitAfterN(requestsManifest, "\n---\n", 4)
	return ctx
}

func (s *requests) startBoth(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
	if err := s.Create(ctx, []byte(strings.Join(s.parts[:3], ""))); err != nil {
		t.Fatal(err)
	}
	for _, pod := range []string{"alternatives", "extended"} {
		s.Await(ctx, t, stage.Start, "Pod "+pod+" to be Ready", stage.Is(timeline.PodReady, stage.Pod(pod)))
		s.grants[pod] = s.AwaitGrant(ctx, t, stage.Pod(pod))
		s.AwaitProgram(ctx, t, pod, s.grants[pod])
	}
	if s.grants["alternatives"].GPU == s.grants["extended"].GPU {
		t.Errorf("both Pods have %s", s.grants["extended"].GPU)
	}
	allocated := s.Await(ctx, t, soon, "the allocation", stage.Is(timeline.ClaimAllocated, stage.Pod("alternatives")))
	if allocated.Detail != "gpu/any" {
		t.Errorf("the request %q was satisfied, want gpu/any", allocated.Detail)
	}
	return ctx
}

func (s *requests) monitor(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
	patch := fmt.Sprintf(`{"metadata":{"labels":{%q:"true"}}}`, resourcev1.DRAAdminNamespaceLabelKey)
	if _, err := s.Client.CoreV1().Namespaces().Patch(ctx, s.Namespace, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	perNode := map[string]int{}
	for gpu := range s.baseline {
		perNode[gpu.Node]++
	}
	count := perNode[s.grants["extended"].GPU.Node]
	idle := maps.Clone(s.baseline)
	for _, g := range s.grants {
		delete(idle, g.GPU)
	}
	if err := s.Create(ctx, fmt.Appendf(nil, s.parts[3], count)); err != nil {
		t.Fatal(err)
	}
	started := s.Await(ctx, t, stage.Start, "the monitor", stage.Is(timeline.Workload(workload.EventStarted), stage.Pod("monitor")))
	seen, err := api.ParseDevices(started.Workload.Devices)
	if err != nil {
		t.Fatal(err)
	}
	if len(seen) != count {
		t.Errorf("the monitor sees %v, want %d GPUs", seen, count)
	}
	s.CheckMemory(ctx, t, idle)
	if err := s.Client.CoreV1().Pods(s.Namespace).Delete(ctx, "monitor", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	s.Await(ctx, t, soon, "the end of the monitor", stage.Is(timeline.PodGone, stage.Pod("monitor")))
	for _, g := range s.grants {
		s.CheckPrepared(ctx, t, g)
	}
	s.CheckMemory(ctx, t, idle)
	return ctx
}

func (s *requests) stop(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
	for pod, g := range s.grants {
		if err := s.Client.CoreV1().Pods(s.Namespace).Delete(ctx, pod, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		s.Await(ctx, t, soon, "unprepare", stage.Is(timeline.Unprepared, stage.Claim(g.Claim)))
		s.Await(ctx, t, soon, "the end of the claim", stage.Is(timeline.ClaimGone, stage.Claim(g.Claim)))
		s.CheckNoTrace(ctx, t, g)
	}
	s.CheckMemory(ctx, t, s.baseline)
	return ctx
}
