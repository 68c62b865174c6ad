package recovery

import (
	"fmt"
	"strings"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/dra-lab/dra-lab/driver/api"
	"github.com/dra-lab/dra-lab/driver/api/v1alpha1"
	"github.com/dra-lab/dra-lab/driver/internal/operation"
)

// Device is one device that a node's driver publishes.
type Device struct {
	Node, Pool, Name string
	Taints           []Taint
	// Held says whether a claim is allocated the device. Claims that only look
	// at it hold nothing.
	Held bool
}

// Taint is what the driver says is wrong.
type Taint struct{ Key, Value string }

func (t Taint) String() string { return t.Key + "=" + t.Value }

// Reasons of the condition v1alpha1.ConditionRecovered, and of Events.
const (
	reasonHealthy  = "Healthy"         // the taint is gone
	reasonWorking  = "Repairing"       // an attempt is under way, or will be
	reasonGivenUp  = "GivenUp"         // all attempts failed
	reasonOperator = "WaitForOperator" // the policy says so
	reasonReplaced = "Replaced"        // Pods are kept away
)

// eventAction is the action of all Events.
const eventAction = "Recover"

// Decide says what to do next about one device. op is the operation on it, nil
// if there is none; again is when to look once more even if nothing changes, 0
// for never. Writes are made in their order up to the first that fails; then it is
// asked again.
//
// An operation is made when a device needs something and goes when the device
// has been well for long enough, so its attempts are the attempts on the device.
// Deleting it by hand starts them anew.
func Decide(p Policy, d Device, op *v1alpha1.DeviceOperation, now time.Time) (actions []operation.Action, again time.Duration) {
	if len(d.Taints) == 0 {
		return well(p, op, now)
	}
	action, because := p.action(d.Taints)
	c := course{policy: p, device: d, op: op, now: now, action: action, because: because}
	if op == nil {
		return c.begin(), 0
	}
	if op.DeletionTimestamp != nil {
		return nil, 0
	}
	return c.goOn()
}

// well is for a device that has no taint.
func well(p Policy, op *v1alpha1.DeviceOperation, now time.Time) ([]operation.Action, time.Duration) {
	if op == nil || op.DeletionTimestamp != nil {
		return nil, 0
	}
	if op.Spec.Action == v1alpha1.OperationWait || op.Spec.Action == v1alpha1.OperationReplace {
		return []operation.Action{{Verb: operation.Delete, Operation: op, Event: event(op, false, reasonHealthy, op.Spec.Device+" is well again")}}, 0
	}
	if tell, ok := operation.Tell(op, metav1.Condition{
		Type: v1alpha1.ConditionRecovered, Status: metav1.ConditionTrue, Reason: reasonHealthy,
		Message:            fmt.Sprintf("well after %s", times(op.Spec.Attempt)),
		LastTransitionTime: metav1.NewTime(now),
	}); ok {
		tell.Event = event(op, false, reasonHealthy, fmt.Sprintf("%s is well after %s at %s", op.Spec.Device, times(op.Spec.Attempt), verb(op.Spec.Action)))
		return []operation.Action{tell}, 0
	}
	since := meta.FindStatusCondition(op.Status.Conditions, v1alpha1.ConditionRecovered).LastTransitionTime
	if rest := p.ForgetAfter.Duration - now.Sub(since.Time); rest > 0 {
		return nil, rest
	}
	return []operation.Action{{Verb: operation.Delete, Operation: op}}, 0
}

// noticing is how long a driver may take to see that a repair has worked and to
// publish it: it looks at a GPU several times before it calls it well.
const noticing = 5 * time.Second

// course is the repair of one device.
type course struct {
	policy  Policy
	device  Device
	op      *v1alpha1.DeviceOperation
	now     time.Time
	action  v1alpha1.Operation
	because Taint
}

// begin makes the operation.
func (c course) begin() []operation.Action {
	if c.mustWait() {
		return nil // until the claim is gone: the change of the claim is heard of
	}
	op := &v1alpha1.DeviceOperation{
		ObjectMeta: metav1.ObjectMeta{
			Name:   v1alpha1.OperationName(c.device.Pool, c.device.Name),
			Labels: map[string]string{"app.kubernetes.io/part-of": "dra-lab"},
		},
		Spec: v1alpha1.DeviceOperationSpec{
			Node: c.device.Node, Driver: api.DriverName, Pool: c.device.Pool, Device: c.device.Name,
			Action: c.action, Attempt: 1, Reason: c.because.String(),
		},
	}
	return []operation.Action{{Verb: operation.Create, Operation: op, Event: c.started(op)}}
}

// mustWait says whether the next attempt would take the device from a claim.
func (c course) mustWait() bool { return c.action == v1alpha1.OperationReset && c.device.Held }

