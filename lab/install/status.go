package install

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"github.com/dra-lab/dra-lab/driver/api"
	"github.com/dra-lab/dra-lab/lab/cluster"
)

// Status is what the lab is like now; its JSON is the contract of
// `lab status -o json`.
type Status struct {
	Cluster    string      `json:"cluster"`
	Kubernetes string      `json:"kubernetes"` // of the API server, "v1.37.2"
	Driver     DriverState `json:"driver"`
	Controller Rollout     `json:"controller"`
	Nodes      []NodeState `json:"nodes"` // by name
}

// DriverState is how far the driver is rolled out.
type DriverState struct {
	Name    string `json:"name"`
	Desired int    `json:"desired"` // nodes that should have a driver
	Ready   int    `json:"ready"`   // nodes that have a ready one
}

// Rollout is how far the controller is rolled out.
type Rollout struct {
	Desired int    `json:"desired"` // instances that there should be
	Ready   int    `json:"ready"`   // instances that are ready
	Leader  string `json:"leader"`  // the Pod that leads, "" for none
}

// NodeState is one node of the cluster, with GPUs or without.
type NodeState struct {
	Name    string `json:"name"`
	Kubelet string `json:"kubelet"` // version
	Ready   bool   `json:"ready"`
	// Devices are as published, in the order of their numbers; partitions of GPUs
	// in MIG mode only while a claim is prepared that has them.
	Devices []DeviceState `json:"devices"`
	Claims  []ClaimState  `json:"claims"` // prepared on the node, by namespace and name
}

// DeviceState is one device that a node publishes. Health comes from the
// node's driver; without a driver that answers it is api.HealthUnknown.
type DeviceState struct {
	Name    string   `json:"name"`
	UUID    string   `json:"uuid"`
	Product string   `json:"product"`
	Health  string   `json:"health"`
	Taints  []string `json:"taints"` // key=value:effect
	// Message says why the device is not healthy. It is for people and not
	// part of the contract.
	Message string `json:"-"`
}

// ClaimState is a claim that is prepared on a node. The driver's checkpoint
// says so; without a driver that answers, it is the claims that are allocated
// there and in use.
type ClaimState struct {
	UID       string   `json:"uid"`
	Namespace string   `json:"namespace"`
	Name      string   `json:"name"`
	Devices   []string `json:"devices"`
}

// driverAnswer is how long a driver may take to say how it is. It answers from
// memory.
const driverAnswer = 3 * time.Second

// GetStatus finds out what c is like. A cluster without the lab's driver is no
// error: it has no devices.
func GetStatus(ctx context.Context, c *cluster.Cluster) (Status, error) {
	config, err := c.RESTConfig()
	if err != nil {
		return Status{}, err
	}
	connected, err := connect(config)
	if err != nil {
		return Status{}, err
	}
	o, err := connected.observe(ctx, func(ctx context.Context, pod corev1.Pod) (api.DriverStatus, error) {
		return askDriver(ctx, connected.kubernetes, &pod)
	})
	if err != nil {
		return Status{}, fmt.Errorf("read status of cluster %q: %w", c.Name(), err)
	}
	return o.state(c.Name()), nil
}

// observation is everything that a Status is made of.
type observation struct {
	version string
	nodes   []corev1.Node
	slices  []resourcev1.ResourceSlice
	claims  []resourcev1.ResourceClaim
	pods    []corev1.Pod      // of the driver
	driver  *appsv1.DaemonSet // nil: not installed

	controller *appsv1.Deployment          // nil: not installed
	lease      *coordinationv1.Lease       // nil: nobody has led yet
	answers    map[string]api.DriverStatus // by node; no entry: the driver did not answer
}

