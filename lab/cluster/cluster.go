package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/kind/pkg/apis/config/v1alpha4"
	"sigs.k8s.io/kind/pkg/cluster/constants"

	"github.com/dra-lab/dra-lab/lab/internal/ui"
)

// Config is a kind config. The name is for packages that do not import kind.
type Config = v1alpha4.Cluster

// DefaultConfig returns the config of a lab whose user wrote none: one control
// plane and two workers.
func DefaultConfig() *Config { return ConfigWithWorkers("", "") }

// ConfigWithWorkers returns the config of one control plane and a worker per
// node image, as for kubelets of several versions. "" is Options.Image.
func ConfigWithWorkers(images ...string) *Config {
	config := &Config{
		TypeMeta: v1alpha4.TypeMeta{Kind: configKind, APIVersion: configAPIVersion},
		Nodes:    []v1alpha4.Node{{Role: v1alpha4.ControlPlaneRole}},
	}
	for _, image := range images {
		config.Nodes = append(config.Nodes, v1alpha4.Node{Role: v1alpha4.WorkerRole, Image: image})
	}
	return config
}

// A Cluster is a complete cluster of ours. Its methods are safe for concurrent
// use.
type Cluster struct {
	engine engine
	found  survey
}

func newCluster(e engine, s survey) *Cluster { return &Cluster{engine: e, found: s} }

// Open returns the cluster with that name. The error is ErrNotFound if there is
// none, ErrIncomplete (which is also ErrNotFound) if it is half-made, and
// ErrForeign if it is not ours. Open changes nothing, and does not care whether
// the nodes run.
func Open(ctx context.Context, name string) (*Cluster, error) {
	e := environmentEngine()
	found, err := look(ctx, e, name)
	switch {
	case err != nil:
		return nil, fmt.Errorf("open cluster %q: %w", name, err)
	case found.complete():
		return newCluster(e, found), nil
	case len(found.containers) > 0:
		err := fmt.Errorf("open cluster %q: %w", name, ErrIncomplete)
		return nil, ui.WithHint(err, "\"lab up --name %s\" makes it anew, \"lab down --name %s\" removes it", name, name)
	}
	return nil, notFound("open", name)
}

func notFound(verb, name string) error {
	return ui.WithHint(fmt.Errorf("%s cluster %q: %w", verb, name, ErrNotFound), "make it: lab up --name %s", name)
}

// List returns the names of all clusters of ours, half-made ones too, sorted.
func List(ctx context.Context) ([]string, error) {
	e := environmentEngine()
	out, err := e.output(ctx, "ps", "--all", "--filter", "label="+clusterLabel, "--format", `{{.Label "`+clusterLabel+`"}}`)
	if err != nil {
		return nil, fmt.Errorf("list clusters: %w", err)
	}
	names := strings.Fields(string(out))
	slices.Sort(names)
	var ours []string
	for _, name := range slices.Compact(names) {
		found, err := look(ctx, e, name)
		switch {
		case errors.Is(err, ErrForeign), CheckName(name) != nil:
		case err != nil:
			return nil, fmt.Errorf("list clusters: %w", err)
		case len(found.containers) > 0:
			ours = append(ours, name)
		}
	}
	return ours, nil
}

// Name returns the cluster's name.
func (c *Cluster) Name() string { return c.found.dir.name() }

// Kubernetes returns the version of the control plane, such as "v1.37.2".
func (c *Cluster) Kubernetes() string { return c.found.state.Version }

// Kubeconfig returns the path of the cluster's own kubeconfig, whose only
// context is ContextName(c.Name()).
func (c *Cluster) Kubeconfig() string { return c.found.dir.kubeconfig() }

// Running reports whether a control plane of it ran when it was opened: after the
// host or the engine was started anew, none does until Ensure starts it.
func (c *Cluster) Running() bool {
	return slices.ContainsFunc(c.found.containers, func(n container) bool {
		return n.role == constants.ControlPlaneNodeRoleValue && n.running()
	})
}

// SharedDir returns the directory on the host that all nodes have at SharedDir.
func (c *Cluster) SharedDir() string { return c.found.dir.shared() }

// RESTConfig returns access to the cluster as its administrator. Every call
// returns a new one.
func (c *Cluster) RESTConfig() (*rest.Config, error) {
	config, err := clientcmd.BuildConfigFromFlags("", c.Kubeconfig())
	if err != nil {
		return nil, fmt.Errorf("read kubeconfig of cluster %q: %w", c.Name(), err)
	}
	// The API server is on this machine and has its own fairness; client-go's
	// default of 5 requests per second would make its users wait.
	config.QPS, config.Burst = 100, 200
	return config, nil
}

// Nodes returns the cluster's nodes as they are now, control planes first.
func (c *Cluster) Nodes(ctx context.Context) ([]Node, error) {
	containers, err := c.engine.containers(ctx, c.Name())
	if err != nil {
		return nil, fmt.Errorf("list nodes of cluster %q: %w", c.Name(), err)
	}
	var nodes []Node
	for _, n := range containers {
		if n.isNode() {
			nodes = append(nodes, Node{engine: c.engine, container: n})
		}
	}
	return nodes, nil
}

// ControlPlane returns the first control-plane node.
func (c *Cluster) ControlPlane(ctx context.Context) (Node, error) {
	nodes, err := c.Nodes(ctx)
	if err != nil {
		return Node{}, err
	}
	i := slices.IndexFunc(nodes, Node.ControlPlane)
	if i < 0 {
		return Node{}, fmt.Errorf("find control plane of cluster %q: %w", c.Name(), errNoControlPlane)
	}
	return nodes[i], nil
}
