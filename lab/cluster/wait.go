package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"
	"k8s.io/klog/v2"
)

// waitNodes waits until the nodes of these containers are ready, through a watch.
// What a kubelet said before its container was started does not count. Progress
// is told how many are ready. The error, if ctx ends first, has what the others
// were waiting for last.
func waitNodes(ctx context.Context, c *Cluster, want []container, progress func(string)) error {
	config, err := c.RESTConfig()
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	last := make(map[string]string)
	started := make(map[string]time.Time)
	for _, n := range want {
		last[n.name], started[n.name] = "not registered", n.started
	}
	changed := func(event watch.Event) (done bool, err error) {
		node, ok := event.Object.(*corev1.Node)
		if !ok {
			return false, nil
		}
		if _, wanted := last[node.Name]; !wanted {
			return false, nil
		}
		last[node.Name] = "not registered"
		if event.Type != watch.Deleted {
			last[node.Name] = notReady(node, started[node.Name])
		}
		missing := unready(last)
		progress(fmt.Sprintf("%d of %d ready", len(want)-len(missing), len(want)))
		return len(missing) == 0, nil
	}
	source := nodeSource{client: client}
	// The reflector below logs every failure to reach an API server that is still
	// starting. It is told to be quiet; the last failure is in the error.
	quiet := klog.NewContext(ctx, klog.Logger{})
	_, err = watchtools.UntilWithSync(quiet, source.listWatch(), &corev1.Node{}, nil, changed)
	if err == nil {
		return nil
	}
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	missing := unready(last)
	if failure := source.failure.Load(); failure != nil {
		missing = append(missing, (*failure).Error())
	}
	if len(missing) == 0 {
		return fmt.Errorf("wait for nodes: %w", err)
	}
	return fmt.Errorf("wait for nodes: %w (last: %s)", err, strings.Join(missing, "; "))
}

// nodeSource lists and watches nodes and remembers the last failure to do so.
type nodeSource struct {
	client  kubernetes.Interface
	failure atomic.Pointer[error]
}

func (s *nodeSource) listWatch() *cache.ListWatch {
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			list, err := s.client.CoreV1().Nodes().List(ctx, o)
			return list, s.note(err)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			w, err := s.client.CoreV1().Nodes().Watch(ctx, o)
			return w, s.note(err)
		},
	}
}

func (s *nodeSource) note(err error) error {
	s.failure.Store(nil)
	if err != nil {
		s.failure.Store(&err)
	}
	return err
}

// notReady returns why a node is not ready, or "".
func notReady(node *corev1.Node, started time.Time) string {
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady {
			// The API has whole seconds.
			if c.LastHeartbeatTime.Time.Before(started.Truncate(time.Second)) {
				return "no status since its container was started"
			}
			if c.Status == corev1.ConditionTrue {
				return ""
			}
			return strings.TrimSpace(c.Reason + ": " + c.Message)
		}
	}
	return "no status yet"
}

// unready returns the nodes that are not, with why, sorted.
func unready(last map[string]string) []string {
	var missing []string
	for name, why := range last {
		if why != "" {
			missing = append(missing, name+": "+why)
		}
	}
	slices.Sort(missing)
	return missing
}

var errNoControlPlane = errors.New("no control-plane node")
