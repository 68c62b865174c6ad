package fabric

import (
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/dra-lab/dra-lab/driver/api"
	"github.com/dra-lab/dra-lab/driver/api/v1alpha1"
	"github.com/dra-lab/dra-lab/driver/internal/operation"
)

// Bounds of attaching. All of it fits well into the ten minutes that the
// scheduler waits for a device.
const (
	maxAttempts = 3
	// backoff is the wait after an order that failed; it doubles with each one.
	backoff, maxBackoff = 2 * time.Second, 30 * time.Second
	// silence is how long a node may not answer before the claim has to go
	// elsewhere.
	silence = 2 * time.Minute
	// coolOff is how long a device that could not be attached is kept from
	// others.
	coolOff = 5 * time.Minute
)

// Reasons of the conditions, and of Events.
const (
	reasonAttached     = "Attached"
	reasonAttachFailed = "AttachFailed"
	reasonDetached     = "Detached"
)

// State is everything that is decided upon.
type State struct {
	Claims     []*resourceapi.ResourceClaim
	Operations map[string]*v1alpha1.DeviceOperation // on network-attached devices, by name
	Nodes      map[string]bool                      // that exist
}

// Decide says what to do next. again is when to look once more even if nothing
// changes, 0 for never. Writes about different devices do not depend on each
// other.
//
// The operation on a device stands for its attachment. It is bound to a node for
// good, and goes only when that node's driver has said that the device is
// detached, or when the node is gone: so no device is ever on two nodes.
func Decide(s State, now time.Time) (actions []operation.Action, again time.Duration) {
	holders := map[string]holder{}
	for _, c := range s.Claims {
		for _, h := range held(c) {
			// The scheduler gives a device to one claim at a time. If it is seen
			// twice, one of the two is old news: whoever has the attachment keeps
			// it until that is known.
			if other, ok := holders[h.device]; ok && other.attachedBy(s.Operations[h.operation()]) {
				continue
			}
			holders[h.device] = h
		}
	}
	devices := map[string]bool{}
	for device := range holders {
		devices[device] = true
	}
	for _, op := range s.Operations {
		devices[op.Spec.Device] = true
	}
	for _, device := range slices.Sorted(maps.Keys(devices)) {
		var h *holder
		if found, ok := holders[device]; ok {
			h = &found
		}
		action, wait := decide(h, s.Operations[v1alpha1.OperationName(api.FabricPool, device)], s.Nodes, now)
		if action != nil {
			actions = append(actions, *action)
		}
		if wait > 0 && (again == 0 || wait < again) {
			again = wait
		}
	}
	return actions, again
}

// holder is a claim that has a device.
type holder struct {
	claim  *resourceapi.ResourceClaim
	device string
	node   string // "" if the allocation does not say
}

// held lists what a claim holds. A claim that only looks holds nothing.
func held(c *resourceapi.ResourceClaim) []holder {
	if c.Status.Allocation == nil {
		return nil
	}
	var all []holder
	for _, r := range c.Status.Allocation.Devices.Results {
		if r.Driver != api.FabricDriverName || r.Pool != api.FabricPool || ptr.Deref(r.AdminAccess, false) {
			continue
		}
		all = append(all, holder{claim: c, device: r.Device, node: nodeOf(c.Status.Allocation.NodeSelector)})
	}
	return all
}

// nodeOf is the one node that a selector allows, in the form in which the
// scheduler writes it.
func nodeOf(s *corev1.NodeSelector) string {
	if s == nil || len(s.NodeSelectorTerms) != 1 || len(s.NodeSelectorTerms[0].MatchFields) != 1 {
		return ""
	}
	f := s.NodeSelectorTerms[0].MatchFields[0]
	if f.Key != metav1.ObjectNameField || f.Operator != corev1.NodeSelectorOpIn || len(f.Values) != 1 {
		return ""
	}
	return f.Values[0]
}

func (h holder) operation() string { return v1alpha1.OperationName(api.FabricPool, h.device) }

// attachedBy says whether op is the attachment of the device for the claim.
func (h holder) attachedBy(op *v1alpha1.DeviceOperation) bool {
	return op != nil && op.DeletionTimestamp == nil && op.Spec.Node == h.node &&
		op.Spec.Claim != nil && op.Spec.Claim.UID == string(h.claim.UID)
}

