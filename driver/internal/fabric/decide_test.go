package fabric

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/dra-lab/dra-lab/driver/api"
	"github.com/dra-lab/dra-lab/driver/api/v1alpha1"
	"github.com/dra-lab/dra-lab/driver/internal/operation"
)

func epoch() time.Time { return time.Date(2026, 12, 1, 12, 0, 0, 0, time.UTC) }

// claim is one that has net-0 on a node, with conditions that are true.
func claim(node string, conditions ...string) *resourceapi.ResourceClaim {
	c := &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "c", UID: "uid-0"},
		Status: resourceapi.ResourceClaimStatus{Allocation: &resourceapi.AllocationResult{
			Devices: resourceapi.DeviceAllocationResult{Results: []resourceapi.DeviceRequestAllocationResult{
				{Request: "gpu", Driver: api.FabricDriverName, Pool: api.FabricPool, Device: "net-0"},
			}},
			NodeSelector: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchFields: []corev1.NodeSelectorRequirement{{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{node}}},
			}}},
		}},
	}
	for _, name := range conditions {
		if len(c.Status.Devices) == 0 {
			c.Status.Devices = []resourceapi.AllocatedDeviceStatus{{Driver: api.FabricDriverName, Pool: api.FabricPool, Device: "net-0"}}
		}
		meta.SetStatusCondition(&c.Status.Devices[0].Conditions, metav1.Condition{Type: name, Status: metav1.ConditionTrue})
	}
	return c
}

// order is one for claim uid-0, answered unless reason is empty.
func order(action v1alpha1.Operation, node string, attempt int64, reason string) *v1alpha1.DeviceOperation {
	o := &v1alpha1.DeviceOperation{
		ObjectMeta: metav1.ObjectMeta{Name: "fabric.net-0", CreationTimestamp: metav1.NewTime(epoch()), Finalizers: []string{v1alpha1.OperationFinalizer}},
		Spec: v1alpha1.DeviceOperationSpec{
			Node: node, Driver: api.FabricDriverName, Pool: api.FabricPool, Device: "net-0", Action: action, Attempt: attempt,
			Claim: &v1alpha1.ClaimReference{Namespace: "default", Name: "c", UID: "uid-0"},
		},
	}
	if reason != "" {
		c := metav1.Condition{Type: v1alpha1.ConditionCompleted, Status: metav1.ConditionFalse, Reason: reason, Message: "said the driver"}
		if reason == v1alpha1.ReasonSucceeded {
			c.Status = metav1.ConditionTrue
		}
		o.Status.ObservedAttempt, o.Status.ObservedAt = attempt, metav1.NewTime(epoch())
		meta.SetStatusCondition(&o.Status.Conditions, c)
	}
	return o
}

func failing(o *v1alpha1.DeviceOperation) *v1alpha1.DeviceOperation {
	meta.SetStatusCondition(&o.Status.Conditions, metav1.Condition{
		Type: v1alpha1.ConditionAttachFailed, Status: metav1.ConditionTrue, Reason: reasonAttachFailed, LastTransitionTime: metav1.NewTime(epoch()),
	})
	return o
}

