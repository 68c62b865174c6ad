package stage

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// published is what a node publishes in one slice: gpu-0, tainted or not.
func published(name string, generation int64, taints ...resourcev1.DeviceTaint) *resourcev1.ResourceSlice {
	return &resourcev1.ResourceSlice{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: resourcev1.ResourceSliceSpec{
			Pool:    resourcev1.ResourcePool{Name: "worker", Generation: generation},
			Devices: []resourcev1.Device{{Name: "gpu-0", Taints: taints}, {Name: "gpu-1"}},
		},
	}
}

func TestTaintedGPUs(t *testing.T) {
	xid := resourcev1.DeviceTaint{Key: "xid"}
	gpu0 := GPU{Node: "worker", Name: "gpu-0"}
	for name, c := range map[string]struct {
		slices []*resourcev1.ResourceSlice
		chosen map[GPU]bool
		want   []GPU
	}{
		"tainted":                  {[]*resourcev1.ResourceSlice{published("a", 1, xid)}, map[GPU]bool{gpu0: true}, []GPU{gpu0}},
		"untainted":                {[]*resourcev1.ResourceSlice{published("a", 1)}, map[GPU]bool{gpu0: true}, nil},
		"not chosen":               {[]*resourcev1.ResourceSlice{published("a", 1, xid)}, map[GPU]bool{gpu0: false}, nil},
		"wiped, not yet back":      {nil, map[GPU]bool{gpu0: true}, []GPU{gpu0}},
		"older slice not gone yet": {[]*resourcev1.ResourceSlice{published("a", 1, xid), published("b", 2)}, map[GPU]bool{gpu0: true}, nil},
		"newer slice tainted":      {[]*resourcev1.ResourceSlice{published("a", 1), published("b", 2, xid)}, map[GPU]bool{gpu0: true}, []GPU{gpu0}},
		"nothing chosen":           {nil, nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			all := map[string]*resourcev1.ResourceSlice{}
			for _, s := range c.slices {
				all[s.Name] = s
			}
			if diff := cmp.Diff(c.want, tainted(all, c.chosen)); diff != "" {
				t.Errorf("tainted (-want +got):\n%s", diff)
			}
		})
	}
}

// A cluster that refuses what the recorder wants to watch must not hold a
// scenario, and whoever interrupts it, for ever.
func TestBeginEndsWithItsContext(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		var answer any
		switch {
		case r.URL.Path != "/api/v1/namespaces":
			w.WriteHeader(http.StatusForbidden)
			answer = metav1.Status{Status: metav1.StatusFailure, Reason: metav1.StatusReasonForbidden, Code: http.StatusForbidden}
		case r.Method == http.MethodPost:
			answer = corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "basic-x"}}
		default:
			answer = corev1.NamespaceList{}
		}
		if err := json.NewEncoder(w).Encode(answer); err != nil {
			t.Error(err)
		}
	}))
	defer server.Close()
	t.Setenv(EnvTrainer, "trainer")
	config := &rest.Config{Host: server.URL}
	config.ContentType = "application/json"
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	interrupted := errors.New("interrupted")
	ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, interrupted)
	defer cancel()
	s := &Stage{config: config, Client: client}
	if err := s.begin(ctx); !errors.Is(err, interrupted) {
		t.Errorf("begin = %v, want %v", err, interrupted)
	}
	if s.Namespace != "basic-x" || s.Recorder != nil {
		t.Errorf("namespace %q, recorder %v, want the namespace to be tidied up and no recorder", s.Namespace, s.Recorder)
	}
}
