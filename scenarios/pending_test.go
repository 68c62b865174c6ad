// Scenario pending: a Pod that asks for more GPUs than a node has stays pending
// and says why, and starts nothing.
//
// Given a claim for one GPU more than any node has, when a Pod names it, then
// the scheduler gives the reason, the claim is not allocated, and no driver is
// asked to prepare anything; when the Pod is deleted, it goes at once.

package scenarios

import (
	"context"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/e2e-framework/pkg/envconf"
	"sigs.k8s.io/e2e-framework/pkg/features"

	"github.com/dra-lab/dra-lab/lab/timeline"
	"github.com/dra-lab/dra-lab/scenarios/internal/stage"
)

const pendingManifest = `
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata:
  name: too-many
spec:
  devices:
    requests:
    - name: gpus
      exactly:
        deviceClassName: gpu.lab.example
        allocationMode: ExactCount
        count: %d
---
apiVersion: v1
kind: Pod
metadata:
  name: greedy
spec:
  restartPolicy: Never
  containers:
  - name: trainer
    image: trainer
    args: [-hold]
    resources:
      claims:
      - name: gpus
  resourceClaims:
  - name: gpus
    resourceClaimName: too-many
`

type pending struct {
	*stage.Stage
}

func TestPending(t *testing.T) {
	s := &pending{stage.New(t, "pending")}
	s.Play(t, features.New("pending").
		Setup(s.Begin).
		Assess("the Pod says why it is not scheduled", s.ask).
		Assess("nothing is allocated or prepared", s.checkNothing).
		Assess("the Pod goes at once", s.remove))
}

func (s *pending) ask(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
	gpus, err := s.GPUs(ctx)
	if err != nil {
		t.Fatal(err)
	}
	perNode := map[string]int{}
	most := 0
	for _, g := range gpus {
		perNode[g.Node]++
		most = max(most, perNode[g.Node])
	}
	if err := s.Create(ctx, fmt.Appendf(nil, pendingManifest, most+1)); err != nil {
		t.Fatal(err)
	}
	s.Await(ctx, t, soon, "the reason", stage.Is(timeline.PodUnschedulable, stage.Pod("greedy"), stage.Says("cannot allocate all claims")))
	return ctx
}

func (s *pending) checkNothing(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
	pod, err := s.Client.CoreV1().Pods(s.Namespace).Get(ctx, "greedy", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if pod.Status.Phase != corev1.PodPending || pod.Spec.NodeName != "" {
		t.Errorf("the Pod is %s on node %q, want Pending on none", pod.Status.Phase, pod.Spec.NodeName)
	}
	for _, kind := range []timeline.Kind{timeline.ClaimAllocated, timeline.PrepareStarted} {
		if e, ok := s.Recorder.Timeline().First(stage.Is(kind)); ok {
			t.Errorf("unexpected: %s", e.Text)
		}
	}
	return ctx
}

func (s *pending) remove(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
	if err := s.Client.CoreV1().Pods(s.Namespace).Delete(ctx, "greedy", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	s.Await(ctx, t, soon, "the end of the Pod", stage.Is(timeline.PodGone, stage.Pod("greedy")))
	return ctx
}