func TestDecide(t *testing.T) {
	type write struct {
		Verb    operation.Verb
		Action  v1alpha1.Operation
		Attempt int64
		Claim   string // the claim's condition that is true or, with "not", false
		IfGone  string
	}
	deleted := order(v1alpha1.OperationAttach, "one", 1, v1alpha1.ReasonSucceeded)
	deleted.DeletionTimestamp = ptr.To(metav1.NewTime(epoch()))
	monitor := claim("one")
	monitor.Status.Allocation.Devices.Results[0].AdminAccess = ptr.To(true)
	for name, c := range map[string]struct {
		claim *resourceapi.ResourceClaim
		op    *v1alpha1.DeviceOperation
		after time.Duration
		want  *write
		again time.Duration
	}{
		"nothing":              {},
		"allocated":            {claim: claim("one"), want: &write{Verb: operation.Create, Action: v1alpha1.OperationAttach, Attempt: 1}},
		"allocated to look at": {claim: monitor},
		"allocated on no node": {claim: claim("elsewhere"), want: &write{Verb: operation.UpdateClaim, Claim: api.ConditionAttachFailed}},
		"on its way": {
			claim: claim("one"), op: order(v1alpha1.OperationAttach, "one", 1, ""), after: time.Minute, again: time.Minute,
		},
		"the node does not answer": {
			claim: claim("one"), op: order(v1alpha1.OperationAttach, "one", 1, ""), after: silence,
			want: &write{Verb: operation.UpdateStatus, Action: v1alpha1.OperationAttach, Attempt: 1},
		},
		"attached": {
			claim: claim("one"), op: order(v1alpha1.OperationAttach, "one", 1, v1alpha1.ReasonSucceeded),
			want: &write{Verb: operation.UpdateClaim, Claim: api.ConditionAttached},
		},
		"attached and told": {
			claim: claim("one", api.ConditionAttached), op: order(v1alpha1.OperationAttach, "one", 1, v1alpha1.ReasonSucceeded), after: time.Hour,
		},
		"failed once": {
			claim: claim("one"), op: order(v1alpha1.OperationAttach, "one", 1, v1alpha1.ReasonFailed), again: backoff,
		},
		"tried again": {
			claim: claim("one"), op: order(v1alpha1.OperationAttach, "one", 1, v1alpha1.ReasonFailed), after: backoff,
			want: &write{Verb: operation.Update, Action: v1alpha1.OperationAttach, Attempt: 2},
		},
		"failed too often": {
			claim: claim("one"), op: order(v1alpha1.OperationAttach, "one", maxAttempts, v1alpha1.ReasonFailed),
			want: &write{Verb: operation.UpdateStatus, Action: v1alpha1.OperationAttach, Attempt: maxAttempts},
		},
		"the claim has to know": {
			claim: claim("one"), op: failing(order(v1alpha1.OperationAttach, "one", maxAttempts, v1alpha1.ReasonFailed)),
			want: &write{Verb: operation.UpdateClaim, Claim: api.ConditionAttachFailed},
		},
		"the claim knows": {
			claim: claim("one", api.ConditionAttachFailed), op: failing(order(v1alpha1.OperationAttach, "one", maxAttempts, v1alpha1.ReasonFailed)),
			want: &write{Verb: operation.Update, Action: v1alpha1.OperationDetach, Attempt: maxAttempts + 1},
		},
		"cooling off": {
			op: failing(order(v1alpha1.OperationDetach, "one", 4, v1alpha1.ReasonSucceeded)), after: time.Minute, again: coolOff - time.Minute,
		},
		"cooled off": {
			op: failing(order(v1alpha1.OperationDetach, "one", 4, v1alpha1.ReasonSucceeded)), after: coolOff,
			want: &write{Verb: operation.Delete, Action: v1alpha1.OperationDetach, Attempt: 4},
		},
		"deallocated": {
			op:   order(v1alpha1.OperationAttach, "one", 1, v1alpha1.ReasonSucceeded),
			want: &write{Verb: operation.Update, Action: v1alpha1.OperationDetach, Attempt: 2},
		},
		"deallocated before it was attached": {
			op:   order(v1alpha1.OperationAttach, "one", 1, ""),
			want: &write{Verb: operation.Update, Action: v1alpha1.OperationDetach, Attempt: 2},
		},
		"allocated again on another node": {
			claim: claim("two"), op: order(v1alpha1.OperationAttach, "one", 1, v1alpha1.ReasonSucceeded),
			want: &write{Verb: operation.Update, Action: v1alpha1.OperationDetach, Attempt: 2},
		},
		"the other node waits": {claim: claim("two"), op: order(v1alpha1.OperationDetach, "one", 2, "")},
		"the other node waits for a Pod that ends": {
			claim: claim("two"), op: order(v1alpha1.OperationDetach, "one", 2, v1alpha1.ReasonInUse), after: time.Hour,
			want: &write{Verb: operation.Update, Action: v1alpha1.OperationDetach, Attempt: 3},
		},
		"the other node's turn": {
			claim: claim("two"), op: order(v1alpha1.OperationDetach, "one", 2, v1alpha1.ReasonSucceeded),
			want: &write{Verb: operation.Delete, Action: v1alpha1.OperationDetach, Attempt: 2},
		},
		"deleted by hand": {
			claim: claim("one", api.ConditionAttached), op: deleted, want: &write{Verb: operation.UpdateClaim, Claim: "not " + api.ConditionAttached},
		},
		"deleted by hand, and the claim knows": {
			claim: claim("one"), op: deleted, want: &write{Verb: operation.Update, Action: v1alpha1.OperationDetach, Attempt: 2},
		},
		"its node is gone": {
			claim: claim("one"), op: order(v1alpha1.OperationAttach, "elsewhere", 1, v1alpha1.ReasonSucceeded),
			want: &write{Verb: operation.Delete, Action: v1alpha1.OperationAttach, Attempt: 1, IfGone: "elsewhere"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := State{Nodes: map[string]bool{"one": true, "two": true}, Operations: map[string]*v1alpha1.DeviceOperation{}}
			if c.claim != nil {
				s.Claims = append(s.Claims, c.claim)
			}
			if c.op != nil {
				s.Operations[c.op.Name] = c.op
			}
			beforeClaim, beforeOp := c.claim.DeepCopy(), c.op.DeepCopy()
			actions, again := Decide(s, epoch().Add(c.after))
			var got *write
			for _, a := range actions {
				got = &write{Verb: a.Verb, IfGone: a.IfGone}
				if a.Operation != nil {
					got.Action, got.Attempt = a.Operation.Spec.Action, a.Operation.Spec.Attempt
				}
				if a.Claim != nil {
					conditions := a.Claim.Status.Devices[0].Conditions
					last := conditions[len(conditions)-1]
					got.Claim = last.Type
					if last.Status != metav1.ConditionTrue {
						got.Claim = "not " + last.Type
					}
				}
			}
			if diff := cmp.Diff(c.want, got); diff != "" || len(actions) > 1 {
				t.Errorf("%d writes (-want +got):\n%s", len(actions), diff)
			}
			if again != c.again {
				t.Errorf("again in %s, want %s", again, c.again)
			}
			if diff := cmp.Diff(beforeClaim, c.claim) + cmp.Diff(beforeOp, c.op); diff != "" {
				t.Errorf("what was decided upon has changed:\n%s", diff)
			}
		})
	}
}

func TestPublishedDevicesWaitForTheirAttachment(t *testing.T) {
	pool := Resources(2, map[string]*v1alpha1.DeviceOperation{"fabric.net-0": failing(order(v1alpha1.OperationDetach, "one", 4, ""))}).Pools[api.FabricPool]
	if len(pool.Slices) != 1 || len(pool.Slices[0].Devices) != 2 {
		t.Fatalf("pool %+v, want two devices", pool)
	}
	if pool.NodeSelector.NodeSelectorTerms[0].MatchExpressions[0].Key != gpusLabel {
		t.Errorf("node selector %v, want nodes with %s", pool.NodeSelector, gpusLabel)
	}
	for i, d := range pool.Slices[0].Devices {
		if !ptr.Deref(d.BindsToNode, false) || !cmp.Equal(d.BindingConditions, []string{api.ConditionAttached}) || !cmp.Equal(d.BindingFailureConditions, []string{api.ConditionAttachFailed}) {
			t.Errorf("device %s does not wait for its attachment: %+v", d.Name, d)
		}
		if tainted := len(d.Taints) > 0; tainted != (i == 0) {
			t.Errorf("device %s tainted: %t, want that of the one that could not be attached", d.Name, tainted)
		}
	}
}
