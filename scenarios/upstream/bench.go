package upstream

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

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
	// A run that was killed may have left the node restarting.
	ctx, cancel := context.WithTimeoutCause(ctx, time.Minute, errors.New("not within a minute"))
	defer cancel()
	image, err := pauseImage(ctx, node)
	if err != nil {
		return nil, err
	}
	s := &Side{Version: version, Node: node, Client: n.client, lab: n.lab, image: image, id: r.ID}
	if err := s.makeNamespace(ctx); err != nil {
		return nil, err
	}
	// Removed before drivers are: unprepare needs them.
	s.undoFirst = func(ctx context.Context) error { return s.removeNamespace(ctx, s.Namespace) }
	return s, nil
}

// sideLabel is on the namespaces of a side, which have the side's name in it.
const sideLabel = "lab.example/reproduction"

// makeNamespace makes the side's namespace. It has another name each time: of a
// run that was killed the kubelet remembers the claims, by namespace and name,
// until the driver is there again.
func (s *Side) makeNamespace(ctx context.Context) error {
	side := "u" + s.id + "-" + strings.NewReplacer(".", "-", "+", "-").Replace(strings.TrimPrefix(s.Version, "v"))
	namespaces := s.Client.CoreV1().Namespaces()
	left, err := namespaces.List(ctx, metav1.ListOptions{LabelSelector: sideLabel + "=" + side})
	if err != nil {
		return fmt.Errorf("list namespaces: %w", err)
	}
	for _, n := range left.Items {
		// Its Pods cannot end in order: their drivers went with the run.
		now := int64(0)
		err := s.Client.CoreV1().Pods(n.Name).DeleteCollection(ctx, metav1.DeleteOptions{GracePeriodSeconds: &now}, metav1.ListOptions{})
		if err != nil {
			return fmt.Errorf("remove Pods of namespace %q: %w", n.Name, err)
		}
		if err := s.removeNamespace(ctx, n.Name); err != nil {
			return err
		}
	}
	made, err := namespaces.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		GenerateName: side + "-", Labels: map[string]string{sideLabel: side},
	}}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("create namespace: %w", err)
	}
	s.Namespace = made.Name
	return nil
}

// removeNamespace removes a namespace and waits for the end of it.
func (s *Side) removeNamespace(ctx context.Context, name string) error {
	namespaces := s.Client.CoreV1().Namespaces()
	err := namespaces.Delete(ctx, name, metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("remove namespace %q: %w", name, err)
	}
	err = until(ctx, func() (bool, error) {
		_, err := namespaces.Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return true, nil
		}
		return false, err
	})
	if err != nil {
		return fmt.Errorf("wait for the end of namespace %q: %w", name, err)
	}
	return nil
}
