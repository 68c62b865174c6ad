package v1alpha1

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestCopiesOfOperationsShareNothing(t *testing.T) {
	full := func() *DeviceOperation {
		return &DeviceOperation{
			ObjectMeta: metav1.ObjectMeta{Name: "one.gpu-0", Labels: map[string]string{"a": "b"}, Finalizers: []string{OperationFinalizer}},
			Spec:       DeviceOperationSpec{Node: "one", Attempt: 1, Claim: &ClaimReference{UID: "u"}},
			Status: DeviceOperationStatus{
				ObservedAttempt: 1, ObservedAt: metav1.NewTime(time.Unix(1, 0)),
				Conditions: []metav1.Condition{{Type: ConditionCompleted, Status: metav1.ConditionTrue}},
			},
		}
	}
	list := &DeviceOperationList{ListMeta: metav1.ListMeta{ResourceVersion: "7"}, Items: []DeviceOperation{*full()}}
	copied, ok := list.DeepCopyObject().(*DeviceOperationList)
	if !ok {
		t.Fatal("the copy of a list is none")
	}
	if diff := cmp.Diff(list, copied); diff != "" {
		t.Errorf("copy (-want +got):\n%s", diff)
	}
	c := &copied.Items[0]
	c.Labels["a"], c.Finalizers[0], c.Spec.Claim.UID, c.Status.Conditions[0].Type = "x", "x", "x", "x"
	if diff := cmp.Diff(full(), &list.Items[0]); diff != "" {
		t.Errorf("a change of the copy changed the original:\n%s", diff)
	}
}

func TestAnswerBelongsToItsOrder(t *testing.T) {
	op := &DeviceOperation{Spec: DeviceOperationSpec{Attempt: 2}}
	op.Status.ObservedAttempt = 1
	op.Status.Conditions = []metav1.Condition{{Type: ConditionCompleted, Status: metav1.ConditionTrue}}
	if answered, completed := op.Done(); answered || completed != nil {
		t.Errorf("answered %t with %v, want no answer: it was about the attempt before", answered, completed)
	}
	op.Status.ObservedAttempt = 2
	if answered, completed := op.Done(); !answered || completed == nil {
		t.Errorf("answered %t with %v, want the answer", answered, completed)
	}
}
