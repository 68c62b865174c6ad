package install

import (
	"context"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/dra-lab/dra-lab/lab/cluster"
	"github.com/dra-lab/dra-lab/lab/internal/ui"
	"github.com/dra-lab/dra-lab/manifests"
)

// defaultTimeout is how long the driver may take to serve. It takes seconds;
// on a machine that is busy with other things, some more.
const defaultTimeout = 2 * time.Minute

// gpuLabel is on the nodes that have GPUs; the DaemonSet selects by it.
const gpuLabel = "gpu.lab.example/gpus"

// Options says what to install.
type Options struct {
	// Artifacts is the directory of the programs driver, controller and trainer;
	// empty: the directory of the running program.
	Artifacts string
	// GPUs is what every node with GPUs has.
	GPUs GPUs
	// Timeout is how long the driver may take to serve; 0: 2 minutes.
	Timeout time.Duration
}

// Install puts the lab onto c and returns when the driver serves on every node
// that has GPUs: all workers, or the control plane of a cluster that has no
// workers. A second call changes only what differs. When the driver does not
// come up, the error has the Pod's last state and, as its detail, its log.
func Install(ctx context.Context, c *cluster.Cluster, options Options, u *ui.UI) error {
	config, err := c.RESTConfig()
	if err != nil {
		return err
	}
	clients, err := connect(config)
	if err != nil {
		return err
	}
	all, err := c.Nodes(ctx)
	if err != nil {
		return err
	}
	i := installer{clients: clients, options: options, ui: u}
	for _, n := range all {
		i.nodes = append(i.nodes, n)
	}
	return i.run(ctx)
}

// Preload brings to nodes of a cluster that is being made what Install would
// bring otherwise: images and the inventory of GPUs. It needs no API server.
// Whatever it does not get done is left for Install.
func Preload(ctx context.Context, nodes []cluster.Node, options Options, u *ui.UI) error {
	i := installer{options: options, ui: u}
	onlyControlPlanes := !slices.ContainsFunc(nodes, func(n cluster.Node) bool { return !n.ControlPlane() })
	var targets []string
	for _, n := range nodes {
		if n.ControlPlane() && !onlyControlPlanes {
			continue
		}
		// It may still be starting, which this waits for.
		if _, err := n.Exec(ctx, nil, "systemctl", "start", "containerd"); err != nil {
			return fmt.Errorf("wait for containerd on node %q: %w", n.Name(), err)
		}
		i.nodes = append(i.nodes, n)
		if options.GPUs.Mode() == Simulated {
			targets = append(targets, n.Name())
		}
	}
	_, _, err := i.load(ctx, targets)
	return err
}

// installer is one call of Install.
type installer struct {
	clients clients
	nodes   []node
	options Options
	ui      *ui.UI
}

func (i installer) run(ctx context.Context) error {
	r, err := i.roles(ctx)
	if err != nil {
		return err
	}
	// Nodes that take no Pods need nothing.
	i.nodes = slices.DeleteFunc(i.nodes, func(n node) bool { return !slices.Contains(r.pods, n.Name()) })
	var passed map[string]int
	simulate := r.gpus
	if i.options.GPUs.Mode() == Passthrough {
		simulate = nil
		if r.gpus, passed, err = i.passed(ctx, r.gpus); err != nil {
			return err
		}
	}
	built, stale, err := i.load(ctx, simulate)
	if err != nil {
		return err
	}
	objects, err := i.objects(built, r.gpus)
	if err != nil {
		return err
	}
	step := i.ui.Step("installing the driver (%s on %s)", i.options.GPUs, plural(len(r.gpus), "node"))
	applied, err := i.clients.apply(ctx, objects)
	step.Done(err)
	if err != nil {
		return err
	}
	err = i.wait(ctx, goal{
		nodes:      r.gpus,
		devices:    i.options.GPUs.count(),
		passed:     passed,
		image:      built.driver.Ref(),
		generation: applied.driverGeneration,
	})
	if err != nil {
		return err
	}
	// It was rolled out at the same time.
	if err := i.waitController(ctx, applied.controllerGeneration); err != nil {
		return err
	}
	i.discard(ctx, stale)
	return nil
}

// roles says what the nodes of a cluster are for.
type roles struct {
	gpus []string // get GPUs: the workers, or all nodes when there are none
	pods []string // get images: they take Pods
}

