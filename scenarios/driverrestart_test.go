// Scenario driver-restart: a driver that is replaced between prepare and
// unprepare knows what its predecessor prepared.
//
// Given a Pod that uses a GPU, when the driver's Pod on its node is deleted and
// replaced, then the Pod runs on undisturbed, the new driver counts the claim
// as prepared, and when the Pod is deleted, the new driver unprepares the claim
// and leaves nothing.

package scenarios

import (
	"context"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/e2e-framework/pkg/envconf"
	"sigs.k8s.io/e2e-framework/pkg/features"

	"github.com/dra-lab/dra-lab/driver/api"
	"github.com/dra-lab/dra-lab/lab/timeline"
	"github.com/dra-lab/dra-lab/scenarios/internal/stage"
)

func TestDriverRestart(t *testing.T) {
	s := &hold{Stage: stage.New(t, "driver-restart")}
	s.Play(t, features.New("driver restart").
		Setup(s.Begin).
		Assess("a Pod uses a GPU", s.start).
		Assess("the driver is replaced, and the new one knows the claim", s.replaceDriver).
		Assess("the Pod was not disturbed", s.checkUndisturbed).
		Assess("the new driver unprepares the claim", s.stop))
}

func (s *hold) replaceDriver(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
	node := s.grant.GPU.Node
	old, err := s.DriverPod(ctx, node)
	if err != nil {
		t.Fatal(err)
	}
	restarting := s.Note("the driver's Pod "+old.Name+" is deleted", node)
	if err := s.Client.CoreV1().Pods(old.Namespace).Delete(ctx, old.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	s.Await(ctx, t, long, "the new driver to serve",
		stage.Is(timeline.DriverStep, stage.Detail(api.StepRegistered), stage.After(restarting), stage.Node(node)))
	if err := s.AwaitDriver(ctx, node, string(old.UID)); err != nil {
		t.Fatal(err)
	}
	s.CheckPrepared(ctx, t, s.grant)
	return ctx
}

func (s *hold) checkUndisturbed(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
	pod, err := s.Client.CoreV1().Pods(s.Namespace).Get(ctx, "hold", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range pod.Status.ContainerStatuses {
		if c.RestartCount != 0 || c.State.Running == nil {
			t.Errorf("container %s restarted %d times, state %+v", c.Name, c.RestartCount, c.State)
		}
	}
	return ctx
}