// has says whether op has brought the device to the claim's node.
func (h holder) has(op *v1alpha1.DeviceOperation) bool {
	if !h.attachedBy(op) || op.Spec.Action != v1alpha1.OperationAttach {
		return false
	}
	_, completed := op.Done()
	return completed != nil && completed.Status == metav1.ConditionTrue
}

// decide is about one device: h has it, op is the operation on it; each is nil
// if there is none.
func decide(h *holder, op *v1alpha1.DeviceOperation, nodes map[string]bool, now time.Time) (*operation.Action, time.Duration) {
	switch {
	case op == nil && h == nil:
		return nil, 0
	case h != nil && h.says(api.ConditionAttached) && !h.has(op):
		// Somebody has deleted the operation. No Pod may be bound for a device
		// that is about to go; prepare would refuse it until it is back.
		return h.withdraw(), 0
	case op == nil:
		return h.attach(nodes), 0
	case !nodes[op.Spec.Node]:
		// Where there is no node, nothing is attached.
		return &operation.Action{Verb: operation.Delete, Operation: op, IfGone: op.Spec.Node}, 0
	case op.Spec.Action == v1alpha1.OperationDetach:
		return detaching(op, now)
	case h == nil || !h.attachedBy(op):
		detach := operation.Reorder(op, v1alpha1.OperationDetach, "the claim no longer has it")
		return &detach, 0
	}
	return h.attaching(op, now)
}

// attach orders the attachment.
func (h holder) attach(nodes map[string]bool) *operation.Action {
	if h.failed() {
		return nil // the scheduler takes the device from the claim
	}
	if !nodes[h.node] {
		return h.fail(fmt.Sprintf("no node to attach it to: the claim is allocated for %q", h.node))
	}
	return &operation.Action{Verb: operation.Create, Operation: &v1alpha1.DeviceOperation{
		ObjectMeta: metav1.ObjectMeta{
			Name:       h.operation(),
			Labels:     map[string]string{"app.kubernetes.io/part-of": "dra-lab"},
			Finalizers: []string{v1alpha1.OperationFinalizer},
		},
		Spec: v1alpha1.DeviceOperationSpec{
			Node: h.node, Driver: api.FabricDriverName, Pool: api.FabricPool, Device: h.device,
			Action: v1alpha1.OperationAttach, Attempt: 1, Reason: "allocated",
			Claim: &v1alpha1.ClaimReference{Namespace: h.claim.Namespace, Name: h.claim.Name, UID: string(h.claim.UID)},
		},
	}}
}

// attaching goes on with an attachment that is ordered.
func (h holder) attaching(op *v1alpha1.DeviceOperation, now time.Time) (*operation.Action, time.Duration) {
	if meta.IsStatusConditionTrue(op.Status.Conditions, v1alpha1.ConditionAttachFailed) {
		if !h.failed() {
			return h.fail(meta.FindStatusCondition(op.Status.Conditions, v1alpha1.ConditionAttachFailed).Message), 0
		}
		detach := operation.Reorder(op, v1alpha1.OperationDetach, "it could not be attached")
		return &detach, 0
	}
	answered, completed := op.Done()
	switch {
	case !answered || completed == nil:
		rest := silence - now.Sub(op.CreationTimestamp.Time)
		if rest > 0 {
			return nil, rest
		}
		return giveUp(op, fmt.Sprintf("node %s has not answered for %s", op.Spec.Node, silence), now), 0
	case completed.Status == metav1.ConditionTrue:
		return h.succeed(), 0
	case op.Spec.Attempt >= maxAttempts:
		return giveUp(op, completed.Message, now), 0
	}
	if rest := wait(op.Spec.Attempt) - now.Sub(op.Status.ObservedAt.Time); rest > 0 {
		return nil, rest
	}
	again := operation.Reorder(op, v1alpha1.OperationAttach, op.Spec.Reason)
	return &again, 0
}

