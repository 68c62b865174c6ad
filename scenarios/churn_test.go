// Scenario churn: the driver dies again and again while Pods come and go, and
// every Pod runs.
//
// Given Jobs whose Pods each use a GPU for a second, four at a time, when the
// driver is killed with SIGKILL fifty times, on one node after the other and
// whatever it is doing, then not one Pod fails, all Jobs complete, and nothing
// of any claim is left on any node.

package scenarios

import (
	"context"
	"fmt"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/e2e-framework/pkg/envconf"
	"sigs.k8s.io/e2e-framework/pkg/features"

	"github.com/dra-lab/dra-lab/scenarios/internal/stage"
)

const (
	churnKills = 50
	// churnTime is what the last Pods may take once the driver is left alone: one
	// whose prepare failed waits for up to two minutes for the kubelet to try
	// again.
	churnTime = 4 * time.Minute
)

type churn struct{ jobs }

func TestChurn(t *testing.T) {
	s := &churn{jobs{Stage: stage.New(t, "churn")}}
	s.Play(t, features.New("churn").
		Setup(s.Begin).
		Setup(s.prepare).
		Assess("the driver is killed while Pods come and go", s.kill).
		Assess("all Pods ran", s.complete).
		Assess("nothing of the claims is left", s.checkClean))
}

func (s *churn) kill(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
	for kill := range churnKills {
		s.keepBusy(ctx, t)
		node := s.nodes[kill%len(s.nodes)]
		old, err := s.DriverPod(ctx, node)
		if err != nil {
			t.Fatal(err)
		}
		s.Note(fmt.Sprintf("kill -9 of the driver, %d of %d", kill+1, churnKills), node)
		if _, err := s.OnNode(ctx, node, "pkill", "-KILL", "-x", "driver"); err != nil {
			t.Fatal(err)
		}
		// A container that dies too often has to wait longer and longer; a new
		// Pod has not.
		if err := s.Client.CoreV1().Pods(old.Namespace).Delete(ctx, old.Name, metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)}); err != nil {
			t.Fatal(err)
		}
		if err := s.AwaitDriver(ctx, node, string(old.UID)); err != nil {
			t.Fatal(err)
		}
	}
	return ctx
}

func (s *churn) complete(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
	s.Remark("%d Pods ran, the driver was killed %d times", s.jobs.complete(ctx, t), churnKills)
	return ctx
}
