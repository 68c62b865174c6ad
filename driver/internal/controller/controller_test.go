package controller_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"

	"github.com/dra-lab/dra-lab/driver/api"
	"github.com/dra-lab/dra-lab/driver/api/v1alpha1"
	"github.com/dra-lab/dra-lab/driver/internal/controller"
	"github.com/dra-lab/dra-lab/driver/internal/operation/operationtest"
)

// told keeps Events, as reason and note.
type told struct {
	mu  sync.Mutex
	all []string
}

func (r *told) Eventf(_, _ runtime.Object, _, reason, _, note string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all = append(r.all, reason+": "+fmt.Sprintf(note, args...))
}

func (r *told) has(words string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.ContainsFunc(r.all, func(s string) bool { return strings.Contains(s, words) })
}

// world is a cluster with one node that has two GPUs.
type world struct {
	client     *fake.Clientset
	operations *operationtest.Client
	events     *told
}

func newWorld(t *testing.T, objects ...runtime.Object) *world {
	t.Helper()
	objects = append(objects,
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "one"}},
		&resourceapi.ResourceSlice{
			ObjectMeta: metav1.ObjectMeta{Name: "slice"},
			Spec: resourceapi.ResourceSliceSpec{
				Driver: api.DriverName, NodeName: ptr.To("one"), Pool: resourceapi.ResourcePool{Name: "one", Generation: 1, ResourceSliceCount: 1},
				Devices: []resourceapi.Device{{Name: "gpu-0"}, {Name: "gpu-1"}},
			},
		})
	w := &world{client: fake.NewClientset(objects...), operations: operationtest.NewClient(t), events: &told{}}
	w.client.PrependReactor("create", "resourceslices", func(action clienttesting.Action) (bool, runtime.Object, error) {
		if slice, ok := action.(clienttesting.CreateAction).GetObject().(*resourceapi.ResourceSlice); ok && slice.Name == "" {
			slice.Name = slice.GenerateName + "x"
		}
		return false, nil, nil
	})
	return w
}

// run starts an instance; stop ends it and gives what it ended with.
func (w *world) run(t *testing.T, identity string, devices int) (stop func() error) {
	t.Helper()
	c, err := controller.New(controller.Config{Client: w.client, Operations: w.operations, Events: w.events, FabricDevices: devices, Identity: identity})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	stop = sync.OnceValue(func() error { cancel(); return <-ended })
	t.Cleanup(func() { _ = stop() })
	return stop
}

