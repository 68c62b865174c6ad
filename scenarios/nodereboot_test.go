// Scenario node-reboot: after a reboot of its node a Pod gets the same GPU again,
// although the node has lost the CDI spec of its claim.
//
// Given a Pod that uses a GPU, when its node is restarted, which empties /run, then
// the driver writes the CDI spec again from its checkpoint, the Pod's container
// runs again and finds the same GPU, and when the Pod is deleted, nothing is left.

package scenarios

import (
	"context"
	"testing"
	"time"

	"sigs.k8s.io/e2e-framework/pkg/envconf"
	"sigs.k8s.io/e2e-framework/pkg/features"

	"github.com/dra-lab/dra-lab/driver/api"
	"github.com/dra-lab/dra-lab/lab/timeline"
	"github.com/dra-lab/dra-lab/lab/timeline/workload"
	"github.com/dra-lab/dra-lab/scenarios/internal/stage"
)

type nodeReboot struct{ steady }

func TestNodeReboot(t *testing.T) {
	s := &nodeReboot{steady{faulty: faulty{Stage: stage.New(t, "node-reboot")}}}
	s.Play(t, features.New("node reboot").
		Setup(s.Begin).
		Setup(s.look).
		Assess("a Pod uses a GPU", s.startPod).
		Assess("after a reboot it uses the same GPU", s.reboot).
		Assess("nothing is left", s.stopPod).
		Assess("everything is as it was", s.checkClean))
}

func (s *nodeReboot) reboot(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
	before := s.Await(ctx, t, soon, "the program", stage.Is(timeline.Workload(workload.EventStarted), stage.Pod("steady")))
	asked := s.BreakNode(ctx, t, s.node, api.Fault{Kind: api.FaultNodeReboot})
	s.CheckFaults(ctx, t)
	registered := s.Await(ctx, t, long, "the driver to be registered",
		stage.Is(timeline.DriverStep, stage.Detail(api.StepRegistered), stage.Node(s.node), stage.After(asked)))
	s.Measure(t, "reboot, to the driver registered", asked, registered, time.Minute)
	again := s.AwaitPoked(ctx, t, 2*long, "steady", "the program to start again",
		stage.Is(timeline.Workload(workload.EventStarted), stage.Pod("steady"), stage.After(asked)))
	s.Measure(t, "reboot, to the program that runs again", asked, again, 2*time.Minute)
	if again.Workload.Devices != before.Workload.Devices {
		t.Errorf("the program found %q, before the reboot %q", again.Workload.Devices, before.Workload.Devices)
	}
	// It is ready when it has reached the API server, some time after the kubelet.
	if err := s.AwaitDriver(ctx, s.node, ""); err != nil {
		t.Fatal(err)
	}
	s.CheckPrepared(ctx, t, s.grant(ctx, t, "steady"))
	return ctx
}
