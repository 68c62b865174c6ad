package scenarios

import (
	"bytes"
	"context"
	_ "embed"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/e2e-framework/pkg/envconf"

	"github.com/dra-lab/dra-lab/driver/api"
	"github.com/dra-lab/dra-lab/scenarios/internal/stage"
)

//go:embed churn.yaml
var churnManifest []byte //nolint:gochecknoglobals // filled by the compiler

// jobs has Pods come and go, each with a GPU for a second, four at a time;
// several scenarios do something meanwhile.
type jobs struct {
	*stage.Stage
	nodes    []string
	job      []byte
	created  int
	removed  int   // of created, when they were complete
	ran      int32 // Pods of those that were removed
	baseline map[stage.GPU]uint64
}

func (s *jobs) prepare(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
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

// keepBusy has Pods come and go until the next call.
func (s *jobs) keepBusy(ctx context.Context, t *testing.T) {
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
		if j.DeletionTimestamp == nil {
			rest += *j.Spec.Completions - j.Status.Succeeded
		}
	}
	if rest < 10 {
		if err := s.Create(ctx, s.job); err != nil {
			t.Fatal(err)
		}
		s.created++
	}
}

// clear removes the Jobs that are complete, with their Pods, so that a long run
// does not fill the cluster.
func (s *jobs) clear(ctx context.Context, t *testing.T) {
	t.Helper()
	client := s.Client.BatchV1().Jobs(s.Namespace)
	list, err := client.List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, j := range list.Items {
		if !stage.Ended(&j) || j.DeletionTimestamp != nil {
			continue
		}
		if err := client.Delete(ctx, j.Name, metav1.DeleteOptions{PropagationPolicy: ptr.To(metav1.DeletePropagationBackground)}); err != nil {
			t.Fatal(err)
		}
		s.removed++
		s.ran += j.Status.Succeeded
	}
}

// complete waits for the Jobs and checks that every Pod ran, and counts them.
func (s *jobs) complete(ctx context.Context, t *testing.T) (succeeded int32) {
	t.Helper()
	all, err := s.AwaitJobs(ctx, churnTime)
	if err != nil {
		t.Fatal(err)
	}
	succeeded = s.ran
	for _, j := range all {
		succeeded += j.Status.Succeeded
		if j.Status.Failed > 0 || j.Status.Succeeded != *j.Spec.Completions {
			t.Errorf("Job %s: %d Pods succeeded, %d failed", j.Name, j.Status.Succeeded, j.Status.Failed)
		}
	}
	if len(all)+s.removed != s.created {
		t.Errorf("there are %d Jobs and %d were removed, want %d", len(all), s.removed, s.created)
	}
	return succeeded
}

func (s *jobs) checkClean(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
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
