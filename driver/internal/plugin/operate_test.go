package plugin_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/dra-lab/dra-lab/driver/api"
	"github.com/dra-lab/dra-lab/driver/api/v1alpha1"
	"github.com/dra-lab/dra-lab/driver/internal/gpu/simulated"
	"github.com/dra-lab/dra-lab/driver/internal/operation"
	"github.com/dra-lab/dra-lab/driver/internal/operation/operationtest"
	"github.com/dra-lab/dra-lab/driver/internal/plugin"
	"github.com/dra-lab/dra-lab/driver/internal/slots"
)

// startOperated starts a driver that takes orders.
func (m *machine) startOperated(t *testing.T, operations operation.Client, change func(*plugin.Config)) (*running, *slots.Slots) {
	t.Helper()
	attached, err := slots.Open(filepath.Join(m.hardwareDir(), api.FabricHardwareName), m.cdiDir())
	if err != nil {
		t.Fatal(err)
	}
	return m.start(t, func(c *plugin.Config) {
		c.Operations, c.Slots = operations, attached
		sim, ok := c.Binder.(*simulated.Simulator)
		if !ok {
			t.Fatalf("GPUs are %T", c.Binder)
		}
		c.Reset = sim.Reset
		if change != nil {
			change(c)
		}
	}), attached
}

func order(action v1alpha1.Operation, device string, attempt int64) *v1alpha1.DeviceOperation {
	return &v1alpha1.DeviceOperation{
		ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.OperationName(nodeName, device)},
		Spec: v1alpha1.DeviceOperationSpec{
			Node: nodeName, Driver: api.DriverName, Pool: nodeName, Device: device, Action: action, Attempt: attempt,
		},
	}
}

