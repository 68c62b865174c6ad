package recovery

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/dra-lab/dra-lab/driver/api"
	"github.com/dra-lab/dra-lab/driver/api/v1alpha1"
	"github.com/dra-lab/dra-lab/driver/internal/operation"
)

func epoch() time.Time { return time.Date(2026, 12, 1, 12, 0, 0, 0, time.UTC) }

func gpu(held bool, taints ...Taint) Device {
	return Device{Node: "worker", Pool: "worker", Name: "gpu-0", Taints: taints, Held: held}
}

// op is an operation that was answered, or with an empty reason was not.
func op(action v1alpha1.Operation, attempt int64, reason string, conditions ...metav1.Condition) *v1alpha1.DeviceOperation {
	o := &v1alpha1.DeviceOperation{
		ObjectMeta: metav1.ObjectMeta{Name: "worker.gpu-0", UID: "op"},
		Spec: v1alpha1.DeviceOperationSpec{
			Node: "worker", Driver: api.DriverName, Pool: "worker", Device: "gpu-0", Action: action, Attempt: attempt,
		},
	}
	if reason != "" {
		status := metav1.ConditionFalse
		if reason == v1alpha1.ReasonSucceeded {
			status = metav1.ConditionTrue
		}
		o.Status.ObservedAttempt, o.Status.ObservedAt = attempt, metav1.NewTime(epoch())
		meta.SetStatusCondition(&o.Status.Conditions, metav1.Condition{Type: v1alpha1.ConditionCompleted, Status: status, Reason: reason, Message: "said the driver"})
	}
	for _, c := range conditions {
		meta.SetStatusCondition(&o.Status.Conditions, c)
	}
	return o
}

func recovered(status metav1.ConditionStatus, reason, message string) metav1.Condition {
	return metav1.Condition{
		Type: v1alpha1.ConditionRecovered, Status: status, Reason: reason, Message: message,
		LastTransitionTime: metav1.NewTime(epoch()),
	}
}

// short is what a table compares of a write.
type short struct {
	Verb    operation.Verb
	Action  v1alpha1.Operation
	Attempt int64
	Reason  string // of ConditionRecovered, where that is written
	Event   string // its reason
}

func summary(actions []operation.Action) []short {
	var all []short
	for _, a := range actions {
		s := short{Verb: a.Verb}
		if a.Operation != nil {
			s.Action, s.Attempt = a.Operation.Spec.Action, a.Operation.Spec.Attempt
		}
		if a.Verb == operation.UpdateStatus {
			s.Reason = meta.FindStatusCondition(a.Operation.Status.Conditions, v1alpha1.ConditionRecovered).Reason
		}
		if a.Event != nil {
			s.Event = a.Event.Reason
		}
		all = append(all, s)
	}
	return all
}