// roles asks the cluster, and makes sure that all of it is within reach.
func (i installer) roles(ctx context.Context) (roles, error) {
	list, err := i.clients.kubernetes.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return roles{}, fmt.Errorf("list nodes: %w", err)
	}
	r := rolesOf(list.Items)
	for _, name := range r.pods {
		if !slices.ContainsFunc(i.nodes, func(n node) bool { return n.Name() == name }) {
			return roles{}, fmt.Errorf("reach node %q: it is in the cluster but not on this machine", name)
		}
	}
	return r, nil
}

func rolesOf(nodes []corev1.Node) roles {
	const control = "node-role.kubernetes.io/control-plane"
	var r roles
	var workers []string
	for _, n := range nodes {
		r.gpus = append(r.gpus, n.Name)
		if _, ok := n.Labels[control]; !ok {
			workers = append(workers, n.Name)
		}
		if !slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == control }) {
			r.pods = append(r.pods, n.Name)
		}
	}
	if len(workers) > 0 {
		r.gpus = workers
	} else {
		r.pods = slices.Clone(r.gpus)
	}
	slices.Sort(r.gpus)
	slices.Sort(r.pods)
	return r
}

// load makes the images and brings them to the nodes, with the inventory to
// those that are targets. It returns which older images of the lab are there.
func (i installer) load(ctx context.Context, targets []string) (built images, stale map[string][]string, err error) {
	step := i.ui.Step("loading images of driver, controller and trainer into %s", plural(len(i.nodes), "node"))
	defer func() { step.Done(err) }()

	artifacts := i.options.Artifacts
	if artifacts == "" {
		if artifacts, err = FindArtifacts(); err != nil {
			return images{}, nil, err
		}
	}
	// What a node has and what it needs are found out at the same time.
	group, asking := errgroup.WithContext(ctx)
	surveys := make([]survey, len(i.nodes))
	for n := range i.nodes {
		group.Go(func() (err error) {
			surveys[n], err = look(asking, i.nodes[n])
			return err
		})
	}
	group.Go(func() (err error) {
		built, err = build(artifacts)
		return err
	})
	if err := group.Wait(); err != nil {
		return images{}, nil, err
	}
	inventory, err := i.options.GPUs.file()
	if err != nil {
		return images{}, nil, err
	}
	var shared archives
	stale = map[string][]string{}
	group, loading := errgroup.WithContext(ctx)
	for n, node := range i.nodes {
		stale[node.Name()] = surveys[n].stale(built)
		group.Go(func() error {
			if slices.Contains(targets, node.Name()) {
				if err := surveys[n].writeInventory(loading, node, inventory); err != nil {
					return err
				}
			}
			return surveys[n].loadMissing(loading, node, built, &shared)
		})
	}
	return built, stale, group.Wait()
}

// objects are the manifests and, before the DaemonSet that selects by them,
// the labels of the nodes.
func (i installer) objects(built images, targets []string) ([]*unstructured.Unstructured, error) {
	fabric := "" // the default
	if i.options.GPUs.Mode() == Passthrough {
		fabric = "0" // nothing could attach a simulated GPU to a node with real ones
	}
	objects, err := manifests.Objects(manifests.Values{
		DriverImage:     built.driver.Ref(),
		ControllerImage: built.controller.Ref(),
		TrainerImage:    built.trainer.Ref(),
		GPUs:            i.options.GPUs.String(),
		FabricDevices:   fabric,
		PullPolicy:      "Never", // the images are in no registry
	})
	if err != nil {
		return nil, err
	}
	var labels []*unstructured.Unstructured
	for _, name := range targets {
		label := &unstructured.Unstructured{}
		label.SetAPIVersion("v1")
		label.SetKind("Node")
		label.SetName(name)
		label.SetLabels(map[string]string{gpuLabel: string(i.options.GPUs.Mode())})
		labels = append(labels, label)
	}
	if i.options.GPUs.Mode() == Passthrough {
		for _, object := range objects {
			if err := giveHardware(object); err != nil {
				return nil, err
			}
		}
	}
	return append(labels, objects...), nil
}

// discard removes older images of the lab, which would pile up while somebody
// works on the driver. What cannot be removed does no harm.
func (i installer) discard(ctx context.Context, stale map[string][]string) {
	var group errgroup.Group
	for _, n := range i.nodes {
		if refs := stale[n.Name()]; len(refs) > 0 {
			group.Go(func() error { return remove(ctx, n, refs) })
		}
	}
	if err := group.Wait(); err != nil {
		i.ui.Debug("older images stay: %v", err)
	}
}

func plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
