package install

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/version"
	fakediscovery "k8s.io/client-go/discovery/fake"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/utils/ptr"

	"github.com/dra-lab/dra-lab/driver/api"
)

// update rewrites the golden files: go test ./lab/install -update.
var update = flag.Bool("update", false, "rewrite golden files")

func clusterNode(name, kubelet string, ready bool) *corev1.Node {
	status := corev1.ConditionFalse
	if ready {
		status = corev1.ConditionTrue
	}
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Status: corev1.NodeStatus{
			NodeInfo:   corev1.NodeSystemInfo{KubeletVersion: kubelet},
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: status}},
		},
	}
}

// part is a partition of a GPU.
func part(name, parent string) resourcev1.Device {
	return resourcev1.Device{Name: name, Attributes: map[resourcev1.QualifiedName]resourcev1.DeviceAttribute{
		api.AttributeType:        {StringValue: ptr.To(api.TypeMIG)},
		api.AttributeParent:      {StringValue: ptr.To(parent)},
		api.AttributeProductName: {StringValue: ptr.To("NVIDIA H100 80GB HBM3")},
		api.AttributeProfile:     {StringValue: ptr.To("1g.10gb")},
	}}
}

func gpu(name, uuid string, taints ...resourcev1.DeviceTaint) resourcev1.Device {
	product := "NVIDIA H100 80GB HBM3"
	return resourcev1.Device{
		Name: name,
		Attributes: map[resourcev1.QualifiedName]resourcev1.DeviceAttribute{
			api.AttributeUUID:        {StringValue: &uuid},
			api.AttributeProductName: {StringValue: &product},
		},
		Taints: taints,
	}
}

func usedClaim(namespace, name, node string, devices ...string) *resourcev1.ResourceClaim {
	claim := &resourcev1.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: "some-uid"},
		Status: resourcev1.ResourceClaimStatus{
			Allocation:  &resourcev1.AllocationResult{},
			ReservedFor: []resourcev1.ResourceClaimConsumerReference{{Resource: "pods", Name: "p"}},
		},
	}
	for _, d := range devices {
		claim.Status.Allocation.Devices.Results = append(claim.Status.Allocation.Devices.Results,
			resourcev1.DeviceRequestAllocationResult{Driver: api.DriverName, Pool: node, Device: d})
	}
	return claim
}

// exampleCluster has a control plane, a worker whose driver answers and one
// whose driver does not.
func exampleCluster() (clients, func(context.Context, corev1.Pod) (api.DriverStatus, error)) {
	worker := slice("lab-worker", "w", 1, 1)
	worker.Spec.Devices = []resourcev1.Device{
		gpu("gpu-10", "GPU-10"),
		part("gpu-10-mig-1g10gb-0", "gpu-10"), part("gpu-10-mig-1g10gb-1", "gpu-10"),
		gpu("gpu-2", "GPU-2", resourcev1.DeviceTaint{Key: api.TaintXID, Value: "79", Effect: resourcev1.DeviceTaintEffectNoExecute}),
	}
	worker2 := slice("lab-worker2", "w2", 4, 1)
	worker2.Spec.Devices = []resourcev1.Device{gpu("gpu-0", "GPU-0")}
	stale := slice("lab-worker2", "w2-old", 3, 1, "gone")
	foreign := slice("lab-worker2", "other", 9, 1, "nic-0")
	foreign.Spec.Driver = "nic.example"
	unused := usedClaim("default", "unused", "lab-worker2", "gpu-0")
	unused.Status.ReservedFor = nil

	driver := rolledOut()
	driver.Status.NumberReady = 1
	objects := []runtime.Object{
		clusterNode("lab-worker2", "v1.36.3", false), clusterNode("lab-worker", "v1.37.2", true), clusterNode("lab-control-plane", "v1.37.2", true),
		worker, worker2, stale, foreign, unused,
		usedClaim("default", "on-worker", "lab-worker", "gpu-10"),
		usedClaim("default", "on-worker2", "lab-worker2", "gpu-0"),
		driver, driverPod("lab-worker", "new", true), driverPod("lab-worker2", "new", false),
		&appsv1.Deployment{
			ObjectMeta: metav1.ObjectMeta{Namespace: api.Namespace, Name: api.ControllerName},
			Spec:       appsv1.DeploymentSpec{Replicas: ptr.To[int32](2)},
			Status:     appsv1.DeploymentStatus{ReadyReplicas: 1},
		},
		&coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{Namespace: api.Namespace, Name: api.ControllerName},
			Spec:       coordinationv1.LeaseSpec{HolderIdentity: ptr.To("controller-0")},
		},
	}
	client := fake.NewClientset(objects...)
	if discovery, ok := client.Discovery().(*fakediscovery.FakeDiscovery); ok {
		discovery.FakedServerVersion = &version.Info{GitVersion: "v1.37.2"}
	}
	ask := func(_ context.Context, pod corev1.Pod) (api.DriverStatus, error) {
		if pod.Spec.NodeName != "lab-worker" {
			return api.DriverStatus{}, errors.New("no route to host")
		}
		return api.DriverStatus{
			Node: "lab-worker",
			Devices: []api.DeviceStatus{
				{Name: "gpu-2", Health: api.HealthUnhealthy, Message: "XID 79"},
				{Name: "gpu-10", Health: api.HealthHealthy},
			},
			Claims: []api.PreparedClaim{
				{UID: "b", Namespace: "training", Name: "rank-1", Devices: []string{"gpu-10", "gpu-2"}, Completed: true},
				{UID: "a", Namespace: "training", Name: "rank-0", Devices: []string{"gpu-10"}, Completed: true},
				{UID: "c", Namespace: "training", Name: "small", Devices: []string{"gpu-10-mig-1g10gb-0"}, Completed: true},
			},
		}, nil
	}
	return clients{kubernetes: client}, ask
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", path, diff)
	}
}

func TestStatus(t *testing.T) {
	c, ask := exampleCluster()
	o, err := c.observe(t.Context(), ask)
	if err != nil {
		t.Fatal(err)
	}
	state := o.state("lab")

	data, err := json.MarshalIndent(state, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "status.json", string(data)+"\n")

	var b strings.Builder
	if err := state.WriteText(&b); err != nil {
		t.Fatal(err)
	}
	golden(t, "status.txt", b.String())
}

func TestStatusOfAClusterWithoutTheDriver(t *testing.T) {
	client := fake.NewClientset(clusterNode("lab-worker", "v1.37.2", true))
	o, err := clients{kubernetes: client}.observe(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	want := []NodeState{{Name: "lab-worker", Kubelet: "v1.37.2", Ready: true, Devices: []DeviceState{}, Claims: []ClaimState{}}}
	if diff := cmp.Diff(want, o.state("lab").Nodes); diff != "" {
		t.Errorf("nodes (-want +got):\n%s", diff)
	}
}