func (w *world) taint(t *testing.T, value string) {
	t.Helper()
	slices := w.client.ResourceV1().ResourceSlices()
	slice, err := slices.Get(t.Context(), "slice", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	slice.Spec.Devices[0].Taints = nil
	if value != "" {
		slice.Spec.Devices[0].Taints = []resourceapi.DeviceTaint{{Key: api.TaintXID, Value: value, Effect: resourceapi.DeviceTaintEffectNoExecute}}
	}
	if _, err := slices.Update(t.Context(), slice, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// answer is what a driver does.
func (w *world) answer(t *testing.T, name string) {
	t.Helper()
	eventually(t, "the answer to "+name, func() bool {
		op, err := w.operations.Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return false
		}
		op.Status.ObservedAttempt, op.Status.ObservedAt = op.Spec.Attempt, metav1.Now()
		meta.SetStatusCondition(&op.Status.Conditions, metav1.Condition{Type: v1alpha1.ConditionCompleted, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonSucceeded})
		_, err = w.operations.UpdateStatus(t.Context(), op, metav1.UpdateOptions{})
		return err == nil
	})
}

func (w *world) operation(t *testing.T, name string) *v1alpha1.DeviceOperation {
	t.Helper()
	op, err := w.operations.Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		return nil
	}
	return op
}

func eventually(t *testing.T, what string, done func() bool) {
	t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for !done() {
		if time.Now().After(deadline) {
			t.Fatalf("it never happened: %s", what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func TestTaintedGPUIsRepairedByWhoeverLeads(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	stop := w.run(t, "first", 0)
	eventually(t, "a leader", func() bool { return w.leader(t) == "first" })
	w.run(t, "second", 0)
	w.taint(t, "48")
	eventually(t, "the order", func() bool {
		op := w.operation(t, "one.gpu-0")
		return op != nil && op.Spec.Action == v1alpha1.OperationReset
	})
	// The leader goes, and the other one takes up where it was.
	if err := stop(); err != nil {
		t.Errorf("stopped with %v", err)
	}
	eventually(t, "another leader", func() bool { return w.leader(t) == "second" })
	w.answer(t, "one.gpu-0")
	w.taint(t, "")
	eventually(t, "the end of the repair", func() bool {
		op := w.operation(t, "one.gpu-0")
		return op != nil && op.Spec.Attempt == 1 && meta.IsStatusConditionTrue(op.Status.Conditions, v1alpha1.ConditionRecovered)
	})
	// An Event follows what it tells of.
	eventually(t, "both Events", func() bool {
		return w.events.has("attempt 1 of 3 at reset") && w.events.has("well after 1 attempt")
	})
}

func (w *world) leader(t *testing.T) string {
	t.Helper()
	lease, err := w.client.CoordinationV1().Leases(api.Namespace).Get(t.Context(), api.ControllerName, metav1.GetOptions{})
	if err != nil {
		return ""
	}
	return ptr.Deref(lease.Spec.HolderIdentity, "")
}

func policy(text string) *corev1.ConfigMap {
	return &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: api.Namespace, Name: "recovery"}, Data: map[string]string{"policy.yaml": text},
	}
}

const waiting = "apiVersion: gpu.lab.example/v1alpha1\nkind: RecoveryPolicy\nrules: [{taint: gpu.lab.example/xid, action: Wait}]\n"

func TestAPolicyIsObeyedOrRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t, policy("nonsense: true\n"))
	w.run(t, "first", 0)
	// A wrong one from the start: nothing is repaired.
	eventually(t, "the refusal", func() bool { return w.events.has("PolicyRefused") })
	w.taint(t, "48")
	// A right one is obeyed.
	maps := w.client.CoreV1().ConfigMaps(api.Namespace)
	if _, err := maps.Update(t.Context(), policy(waiting), metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the order", func() bool { return w.operation(t, "one.gpu-0") != nil })
	if op := w.operation(t, "one.gpu-0"); op.Spec.Action != v1alpha1.OperationWait {
		t.Errorf("action %s, want %s: it was decided without a policy", op.Spec.Action, v1alpha1.OperationWait)
	}
}

func TestNetworkAttachedGPUFollowsItsClaim(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.run(t, "first", 2)
	var published []resourceapi.ResourceSlice
	eventually(t, "the pool", func() bool {
		list, err := w.client.ResourceV1().ResourceSlices().List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		published = slices.DeleteFunc(list.Items, func(s resourceapi.ResourceSlice) bool { return s.Spec.Driver != api.FabricDriverName })
		return len(published) == 1
	})
	if s := published[0].Spec; s.NodeName != nil || s.NodeSelector == nil || len(s.Devices) != 2 {
		t.Errorf("slice %+v, want two devices for nodes that a selector chooses", s)
	}
	claims := w.client.ResourceV1().ResourceClaims("default")
	c := &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "c", UID: "uid"},
		Status: resourceapi.ResourceClaimStatus{Allocation: &resourceapi.AllocationResult{
			Devices: resourceapi.DeviceAllocationResult{Results: []resourceapi.DeviceRequestAllocationResult{
				{Request: "gpu", Driver: api.FabricDriverName, Pool: api.FabricPool, Device: "net-1"},
			}},
			NodeSelector: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchFields: []corev1.NodeSelectorRequirement{{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{"one"}}},
			}}},
		}},
	}
	if _, err := claims.Create(t.Context(), c, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	w.answer(t, "fabric.net-1")
	eventually(t, "the condition", func() bool {
		c, err := claims.Get(t.Context(), "c", metav1.GetOptions{})
		return err == nil && len(c.Status.Devices) == 1 && meta.IsStatusConditionTrue(c.Status.Devices[0].Conditions, api.ConditionAttached)
	})
	if err := claims.Delete(t.Context(), "c", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the order to detach", func() bool {
		op := w.operation(t, "fabric.net-1")
		return op != nil && op.Spec.Action == v1alpha1.OperationDetach
	})
	w.answer(t, "fabric.net-1")
	eventually(t, "the end of the operation", func() bool { return w.operation(t, "fabric.net-1") == nil })
}

func TestLostLeaseEndsTheProcess(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	failing := false
	var mu sync.Mutex
	w.client.PrependReactor("update", "leases", func(action clienttesting.Action) (bool, runtime.Object, error) {
		mu.Lock()
		defer mu.Unlock()
		if lease, ok := action.(clienttesting.UpdateAction).GetObject().(*coordinationv1.Lease); ok && failing {
			return true, lease, fmt.Errorf("no connection")
		}
		return false, nil, nil
	})
	c, err := controller.New(controller.Config{Client: w.client, Operations: w.operations, Identity: "first"})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- c.Run(t.Context()) }()
	eventually(t, "a leader", func() bool { return w.leader(t) == "first" })
	mu.Lock()
	failing = true
	mu.Unlock()
	select {
	case err := <-ended:
		if err == nil || !strings.Contains(err.Error(), "lost the lease") {
			t.Errorf("ended with %v, want the lost lease", err)
		}
	case <-time.After(60 * time.Second):
		t.Error("it goes on leading without a lease")
	}
}

func TestConfigIsChecked(t *testing.T) {
	w := newWorld(t)
	for name, cfg := range map[string]controller.Config{
		"no client":        {Operations: w.operations},
		"no operations":    {Client: w.client},
		"too many devices": {Client: w.client, Operations: w.operations, FabricDevices: 1000},
	} {
		if _, err := controller.New(cfg); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