// observe asks for everything at once. ask gets one driver's own view.
func (c clients) observe(ctx context.Context, ask func(context.Context, corev1.Pod) (api.DriverStatus, error)) (observation, error) {
	o := observation{answers: map[string]api.DriverStatus{}}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		version, err := discovery.ToServerVersionInterfaceWithContext(c.kubernetes.Discovery()).ServerVersionWithContext(ctx)
		if err != nil {
			return fmt.Errorf("ask for the version: %w", err)
		}
		o.version = version.GitVersion
		return nil
	})
	group.Go(func() error {
		list, err := c.kubernetes.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		if err != nil {
			return fmt.Errorf("list nodes: %w", err)
		}
		o.nodes = list.Items
		return nil
	})
	group.Go(func() error {
		list, err := c.kubernetes.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{
			FieldSelector: resourcev1.ResourceSliceSelectorDriver + "=" + api.DriverName,
		})
		if err != nil {
			return fmt.Errorf("list ResourceSlices: %w", err)
		}
		o.slices = list.Items
		return nil
	})
	group.Go(func() error {
		list, err := c.kubernetes.ResourceV1().ResourceClaims(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
		if err != nil {
			return fmt.Errorf("list ResourceClaims: %w", err)
		}
		o.claims = list.Items
		return nil
	})
	group.Go(func() error {
		driver, err := c.kubernetes.AppsV1().DaemonSets(api.Namespace).Get(ctx, api.DaemonSetName, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read DaemonSet %q: %w", api.DaemonSetName, err)
		}
		o.driver = driver
		return nil
	})
	group.Go(func() error {
		controller, err := c.kubernetes.AppsV1().Deployments(api.Namespace).Get(ctx, api.ControllerName, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read Deployment %q: %w", api.ControllerName, err)
		}
		o.controller = controller
		return nil
	})
	group.Go(func() error {
		lease, err := c.kubernetes.CoordinationV1().Leases(api.Namespace).Get(ctx, api.ControllerName, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read Lease %q: %w", api.ControllerName, err)
		}
		o.lease = lease
		return nil
	})
	group.Go(func() error {
		list, err := c.kubernetes.CoreV1().Pods(api.Namespace).List(ctx, metav1.ListOptions{
			LabelSelector: "app.kubernetes.io/name=" + api.AppLabel,
		})
		if err != nil {
			return fmt.Errorf("list driver Pods: %w", err)
		}
		o.pods = list.Items
		o.answers = answers(ctx, list.Items, ask)
		return nil
	})
	return o, group.Wait()
}

// answers asks all running drivers at once. One that does not answer, or a
// node whose network is cut, is a finding and not an error.
func answers(ctx context.Context, pods []corev1.Pod, ask func(context.Context, corev1.Pod) (api.DriverStatus, error)) map[string]api.DriverStatus {
	ctx, cancel := context.WithTimeout(ctx, driverAnswer)
	defer cancel()
	found := map[string]api.DriverStatus{}
	var mu sync.Mutex
	var group sync.WaitGroup
	for _, pod := range pods {
		if pod.Status.Phase != corev1.PodRunning || pod.DeletionTimestamp != nil {
			continue
		}
		group.Go(func() {
			answer, err := ask(ctx, pod)
			if err != nil {
				return
			}
			mu.Lock()
			defer mu.Unlock()
			// During a rollout a node has two drivers, which share what they
			// know. The one that is ready counts.
			if _, ok := found[pod.Spec.NodeName]; !ok || podReady(&pod) {
				found[pod.Spec.NodeName] = answer
			}
		})
	}
	group.Wait()
	return found
}

// askDriver gets the own view of the driver in a Pod through the API server, so
// that it works from wherever kubectl does.
func askDriver(ctx context.Context, client kubernetes.Interface, pod *corev1.Pod) (api.DriverStatus, error) {
	data, err := client.CoreV1().Pods(pod.Namespace).
		ProxyGet("http", pod.Name, "8080", api.PathStatus, nil).DoRaw(ctx)
	if err != nil {
		return api.DriverStatus{}, fmt.Errorf("ask driver Pod %s: %w", pod.Name, err)
	}
	return api.ParseDriverStatus(data)
}