func (c course) goOn() ([]operation.Action, time.Duration) {
	recovered := meta.FindStatusCondition(c.op.Status.Conditions, v1alpha1.ConditionRecovered)
	if recovered != nil && recovered.Reason == reasonGivenUp && c.op.Spec.Action == c.action {
		return nil, 0
	}
	if c.op.Spec.Action != c.action {
		return c.order()
	}
	switch c.action {
	case v1alpha1.OperationWait:
		return c.tell(reasonOperator, "an operator has to look at it: "+c.because.String(), nil), 0
	case v1alpha1.OperationReplace:
		if tell := c.tell(reasonReplaced, "Pods are kept away from it: "+c.because.String(), nil); tell != nil {
			// The rule first: the condition says that it is there.
			return append([]operation.Action{{Verb: operation.TaintDevice, Rule: c.rule()}}, tell...), 0
		}
		return nil, 0
	}
	answered, completed := c.op.Done()
	if !answered || completed == nil {
		return c.tell(reasonWorking, fmt.Sprintf("attempt %d of %d", c.op.Spec.Attempt, c.policy.MaxAttempts), nil), 0
	}
	wait := c.policy.wait(c.op.Spec.Attempt)
	if completed.Status == metav1.ConditionTrue {
		wait = max(wait, noticing)
	}
	if rest := wait - c.now.Sub(c.op.Status.ObservedAt.Time); rest > 0 {
		return nil, rest
	}
	return c.order()
}

// order gives the driver another order, or gives up.
func (c course) order() ([]operation.Action, time.Duration) {
	tries := c.action == v1alpha1.OperationProbe || c.action == v1alpha1.OperationReset
	if tries && c.op.Spec.Action == c.action && c.op.Spec.Attempt >= c.policy.MaxAttempts {
		message := fmt.Sprintf("still %s after %s", c.because, times(c.op.Spec.Attempt))
		if _, completed := c.op.Done(); completed != nil && completed.Status != metav1.ConditionTrue {
			message += ": " + completed.Message
		}
		return c.tell(reasonGivenUp, message, event(c.op, true, reasonGivenUp,
			fmt.Sprintf("%s: %s; delete DeviceOperation %s to try again", c.device.Name, message, c.op.Name))), 0
	}
	if c.mustWait() {
		return nil, 0
	}
	next := operation.Reorder(c.op, c.action, c.because.String())
	next.Event = c.started(next.Operation)
	return []operation.Action{next}, 0
}

// tell sets the condition that says how far the repair is.
func (c course) tell(reason, message string, e *operation.Event) []operation.Action {
	a, ok := operation.Tell(c.op, metav1.Condition{
		Type: v1alpha1.ConditionRecovered, Status: metav1.ConditionFalse, Reason: reason, Message: message,
		LastTransitionTime: metav1.NewTime(c.now),
	})
	if !ok {
		return nil
	}
	a.Event = e
	return []operation.Action{a}
}

// started is the Event for an order.
func (c course) started(op *v1alpha1.DeviceOperation) *operation.Event {
	switch op.Spec.Action {
	case v1alpha1.OperationWait:
		return event(op, true, reasonOperator, fmt.Sprintf("%s: an operator has to look at it: %s", op.Spec.Device, c.because))
	case v1alpha1.OperationReplace:
		return event(op, true, reasonReplaced, fmt.Sprintf("%s: Pods are kept away from it: %s", op.Spec.Device, c.because))
	}
	return event(op, false, reasonWorking, fmt.Sprintf("%s: attempt %d of %d at %s: %s",
		op.Spec.Device, op.Spec.Attempt, c.policy.MaxAttempts, verb(op.Spec.Action), c.because))
}

// rule evicts the Pods that have the device. It belongs to the operation, and
// goes with it.
func (c course) rule() *resourceapi.DeviceTaintRule {
	return &resourceapi.DeviceTaintRule{
		ObjectMeta: metav1.ObjectMeta{
			Name:   c.op.Name + ".replaced",
			Labels: map[string]string{"app.kubernetes.io/part-of": "dra-lab"},
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: v1alpha1.GroupVersion().String(), Kind: v1alpha1.OperationKind, Name: c.op.Name, UID: c.op.UID,
			}},
		},
		Spec: resourceapi.DeviceTaintRuleSpec{
			DeviceSelector: &resourceapi.DeviceTaintSelector{
				Driver: ptr.To(c.op.Spec.Driver), Pool: ptr.To(c.op.Spec.Pool), Device: ptr.To(c.op.Spec.Device),
			},
			Taint: resourceapi.DeviceTaint{
				Key: api.DriverName + "/replaced", Value: strings.TrimPrefix(c.because.Key, api.DriverName+"/"),
				Effect: resourceapi.DeviceTaintEffectNoExecute,
			},
		},
	}
}

func event(op *v1alpha1.DeviceOperation, warning bool, reason, note string) *operation.Event {
	return &operation.Event{Node: op.Spec.Node, Warning: warning, Reason: "GPU" + reason, Action: eventAction, Note: note}
}

func verb(o v1alpha1.Operation) string { return strings.ToLower(string(o)) }

func times(n int64) string {
	if n == 1 {
		return "1 attempt"
	}
	return fmt.Sprintf("%d attempts", n)
}
