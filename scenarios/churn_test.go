// Scenario churn: the driver dies again and again while Pods come and go, and
// every Pod runs.
//
// Given Jobs whose Pods each use a GPU for a second, four at a time, when the
// driver is killed with SIGKILL fifty times, on one node after the other and
// whatever it is doing, then not one Pod fails, all Jobs complete, and nothing
// of any claim is left on any node.

package scenarios

import (
	"bytes"
	"context"
	_ "embed"
	"fmt"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/e2e-framework/pkg/envconf"
	"sigs.k8s.io/e2e-framework/pkg/features"

	"github.com/dra-lab/dra-lab/driver/api"
	"github.com/dra-lab/dra-lab/scenarios/internal/stage"
)

//go:embed churn.yaml
var churnManifest []byte //nolint:gochecknoglobals // filled by the compiler

const (
	churnKills = 50
	// churnTime is what the last Pods may take once the driver is left alone: one
	// whose prepare failed waits for up to two minutes for the kubelet to try
	// again.
	churnTime = 4 * time.Minute
)

type churn struct {
	*stage.Stage
	nodes    []string
	job      []byte
	jobs     int // created
	baseline map[stage.GPU]uint64
}

func TestChurn(t *testing.T) {
	s := &churn{Stage: stage.New(t, "churn")}
	s.Play(t, features.New("churn").
		Setup(s.Begin).
		Setup(s.prepare).
		Assess("the driver is killed while Pods come and go", s.kill).
		Assess("all Pods ran", s.complete).
		Assess("nothing of the claims is left", s.checkClean))
}

func (s *churn) prepare(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
	var err error
	if s.baseline, err = s.Memory(ctx); err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for gpu := range s.baseline {
		if !seen[gpu.Node] {
			seen[gpu.Node] = true
			s.nodes = append(s.nodes, gpu.Node)
		}
	}
	template, job, ok := bytes.Cut(churnManifest, []byte("\n---\n"))
	if !ok {
		t.Fatal("churn.yaml has no second part")
	}
	s.job = job
	if err := s.Create(ctx, template); err != nil {
		t.Fatal(err)
	}
	return ctx
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

// keepBusy has Pods come and go until the next call.
func (s *churn) keepBusy(ctx context.Context, t *testing.T) {
	t.Helper()
	list, err := s.Client.BatchV1().Jobs(s.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	rest := int32(0)
	for _, j := range list.Items {
		if j.Status.Failed > 0 {
			t.Fatalf("Job %s: %d Pods failed", j.Name, j.Status.Failed)
		}
		rest += *j.Spec.Completions - j.Status.Succeeded
	}
	if rest < 10 {
		if err := s.Create(ctx, s.job); err != nil {
			t.Fatal(err)
		}
		s.jobs++
	}
}

func (s *churn) complete(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
	jobs, err := s.AwaitJobs(ctx, churnTime)
	if err != nil {
		t.Fatal(err)
	}
	succeeded := int32(0)
	for _, j := range jobs {
		succeeded += j.Status.Succeeded
		if j.Status.Failed > 0 || j.Status.Succeeded != *j.Spec.Completions {
			t.Errorf("Job %s: %d Pods succeeded, %d failed", j.Name, j.Status.Succeeded, j.Status.Failed)
		}
	}
	if len(jobs) != s.jobs {
		t.Errorf("there are %d Jobs, want %d", len(jobs), s.jobs)
	}
	s.Remark("%d Pods ran, the driver was killed %d times", succeeded, churnKills)
	return ctx
}

func (s *churn) checkClean(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
	// The last Pods' claims are unprepared before their Pods count as done.
	for _, node := range s.nodes {
		status, err := s.DriverStatus(ctx, node)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range status.Claims {
			t.Errorf("%s: claim %s/%s is still in the checkpoint", node, c.Namespace, c.Name)
		}
		specs, err := s.OnNode(ctx, node, "find", api.CDIDir, "-name", "*"+api.DriverName+"*")
		if err != nil {
			t.Fatal(err)
		}
		if specs != "" {
			t.Errorf("%s: CDI specs are left: %s", node, specs)
		}
	}
	s.CheckMemory(ctx, t, s.baseline)
	return ctx
}