// state puts the observation together. It is pure.
func (o observation) state(name string) Status {
	s := Status{
		Cluster:    name,
		Kubernetes: o.version,
		Driver:     DriverState{Name: api.DriverName},
		Nodes:      make([]NodeState, 0, len(o.nodes)),
	}
	if o.driver != nil {
		s.Driver.Desired = int(o.driver.Status.DesiredNumberScheduled)
		s.Driver.Ready = int(o.driver.Status.NumberReady)
	}
	if o.controller != nil {
		s.Controller.Desired = int(ptr.Deref(o.controller.Spec.Replicas, 1))
		s.Controller.Ready = int(o.controller.Status.ReadyReplicas)
	}
	if o.lease != nil {
		s.Controller.Leader = ptr.Deref(o.lease.Spec.HolderIdentity, "")
	}
	for _, n := range o.nodes {
		s.Nodes = append(s.Nodes, NodeState{
			Name:    n.Name,
			Kubelet: n.Status.NodeInfo.KubeletVersion,
			Ready:   nodeReady(n),
			Devices: o.devices(n.Name),
			Claims:  o.prepared(n.Name),
		})
	}
	slices.SortFunc(s.Nodes, func(a, b NodeState) int { return strings.Compare(a.Name, b.Name) })
	return s
}

func nodeReady(n corev1.Node) bool {
	return slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

func (o observation) devices(node string) []DeviceState {
	pointers := make([]*resourcev1.ResourceSlice, 0, len(o.slices))
	for i := range o.slices {
		pointers = append(pointers, &o.slices[i])
	}
	devices := []DeviceState{}
	claimed := map[string]bool{}
	for _, c := range o.prepared(node) {
		for _, name := range c.Devices {
			claimed[name] = true
		}
	}
	for _, s := range newest(node, pointers) {
		for _, d := range s.Spec.Devices {
			whole := d.Name
			if partition(d) {
				if !claimed[d.Name] {
					continue
				}
				whole = text(d, api.AttributeParent)
			}
			device := DeviceState{
				Name:    d.Name,
				UUID:    text(d, api.AttributeUUID),
				Product: strings.TrimSpace(text(d, api.AttributeProductName) + " " + text(d, api.AttributeProfile)),
				Health:  api.HealthUnknown,
				Taints:  []string{},
			}
			for _, t := range d.Taints {
				device.Taints = append(device.Taints, taintText(t))
			}
			for _, known := range o.answers[node].Devices {
				if known.Name == whole {
					device.Health, device.Message = known.Health, known.Message
				}
			}
			devices = append(devices, device)
		}
	}
	slices.SortStableFunc(devices, func(a, b DeviceState) int { return natural(a.Name, b.Name) })
	return devices
}

// text returns a string attribute, "" if there is none.
func text(d resourcev1.Device, name string) string {
	value := d.Attributes[resourcev1.QualifiedName(name)].StringValue
	if value == nil {
		return ""
	}
	return *value
}

// taintText has the form that kubectl uses for the taints of nodes.
func taintText(t resourcev1.DeviceTaint) string {
	if t.Value == "" {
		return t.Key + ":" + string(t.Effect)
	}
	return t.Key + "=" + t.Value + ":" + string(t.Effect)
}

// natural orders gpu-2 before gpu-10: a longer name has the larger number.
func natural(a, b string) int {
	if len(a) != len(b) {
		return len(a) - len(b)
	}
	return strings.Compare(a, b)
}

func (o observation) prepared(node string) []ClaimState {
	claims := []ClaimState{}
	if answer, ok := o.answers[node]; ok {
		for _, c := range answer.Claims {
			claims = append(claims, ClaimState{UID: c.UID, Namespace: c.Namespace, Name: c.Name, Devices: slices.Clone(c.Devices)})
		}
	} else {
		for _, c := range o.claims {
			if devices := inUse(c, node); len(devices) > 0 {
				claims = append(claims, ClaimState{UID: string(c.UID), Namespace: c.Namespace, Name: c.Name, Devices: devices})
			}
		}
	}
	for i := range claims {
		slices.SortFunc(claims[i].Devices, natural)
	}
	slices.SortFunc(claims, func(a, b ClaimState) int {
		if c := strings.Compare(a.Namespace, b.Namespace); c != 0 {
			return c
		}
		return strings.Compare(a.Name, b.Name)
	})
	return claims
}

// inUse lists the devices of node that a claim has and some Pod uses.
func inUse(c resourcev1.ResourceClaim, node string) []string {
	if c.Status.Allocation == nil || len(c.Status.ReservedFor) == 0 {
		return nil
	}
	var devices []string
	for _, r := range c.Status.Allocation.Devices.Results {
		// The driver's pools are named after their nodes.
		if r.Driver == api.DriverName && r.Pool == node {
			devices = append(devices, r.Device)
		}
	}
	return devices
}