func TestDecide(t *testing.T) {
	xid, bus, hot := Taint{api.TaintXID, "48"}, Taint{api.TaintXID, "79"}, Taint{api.TaintTelemetry, "hot"}
	repairing := func(attempt string) metav1.Condition {
		return recovered(metav1.ConditionFalse, reasonWorking, "attempt "+attempt+" of 3")
	}
	replacing := DefaultPolicy()
	replacing.Rules = []Rule{{Taint: api.TaintXID, Action: v1alpha1.OperationReplace}}
	hasty := DefaultPolicy()
	hasty.Backoff = metav1.Duration{Duration: time.Second}
	deleted := op(v1alpha1.OperationReset, 1, "")
	deleted.DeletionTimestamp = ptr.To(metav1.NewTime(epoch()))
	for name, c := range map[string]struct {
		policy *Policy
		device Device
		op     *v1alpha1.DeviceOperation
		after  time.Duration // since the epoch, at which operations were answered
		want   []short
		again  time.Duration
	}{
		"well, and always was": {device: gpu(false)},
		"an XID on a GPU that nobody has": {
			device: gpu(false, xid),
			want:   []short{{operation.Create, v1alpha1.OperationReset, 1, "", "GPURepairing"}},
		},
		"an XID on a GPU that a claim has": {device: gpu(true, xid)},
		"too hot on a GPU that a claim has": {
			device: gpu(true, hot),
			want:   []short{{operation.Create, v1alpha1.OperationProbe, 1, "", "GPURepairing"}},
		},
		"off the bus, claim or not": {
			device: gpu(true, bus),
			want:   []short{{operation.Create, v1alpha1.OperationWait, 1, "", "GPUWaitForOperator"}},
		},
		"the order is not answered": {
			device: gpu(false, xid), op: op(v1alpha1.OperationReset, 1, ""),
			want: []short{{operation.UpdateStatus, v1alpha1.OperationReset, 1, reasonWorking, ""}},
		},
		"still not answered": {
			device: gpu(false, xid), op: op(v1alpha1.OperationReset, 1, "", repairing("1")), after: time.Hour,
		},
		"reset, and the driver has to see it first": {
			device: gpu(false, xid), op: op(v1alpha1.OperationReset, 1, v1alpha1.ReasonSucceeded, repairing("1")), after: 2 * time.Second,
			again: 3 * time.Second,
		},
		"reset, in a hurry, and the driver has to see it all the same": {
			policy: &hasty, device: gpu(false, xid), op: op(v1alpha1.OperationReset, 1, v1alpha1.ReasonSucceeded, repairing("1")), after: 2 * time.Second,
			again: 3 * time.Second,
		},
		"in use, in a hurry": {
			policy: &hasty, device: gpu(false, xid), op: op(v1alpha1.OperationReset, 1, v1alpha1.ReasonInUse, repairing("1")), after: 2 * time.Second,
			want: []short{{operation.Update, v1alpha1.OperationReset, 2, "", "GPURepairing"}},
		},
		"reset, and no better": {
			device: gpu(false, xid), op: op(v1alpha1.OperationReset, 1, v1alpha1.ReasonSucceeded, repairing("1")), after: 5 * time.Second,
			want: []short{{operation.Update, v1alpha1.OperationReset, 2, "", "GPURepairing"}},
		},
		"no better, and a claim has it now": {
			device: gpu(true, xid), op: op(v1alpha1.OperationReset, 1, v1alpha1.ReasonSucceeded, repairing("1")), after: 5 * time.Second,
		},
		"the second pause is longer": {
			device: gpu(false, xid), op: op(v1alpha1.OperationReset, 2, v1alpha1.ReasonInUse, repairing("2")), after: 5 * time.Second,
			again: 5 * time.Second,
		},
		"the last attempt failed": {
			device: gpu(false, xid), op: op(v1alpha1.OperationReset, 3, v1alpha1.ReasonSucceeded, repairing("3")), after: time.Minute,
			want: []short{{operation.UpdateStatus, v1alpha1.OperationReset, 3, reasonGivenUp, "GPUGivenUp"}},
		},
		"given up": {
			device: gpu(false, xid), after: 24 * time.Hour,
			op: op(v1alpha1.OperationReset, 3, v1alpha1.ReasonSucceeded, recovered(metav1.ConditionFalse, reasonGivenUp, "")),
		},
		"given up, and then worse": {
			device: gpu(false, bus), after: time.Hour,
			op:   op(v1alpha1.OperationReset, 3, v1alpha1.ReasonSucceeded, recovered(metav1.ConditionFalse, reasonGivenUp, "")),
			want: []short{{operation.Update, v1alpha1.OperationWait, 4, "", "GPUWaitForOperator"}},
		},
		"the operator is waited for": {
			device: gpu(false, bus), op: op(v1alpha1.OperationWait, 1, ""),
			want: []short{{operation.UpdateStatus, v1alpha1.OperationWait, 1, reasonOperator, ""}},
		},
		"the operator has been": {
			device: gpu(false), op: op(v1alpha1.OperationWait, 1, ""),
			want: []short{{operation.Delete, v1alpha1.OperationWait, 1, "", "GPUHealthy"}},
		},
		"well after a reset": {
			device: gpu(false), op: op(v1alpha1.OperationReset, 2, v1alpha1.ReasonSucceeded, repairing("2")),
			want: []short{{operation.UpdateStatus, v1alpha1.OperationReset, 2, reasonHealthy, "GPUHealthy"}},
		},
		"well, and attempts still count": {
			device: gpu(false), after: 9 * time.Minute,
			op:    op(v1alpha1.OperationReset, 2, v1alpha1.ReasonSucceeded, recovered(metav1.ConditionTrue, reasonHealthy, "well after 2 attempts")),
			again: time.Minute,
		},
		"well for long": {
			device: gpu(false), after: 10 * time.Minute,
			op:   op(v1alpha1.OperationReset, 2, v1alpha1.ReasonSucceeded, recovered(metav1.ConditionTrue, reasonHealthy, "well after 2 attempts")),
			want: []short{{operation.Delete, v1alpha1.OperationReset, 2, "", ""}},
		},
		"the fault comes back": {
			device: gpu(false, xid), after: 2 * time.Minute,
			op:   op(v1alpha1.OperationReset, 2, v1alpha1.ReasonSucceeded, recovered(metav1.ConditionTrue, reasonHealthy, "")),
			want: []short{{operation.Update, v1alpha1.OperationReset, 3, "", "GPURepairing"}},
		},
		"the fault comes back once too often": {
			device: gpu(false, xid), after: 2 * time.Minute,
			op:   op(v1alpha1.OperationReset, 3, v1alpha1.ReasonSucceeded, recovered(metav1.ConditionTrue, reasonHealthy, "")),
			want: []short{{operation.UpdateStatus, v1alpha1.OperationReset, 3, reasonGivenUp, "GPUGivenUp"}},
		},
		"somebody deletes the operation": {device: gpu(false, xid), op: deleted},
		"to be replaced": {
			policy: &replacing, device: gpu(true, xid), op: op(v1alpha1.OperationReplace, 1, ""),
			want: []short{{Verb: operation.TaintDevice}, {operation.UpdateStatus, v1alpha1.OperationReplace, 1, reasonReplaced, ""}},
		},
		"replaced": {
			policy: &replacing, device: gpu(true, xid),
			op: op(v1alpha1.OperationReplace, 1, "", recovered(metav1.ConditionFalse, reasonReplaced, "Pods are kept away from it: "+xid.String())),
		},
	} {
		t.Run(name, func(t *testing.T) {
			policy := DefaultPolicy()
			if c.policy != nil {
				policy = *c.policy
			}
			before := c.op.DeepCopy()
			actions, again := Decide(policy, c.device, c.op, epoch().Add(c.after))
			if diff := cmp.Diff(c.want, summary(actions)); diff != "" {
				t.Errorf("writes (-want +got):\n%s", diff)
			}
			if again != c.again {
				t.Errorf("again in %s, want %s", again, c.again)
			}
			if diff := cmp.Diff(before, c.op); diff != "" {
				t.Errorf("the operation that was decided upon has changed:\n%s", diff)
			}
		})
	}
}