// carryOut gives an order and waits for the answer.
func carryOut(t *testing.T, operations operation.Client, op *v1alpha1.DeviceOperation) metav1.Condition {
	t.Helper()
	ctx := t.Context()
	have, err := operations.Get(ctx, op.Name, metav1.GetOptions{})
	if err == nil {
		have = have.DeepCopy()
		have.Spec = op.Spec
		_, err = operations.Update(ctx, have, metav1.UpdateOptions{})
	} else {
		_, err = operations.Create(ctx, op, metav1.CreateOptions{})
	}
	if err != nil {
		t.Fatal(err)
	}
	var answer metav1.Condition
	eventually(t, "the answer to "+string(op.Spec.Action), func() bool {
		now, err := operations.Get(ctx, op.Name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		answered, completed := now.Done()
		if answered {
			answer = *completed
		}
		return answered
	})
	return answer
}

func TestResetMendsAnUnusedGPU(t *testing.T) {
	m := newMachine(t)
	m.inventory(t, 2)
	operations := operationtest.NewClient(t)
	// Given a GPU with an XID, and another with the same that a claim has,
	m.allocate(t, claim("user", "gpu-1"))
	r, _ := m.startOperated(t, operations, nil)
	k := m.register(t, r.uid)
	k.prepare(t, "user")
	for _, device := range []string{"gpu-0", "gpu-1"} {
		m.inject(t, device, api.Fault{ID: "x", Kind: api.FaultXID, Code: 48})
		eventually(t, "the taint of "+device, func() bool { return len(m.taints(t, device)) > 0 })
	}
	// when both are to be reset,
	free, held := carryOut(t, operations, order(v1alpha1.OperationReset, "gpu-0", 1)), carryOut(t, operations, order(v1alpha1.OperationReset, "gpu-1", 1))
	// then the one is, and gets well, and the other is refused,
	if free.Status != metav1.ConditionTrue {
		t.Errorf("reset of the unused GPU: %+v", free)
	}
	if held.Reason != v1alpha1.ReasonInUse || !strings.Contains(held.Message, "user") {
		t.Errorf("reset of the used GPU: %+v, want %s and the claim's name", held, v1alpha1.ReasonInUse)
	}
	eventually(t, "the end of the taint", func() bool { return len(m.taints(t, "gpu-0")) == 0 })
	if len(m.taints(t, "gpu-1")) == 0 {
		t.Error("the used GPU is untainted")
	}
	// until the claim has gone.
	k.unprepare(t, "user")
	if again := carryOut(t, operations, order(v1alpha1.OperationReset, "gpu-1", 2)); again.Status != metav1.ConditionTrue {
		t.Errorf("reset after the claim: %+v", again)
	}
}

func TestWhatAResetCannotDo(t *testing.T) {
	m := newMachine(t)
	m.inventory(t, 3)
	operations := operationtest.NewClient(t)
	m.startOperated(t, operations, nil)
	m.inject(t, "gpu-0", api.Fault{ID: "x", Kind: api.FaultXID, Code: 79})
	m.inject(t, "gpu-1", api.Fault{ID: "x", Kind: api.FaultLost})
	eventually(t, "the taints", func() bool { return len(m.taints(t, "gpu-0")) > 0 && len(m.taints(t, "gpu-1")) > 0 })
	// A GPU that wants a reboot is none the better for it.
	carryOut(t, operations, order(v1alpha1.OperationReset, "gpu-0", 1))
	if c := carryOut(t, operations, order(v1alpha1.OperationProbe, "gpu-0", 2)); c.Reason != v1alpha1.ReasonUnhealthy {
		t.Errorf("probe after the reset: %+v, want %s", c, v1alpha1.ReasonUnhealthy)
	}
	// A lost one does not hear of it.
	if c := carryOut(t, operations, order(v1alpha1.OperationReset, "gpu-1", 1)); c.Reason != v1alpha1.ReasonFailed {
		t.Errorf("reset of a lost GPU: %+v, want %s", c, v1alpha1.ReasonFailed)
	}
	// A well one says so; one that is not here cannot.
	if c := carryOut(t, operations, order(v1alpha1.OperationProbe, "gpu-2", 1)); c.Status != metav1.ConditionTrue {
		t.Errorf("probe: %+v", c)
	}
	if c := carryOut(t, operations, order(v1alpha1.OperationReset, "gpu-7", 1)); c.Reason != v1alpha1.ReasonUnsupported {
		t.Errorf("reset of no GPU: %+v, want %s", c, v1alpha1.ReasonUnsupported)
	}
}

func TestOtherHardwareIsNeverReset(t *testing.T) {
	m := newMachine(t)
	m.inventory(t, 1)
	operations := operationtest.NewClient(t)
	m.startOperated(t, operations, func(c *plugin.Config) { c.Simulated = false })
	if c := carryOut(t, operations, order(v1alpha1.OperationReset, "gpu-0", 1)); c.Reason != v1alpha1.ReasonUnsupported {
		t.Errorf("reset of a real GPU: %+v, want %s", c, v1alpha1.ReasonUnsupported)
	}
}

func TestNetworkAttachedGPUIsPreparedWhereItIs(t *testing.T) {
	m := newMachine(t)
	m.inventory(t, 1)
	operations := operationtest.NewClient(t)
	r, _ := m.startOperated(t, operations, nil)
	attach := func(action v1alpha1.Operation, attempt int64) *v1alpha1.DeviceOperation {
		op := order(action, "net-0", attempt)
		op.Name = v1alpha1.OperationName(api.FabricPool, "net-0")
		op.Spec.Driver, op.Spec.Pool = api.FabricDriverName, api.FabricPool
		op.Spec.Claim = &v1alpha1.ClaimReference{Namespace: "default", Name: "remote", UID: "uid-remote"}
		return op
	}
	c := claim("remote")
	c.Status.Allocation.Devices.Results = []resourceapi.DeviceRequestAllocationResult{
		{Request: "gpu", Driver: api.FabricDriverName, Pool: api.FabricPool, Device: "net-0"},
	}
	m.allocate(t, c)
	k := m.registerAt(t, filepath.Join(m.registrarDir(), api.FabricDriverName+"-reg.sock"))

	// Not attached, not prepared.
	if _, failed := k.prepare(t, "remote"); !strings.Contains(failed["remote"], slots.ErrNotAttached.Error()) {
		t.Errorf("prepare before it is attached: %q", failed)
	}
	if done := carryOut(t, operations, attach(v1alpha1.OperationAttach, 1)); done.Status != metav1.ConditionTrue {
		t.Fatalf("attach: %+v", done)
	}
	ids, failed := k.prepare(t, "remote")
	if len(failed) > 0 {
		t.Fatalf("prepare: %v", failed)
	}
	if diff := cmp.Diff([]string{api.FabricCDIKind + "=uid-remote-net-0"}, ids["remote"]); diff != "" {
		t.Errorf("CDI devices (-want +got):\n%s", diff)
	}
	// The driver of the node's own GPUs leaves the spec alone when it starts.
	r.stop()
	_, attached := m.startOperated(t, operations, nil)
	k = m.registerAt(t, filepath.Join(m.registrarDir(), api.FabricDriverName+"-reg.sock"))
	// Prepared, not detached.
	if done := carryOut(t, operations, attach(v1alpha1.OperationDetach, 2)); done.Reason != v1alpha1.ReasonInUse {
		t.Errorf("detach while it is prepared: %+v, want %s", done, v1alpha1.ReasonInUse)
	}
	k.unprepare(t, "remote")
	if done := carryOut(t, operations, attach(v1alpha1.OperationDetach, 3)); done.Status != metav1.ConditionTrue {
		t.Errorf("detach: %+v", done)
	}
	if all, err := attached.List(); err != nil || len(all) > 0 {
		t.Errorf("attached: %v, %v", all, err)
	}
}

func TestDeviceWhoseOperationIsGoneIsDetached(t *testing.T) {
	m := newMachine(t)
	m.inventory(t, 1)
	operations := operationtest.NewClient(t)
	attached, err := slots.Open(filepath.Join(m.hardwareDir(), api.FabricHardwareName), m.cdiDir())
	if err != nil {
		t.Fatal(err)
	}
	if err := attached.Attach(t.Context(), slots.Attachment{Device: "net-3", ClaimUID: "uid-gone"}); err != nil {
		t.Fatal(err)
	}
	m.startOperated(t, operations, nil)
	eventually(t, "the device to be detached", func() bool {
		all, err := attached.List()
		return err == nil && len(all) == 0
	})
}
