package upstream

import (
	"context"
	"maps"
	"slices"

	"golang.org/x/mod/semver"
	"k8s.io/client-go/kubernetes"
)

// What other experiments on the same cluster borrow, package live for one.

// Client is the cluster's administrator.
func (n *Nodes) Client() kubernetes.Interface { return n.client }

// Versions are those of the workers' kubelets, oldest first.
func (n *Nodes) Versions() []string {
	return slices.SortedFunc(maps.Keys(n.nodes), semver.Compare)
}

// Close takes away what was made on a side that [Nodes.Side] returned, its
// namespace first.
func (s *Side) Close(ctx context.Context) error { return s.close(ctx) }