func slice(node string, generation, count int64, devices ...resourceapi.Device) *resourceapi.ResourceSlice {
	return &resourceapi.ResourceSlice{Spec: resourceapi.ResourceSliceSpec{
		Driver: api.DriverName, NodeName: &node, Devices: devices,
		Pool: resourceapi.ResourcePool{Name: node, Generation: generation, ResourceSliceCount: count},
	}}
}

func device(name string, taints ...resourceapi.DeviceTaint) resourceapi.Device {
	return resourceapi.Device{Name: name, Taints: taints}
}

func TestDevicesAreThoseOfTheNewestGenerationWithTheirParts(t *testing.T) {
	xid := resourceapi.DeviceTaint{Key: api.TaintXID, Value: "48", Effect: resourceapi.DeviceTaintEffectNoExecute}
	foreign := resourceapi.DeviceTaint{Key: "admin.example/x", Effect: resourceapi.DeviceTaintEffectNoExecute}
	told := resourceapi.DeviceTaint{Key: api.TaintXID, Value: "31", Effect: resourceapi.DeviceTaintEffectNone}
	claim := &resourceapi.ResourceClaim{Status: resourceapi.ResourceClaimStatus{Allocation: &resourceapi.AllocationResult{
		Devices: resourceapi.DeviceAllocationResult{Results: []resourceapi.DeviceRequestAllocationResult{
			{Driver: api.DriverName, Pool: "one", Device: "gpu-1-mig-1g.10gb-0"},
			{Driver: api.DriverName, Pool: "one", Device: "gpu-2", AdminAccess: ptr.To(true)},
			{Driver: "nic.example", Pool: "one", Device: "gpu-0"},
		}},
	}}}
	s := State{
		Slices: []*resourceapi.ResourceSlice{
			slice("one", 1, 1, device("gpu-0", xid), device("gpu-9")),
			slice("one", 2, 1, device("gpu-0", foreign, told), device("gpu-1"), device("gpu-1-mig-1g", xid), device("gpu-1-mig-1g.10gb-0", xid), device("gpu-2")),
			slice("two", 7, 2, device("gpu-0", xid)),
		},
		Claims: []*resourceapi.ResourceClaim{claim},
	}
	devices, complete := s.devices()
	want := []Device{
		{Node: "one", Pool: "one", Name: "gpu-0"},
		{Node: "one", Pool: "one", Name: "gpu-1", Taints: []Taint{{api.TaintXID, "48"}}, Held: true},
		{Node: "one", Pool: "one", Name: "gpu-2"},
		{Node: "two", Pool: "two", Name: "gpu-0", Taints: []Taint{{api.TaintXID, "48"}}},
	}
	if diff := cmp.Diff(want, devices); diff != "" {
		t.Errorf("devices (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(map[string]bool{"one": true, "two": false}, complete); diff != "" {
		t.Errorf("complete (-want +got):\n%s", diff)
	}
}

func TestOperationsOnWhatIsNoLongerThereGo(t *testing.T) {
	named := func(node, device string) *v1alpha1.DeviceOperation {
		o := op(v1alpha1.OperationReset, 1, "")
		o.Name = v1alpha1.OperationName(node, device)
		o.Spec.Node, o.Spec.Pool, o.Spec.Device = node, node, device
		return o
	}
	s := State{
		Slices: []*resourceapi.ResourceSlice{slice("one", 1, 1, device("gpu-0")), slice("two", 1, 2, device("gpu-0"))},
		Nodes:  map[string]bool{"one": true, "two": true, "silent": true},
		Operations: map[string]*v1alpha1.DeviceOperation{
			"one.gpu-7": named("one", "gpu-7"), "two.gpu-7": named("two", "gpu-7"),
			"silent.gpu-0": named("silent", "gpu-0"), "gone.gpu-0": named("gone", "gpu-0"),
		},
	}
	actions, _ := All(DefaultPolicy(), s, epoch())
	got := map[string]string{}
	for _, course := range actions {
		for _, a := range course {
			if a.Verb == operation.Delete {
				got[a.Operation.Name] = a.IfGone
			}
		}
	}
	// A node whose driver says nothing, or has not said everything yet, may still
	// have the device.
	want := map[string]string{"one.gpu-7": "", "gone.gpu-0": "gone"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("deleted, with the node that must be gone (-want +got):\n%s", diff)
	}
}
