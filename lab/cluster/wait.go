package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"
)

// waitNodes waits until the nodes with these names are ready, through a watch.
// Progress is told how many are. The error, if ctx ends first, has what the
// others were waiting for last.
func waitNodes(ctx context.Context, c *Cluster, want []string, progress func(string)) error {
	config, err := c.RESTConfig()
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	last := make(map[string]string)
	for _, name := range want {
		last[name] = "not registered"
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
			last[node.Name] = notReady(node)
		}
		missing := unready(last)
		progress(fmt.Sprintf("%d of %d ready", len(want)-len(missing), len(want)))
		return len(missing) == 0, nil
	}
	lw := cache.NewListWatchFromClient(client.CoreV1().RESTClient(), "nodes", "", nil)
	_, err = watchtools.UntilWithSync(ctx, lw, &corev1.Node{}, nil, changed)
	if err == nil {
		return nil
	}
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	missing := unready(last)
	if len(missing) == 0 {
		return fmt.Errorf("wait for nodes: %w", err)
	}
	return fmt.Errorf("wait for nodes: %w (last: %s)", err, strings.Join(missing, "; "))
}

// notReady returns why a node is not ready, or "".
func notReady(node *corev1.Node) string {
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady {
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
