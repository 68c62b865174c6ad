package upstream

import (
	"context"
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/dra-lab/dra-lab/lab/cluster"
)

// Packages is the bench of reproductions that need no cluster.
type Packages struct{}

// Side implements Bench.
func (Packages) Side(_ context.Context, r Reproduction, version string) (*Side, error) {
	if !r.Package {
		return nil, errors.New("it needs a cluster")
	}
	return &Side{Version: version, id: r.ID}, nil
}

// Nodes is the bench of a cluster whose workers have different kubelets.
type Nodes struct {
	lab    *cluster.Cluster
	client kubernetes.Interface
	nodes  map[string]cluster.Node // by version of the kubelet
}

// OpenNodes looks at a lab's workers.
func OpenNodes(ctx context.Context, lab *cluster.Cluster) (*Nodes, error) {
	config, err := lab.RESTConfig()
	if err != nil {
		return nil, err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("connect to lab %q: %w", lab.Name(), err)
	}
	list, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list nodes: %w", err)
	}
	version := map[string]string{}
	for _, n := range list.Items {
		version[n.Name] = n.Status.NodeInfo.KubeletVersion
	}
	nodes, err := lab.Nodes(ctx)
	if err != nil {
		return nil, err
	}
	all := &Nodes{lab: lab, client: client, nodes: map[string]cluster.Node{}}
	for _, n := range nodes {
		if !n.ControlPlane() {
			all.nodes[version[n.Name()]] = n
		}
	}
	return all, nil
}

// Side implements Bench. Package level needs no node.
func (n *Nodes) Side(ctx context.Context, r Reproduction, version string) (*Side, error) {
	if r.Package {
		return Packages{}.Side(ctx, r, version)
	}
	node, ok := n.nodes[version]
	if !ok {
		return nil, fmt.Errorf("lab %q has no worker with kubelet %s", n.lab.Name(), version)
	}
	image, err := pauseImage(ctx, node)
	if err != nil {
		return nil, err
	}
	s := &Side{
		Version: version, Node: node, Client: n.client, image: image, shared: n.lab.SharedDir(), id: r.ID,
		Namespace: "u" + r.ID + "-" + strings.ReplaceAll(strings.TrimPrefix(version, "v"), ".", "-"),
	}
	namespaces := n.client.CoreV1().Namespaces()
	// One that a killed run left behind has its Pods still.
	if err := s.removeNamespace(ctx); err != nil {
		return nil, err
	}
	if _, err := namespaces.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: s.Namespace}}, metav1.CreateOptions{}); err != nil {
		return nil, fmt.Errorf("create namespace %q: %w", s.Namespace, err)
	}
	// Removed before drivers are: unprepare needs them.
	s.undoFirst = s.removeNamespace
	return s, nil
}

// removeNamespace removes the side's namespace and waits for the end of it.
func (s *Side) removeNamespace(ctx context.Context) error {
	namespaces := s.Client.CoreV1().Namespaces()
	err := namespaces.Delete(ctx, s.Namespace, metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("remove namespace %q: %w", s.Namespace, err)
	}
	err = until(ctx, func() (bool, error) {
		_, err := namespaces.Get(ctx, s.Namespace, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return true, nil
		}
		return false, err
	})
	if err != nil {
		return fmt.Errorf("wait for the end of namespace %q: %w", s.Namespace, err)
	}
	return nil
}
