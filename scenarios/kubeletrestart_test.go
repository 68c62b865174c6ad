// Scenario kubelet-restart: a kubelet that restarts leaves a running Pod and its
// GPU alone, and can still unprepare.
//
// Given a Pod that uses a GPU, when the kubelet on its node restarts, then it
// wipes the node's ResourceSlices, the driver registers anew and publishes them
// again, the Pod is not disturbed, and when it is deleted, its claim is
// unprepared and leaves nothing.

package scenarios

import (
	"context"
	"testing"

	"sigs.k8s.io/e2e-framework/pkg/envconf"
	"sigs.k8s.io/e2e-framework/pkg/features"

	"github.com/dra-lab/dra-lab/driver/api"
	"github.com/dra-lab/dra-lab/lab/timeline"
	"github.com/dra-lab/dra-lab/scenarios/internal/stage"
)

func TestKubeletRestart(t *testing.T) {
	s := &hold{Stage: stage.New(t, "kubelet-restart")}
	s.Play(t, features.New("kubelet restart").
		Setup(s.Begin).
		Assess("a Pod uses a GPU", s.start).
		Assess("the driver registers with the new kubelet and publishes its GPUs again", s.restartKubelet).
		Assess("the Pod was not disturbed", s.checkUndisturbed).
		Assess("the new kubelet has the claim unprepared", s.stop))
}

func (s *hold) restartKubelet(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
	node := stage.Node(s.grant.GPU.Node)
	restarting := s.Note("systemctl restart kubelet", s.grant.GPU.Node)
	if _, err := s.OnNode(ctx, s.grant.GPU.Node, "systemctl", "restart", "kubelet"); err != nil {
		t.Fatal(err)
	}
	after := stage.After(restarting)
	s.Await(ctx, t, long, "the registration", stage.Is(timeline.DriverStep, stage.Detail(api.StepRegistered), after, node))
	s.Remark("the kubelet has wiped the node's ResourceSlices; the driver's slice controller waits 30 s before it corrects that")
	s.Await(ctx, t, long, "the ResourceSlice", stage.Is(timeline.SlicePublished, after, node))
	s.CheckPrepared(ctx, t, s.grant)
	return ctx
}
