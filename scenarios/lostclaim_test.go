// Scenario lost-claim: the driver gives back the GPU of a claim that vanished
// behind the kubelet's back.
//
// Given a Pod that uses a GPU, when its node's kubelet is stopped and loses its
// record of claims, and the Pod is removed by force meanwhile, then nobody asks
// for the claim to be unprepared: the scheduler takes the GPU for free, and the
// driver still holds it. The driver finds that the API server no longer has the
// claim, and unprepares it, once no process uses the GPU.

package scenarios

import (
	"cmp"
	"context"
	"fmt"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/e2e-framework/pkg/envconf"
	"sigs.k8s.io/e2e-framework/pkg/features"

	"github.com/dra-lab/dra-lab/driver/api"
	"github.com/dra-lab/dra-lab/lab/timeline"
	"github.com/dra-lab/dra-lab/scenarios/internal/stage"
)

// kubeletClaims is the kubelet's record of the claims that it has had prepared.
const kubeletClaims = "/var/lib/kubelet/dra_manager_state"

type lostClaim struct{ *hold }

func TestLostClaim(t *testing.T) {
	s := lostClaim{&hold{Stage: stage.New(t, "lost-claim")}}
	// Whatever happens: the node must not stay without its kubelet.
	t.Cleanup(func() {
		if s.grant.GPU.Node == "" {
			return
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), soon)
		defer cancel()
		if _, err := s.OnNode(ctx, s.grant.GPU.Node, "systemctl", "start", "kubelet"); err != nil {
			t.Errorf("start the kubelet: %v", err)
		}
	})
	s.Play(t, features.New("lost claim").
		Setup(s.Begin).
		Assess("a Pod uses a GPU", s.start).
		Assess("the kubelet loses its record while the Pod is removed by force", s.lose).
		Assess("the driver does not take the GPU from the program that still runs", s.checkHeld).
		Assess("the driver unprepares the claim when the program has ended", s.collect))
}

func (s lostClaim) lose(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
	node := s.grant.GPU.Node
	s.Note("systemctl stop kubelet; rm "+kubeletClaims, node)
	if _, err := s.OnNode(ctx, node, "systemctl", "stop", "kubelet"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.OnNode(ctx, node, "rm", kubeletClaims); err != nil {
		t.Fatal(err)
	}
	if err := s.Client.CoreV1().Pods(s.Namespace).Delete(ctx, "hold", metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)}); err != nil {
		t.Fatal(err)
	}
	s.Await(ctx, t, soon, "the end of the claim", stage.Is(timeline.ClaimGone, stage.Claim(s.grant.Claim)))
	return ctx
}

// checkHeld waits for the driver to notice. Without a kubelet the program runs
// on, and the driver's reports are only in its log on the node.
func (s lostClaim) checkHeld(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
	waiting, cancel := context.WithTimeoutCause(ctx, long, fmt.Errorf("the driver said nothing within %s", long))
	defer cancel()
	const follow = `grep -q -m 1 "$1.*not while it is used" <(tail -q -n +1 -F /var/log/pods/` + api.Namespace + `_driver-*/driver/*.log)`
	if _, err := s.OnNode(waiting, s.grant.GPU.Node, "bash", "-c", follow, "bash", s.grant.UID); err != nil {
		t.Fatal(cmp.Or(context.Cause(waiting), err))
	}
	s.Note("the driver has found the claim gone and its GPU in use", s.grant.GPU.Node)
	specs, err := s.OnNode(ctx, s.grant.GPU.Node, "find", api.CDIDir, "-name", "*"+s.grant.UID+"*")
	if err != nil {
		t.Fatal(err)
	}
	if specs == "" {
		t.Error("the claim has no CDI spec any more")
	}
	return ctx
}

func (s lostClaim) collect(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
	s.Note("systemctl start kubelet", s.grant.GPU.Node)
	if _, err := s.OnNode(ctx, s.grant.GPU.Node, "systemctl", "start", "kubelet"); err != nil {
		t.Fatal(err)
	}
	s.Await(ctx, t, long, "the claim to be collected", stage.Is(timeline.DriverStep, stage.Detail(api.StepCollected), stage.Claim(s.grant.Claim)))
	s.CheckNoTrace(ctx, t, s.grant)
	s.CheckMemory(ctx, t, s.baseline)
	return ctx
}