// detaching goes on until the device is detached, however long that takes.
func detaching(op *v1alpha1.DeviceOperation, now time.Time) (*operation.Action, time.Duration) {
	answered, completed := op.Done()
	switch {
	case !answered || completed == nil:
		return nil, 0
	case completed.Status != metav1.ConditionTrue:
		if rest := wait(op.Spec.Attempt) - now.Sub(op.Status.ObservedAt.Time); rest > 0 {
			return nil, rest
		}
		again := operation.Reorder(op, v1alpha1.OperationDetach, op.Spec.Reason)
		return &again, 0
	}
	if c := meta.FindStatusCondition(op.Status.Conditions, v1alpha1.ConditionAttachFailed); c != nil && op.DeletionTimestamp == nil {
		if rest := coolOff - now.Sub(c.LastTransitionTime.Time); rest > 0 {
			return nil, rest
		}
	}
	return &operation.Action{Verb: operation.Delete, Operation: op, Event: &operation.Event{
		Node: op.Spec.Node, Reason: "GPU" + reasonDetached, Action: "Detach", Note: op.Spec.Device + " is detached",
	}}, 0
}

// giveUp remembers with the operation that the device could not be attached.
func giveUp(op *v1alpha1.DeviceOperation, message string, now time.Time) *operation.Action {
	tell, _ := operation.Tell(op, metav1.Condition{
		Type: v1alpha1.ConditionAttachFailed, Status: metav1.ConditionTrue, Reason: reasonAttachFailed,
		Message: message, LastTransitionTime: metav1.NewTime(now),
	})
	tell.Event = &operation.Event{
		Node: op.Spec.Node, Warning: true, Reason: "GPU" + reasonAttachFailed, Action: "Attach",
		Note: fmt.Sprintf("%s could not be attached: %s", op.Spec.Device, message),
	}
	return &tell
}

func wait(attempt int64) time.Duration {
	d := backoff
	for ; attempt > 1 && d < maxBackoff; attempt-- {
		d *= 2
	}
	return min(d, maxBackoff)
}

// failed says whether the claim knows that its device cannot be attached.
func (h holder) failed() bool { return h.says(api.ConditionAttachFailed) }

// says says whether a condition of the claim's device is true.
func (h holder) says(condition string) bool {
	s := h.status()
	return s != nil && meta.IsStatusConditionTrue(s.Conditions, condition)
}

func (h holder) status() *resourceapi.AllocatedDeviceStatus {
	i := slices.IndexFunc(h.claim.Status.Devices, h.isMine)
	if i < 0 {
		return nil
	}
	return &h.claim.Status.Devices[i]
}

func (h holder) isMine(d resourceapi.AllocatedDeviceStatus) bool {
	return d.Driver == api.FabricDriverName && d.Pool == api.FabricPool && d.Device == h.device
}

// succeed lets the Pod be bound. Nil means that the claim says so already.
func (h holder) succeed() *operation.Action {
	if h.says(api.ConditionAttached) {
		return nil
	}
	return h.condition(metav1.Condition{
		Type: api.ConditionAttached, Status: metav1.ConditionTrue, Reason: reasonAttached,
		Message: "attached to node " + h.node,
	}, &operation.Event{Node: h.node, Reason: "GPU" + reasonAttached, Action: "Attach",
		Note: fmt.Sprintf("%s is attached for claim %s/%s", h.device, h.claim.Namespace, h.claim.Name)})
}

// withdraw takes back what succeed said.
func (h holder) withdraw() *operation.Action {
	return h.condition(metav1.Condition{
		Type: api.ConditionAttached, Status: metav1.ConditionFalse, Reason: reasonDetached,
		Message: "the operation that attached it is gone",
	}, nil)
}

// fail has the scheduler choose again.
func (h holder) fail(message string) *operation.Action {
	return h.condition(metav1.Condition{
		Type: api.ConditionAttachFailed, Status: metav1.ConditionTrue, Reason: reasonAttachFailed, Message: message,
	}, nil)
}

func (h holder) condition(c metav1.Condition, e *operation.Event) *operation.Action {
	claim := h.claim.DeepCopy()
	i := slices.IndexFunc(claim.Status.Devices, h.isMine)
	if i < 0 {
		i = len(claim.Status.Devices)
		claim.Status.Devices = append(claim.Status.Devices, resourceapi.AllocatedDeviceStatus{
			Driver: api.FabricDriverName, Pool: api.FabricPool, Device: h.device,
		})
	}
	if !meta.SetStatusCondition(&claim.Status.Devices[i].Conditions, c) {
		return nil
	}
	return &operation.Action{Verb: operation.UpdateClaim, Claim: claim, Event: e}
}
