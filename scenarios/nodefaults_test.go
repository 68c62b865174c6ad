// Scenario node-faults: what happens to a node's kubelet, container runtime and
// network leaves a running Pod and its GPU alone.
//
// Given a Pod that uses a GPU, when its node is cut off from the API server, then
// a new Pod is prepared only after that; when the kubelet is stopped, a Pod that is
// deleted is unprepared only after that; when the kubelet is killed or restarted,
// the driver registers anew; when containerd is restarted, programs run on. All
// the while the first Pod is not disturbed, and in the end nothing is left.

package scenarios

import (
	"context"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/e2e-framework/pkg/envconf"
	"sigs.k8s.io/e2e-framework/pkg/features"

	"github.com/dra-lab/dra-lab/driver/api"
	"github.com/dra-lab/dra-lab/lab/timeline"
	"github.com/dra-lab/dra-lab/scenarios/internal/stage"
)

type nodeFaults struct{ steady }

func TestNodeFaults(t *testing.T) {
	s := &nodeFaults{steady{faulty: faulty{Stage: stage.New(t, "node-faults")}}}
	s.Play(t, features.New("node faults").
		Setup(s.Begin).
		Setup(s.look).
		Assess("a Pod uses a GPU", s.startPod).
		Assess("a Pod that comes while the network is cut is prepared afterwards", s.cut).
		Assess("a Pod that goes while the kubelet is stopped is unprepared afterwards", s.stopped).
		Assess("a kubelet that was killed has the driver register anew", s.restarts(api.FaultKubeletKill)).
		Assess("so does one that was restarted", s.restarts(api.FaultKubeletRestart)).
		Assess("a restart of containerd ends no program", s.containerd).
		Assess("the Pod was not disturbed", s.checkUndisturbed).
		Assess("nothing is left", s.stopPod).
		Assess("everything is as it was", s.checkClean))
}

func (s *nodeFaults) cut(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
	s.BreakNode(ctx, t, s.node, api.Fault{Kind: api.FaultNetworkCut})
	s.CheckFaults(ctx, t, api.FaultNetworkCut)
	s.create(ctx, t, "late", s.node, 1)
	s.Await(ctx, t, soon, "Pod late to be bound", stage.Is(timeline.PodScheduled, stage.Pod("late")))
	s.CheckQuiet(ctx, t, 4*time.Second, "it is prepared", stage.Is(timeline.PrepareStarted, stage.Claim("late")))
	mended := s.Mend(ctx, t)
	prepared := s.Await(ctx, t, long, "its claim to be prepared", stage.Is(timeline.Prepared, stage.Claim("late")))
	s.Measure(t, "network mended, to prepared", mended, prepared, 15*time.Second)
	s.Await(ctx, t, stage.Start, "Pod late to be Ready", stage.Is(timeline.PodReady, stage.Pod("late")))
	return ctx
}

func (s *nodeFaults) stopped(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
	grant := s.grant(ctx, t, "late")
	s.BreakNode(ctx, t, s.node, api.Fault{Kind: api.FaultKubeletStop})
	s.CheckFaults(ctx, t, api.FaultKubeletStop)
	s.remove(ctx, t, "late")
	s.CheckQuiet(ctx, t, 3*time.Second, "it is unprepared", stage.Is(timeline.Unprepared, stage.Claim("late")))
	mended := s.Mend(ctx, t)
	unprepared := s.Await(ctx, t, long, "unprepare", stage.Is(timeline.Unprepared, stage.Claim("late")))
	s.Measure(t, "kubelet started, to unprepared", mended, unprepared, 30*time.Second)
	s.Await(ctx, t, long, "the end of the Pod", stage.Is(timeline.PodGone, stage.Pod("late")))
	s.CheckNoTrace(ctx, t, grant)
	return ctx
}

func (s *nodeFaults) restarts(kind string) func(context.Context, *testing.T, *envconf.Config) context.Context {
	return func(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
		asked := s.BreakNode(ctx, t, s.node, api.Fault{Kind: kind})
		s.CheckFaults(ctx, t) // it is over
		registered := s.Await(ctx, t, long, "the registration",
			stage.Is(timeline.DriverStep, stage.Detail(api.StepRegistered), stage.Node(s.node), stage.After(asked)))
		s.Measure(t, kind+", to registered", asked, registered, 15*time.Second)
		s.CheckPrepared(ctx, t, s.grant(ctx, t, "steady"))
		return ctx
	}
}

func (s *nodeFaults) containerd(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
	restarted := s.BreakNode(ctx, t, s.node, api.Fault{Kind: api.FaultContainerdRestart})
	s.CheckQuiet(ctx, t, 3*time.Second, "a program ends", stage.Is(timeline.ContainerExited, stage.Pod("steady")))
	s.Remark("the kubelet has wiped the node's ResourceSlices when it restarted; the driver's slice controller waits 30 s before it corrects that")
	s.create(ctx, t, "after", s.node, 1)
	ready := s.Await(ctx, t, long, "a new Pod to be Ready", stage.Is(timeline.PodReady, stage.Pod("after")))
	s.Measure(t, "containerd restarted, to a new Pod that is Ready", restarted, ready, time.Minute)
	s.stop(ctx, t, "after")
	return ctx
}

func (s *nodeFaults) checkUndisturbed(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
	pod, err := s.Client.CoreV1().Pods(s.Namespace).Get(ctx, "steady", metav1.GetOptions{})
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
