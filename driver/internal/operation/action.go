package operation

import (
	"context"
	"fmt"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/dra-lab/dra-lab/driver/api/v1alpha1"
)

// Verb is the kind of an Action.
type Verb string

// All verbs.
const (
	Create       Verb = "create"        // Operation
	Update       Verb = "update"        // the spec of Operation
	UpdateStatus Verb = "update-status" // the conditions of Operation
	Delete       Verb = "delete"        // Operation, with its finalizer
	UpdateClaim  Verb = "update-claim"  // the status of Claim
	TaintDevice  Verb = "taint-device"  // by Rule
)

// Action is one write that a decision asks for. Objects are whole and carry the
// resource version that was decided upon: whoever decided on old news has his
// write refused, and decides anew.
type Action struct {
	Verb      Verb
	Operation *v1alpha1.DeviceOperation
	Claim     *resourceapi.ResourceClaim
	Rule      *resourceapi.DeviceTaintRule
	// IfGone names a node without which only the write is right. The API server
	// is asked, since caches may be behind.
	IfGone string
	// Event is told once the write is done. Nil means none.
	Event *Event
}

// Event is what people who look at the node should see.
type Event struct {
	Node    string
	Warning bool
	Reason  string // CamelCase
	Action  string // CamelCase
	Note    string
}

// Writer is what actions need of the API server.
type Writer interface {
	// NodeExists asks the API server itself.
	NodeExists(ctx context.Context, name string) (bool, error)
	CreateOperation(ctx context.Context, op *v1alpha1.DeviceOperation) error
	UpdateOperation(ctx context.Context, op *v1alpha1.DeviceOperation) error
	UpdateOperationStatus(ctx context.Context, op *v1alpha1.DeviceOperation) error
	// DeleteOperation deletes the object with op's UID and nothing else.
	DeleteOperation(ctx context.Context, op *v1alpha1.DeviceOperation) error
	UpdateClaimStatus(ctx context.Context, claim *resourceapi.ResourceClaim) error
	CreateTaintRule(ctx context.Context, rule *resourceapi.DeviceTaintRule) error
}

// Do carries out a. What is there already, or gone already, is done.
func (a Action) Do(ctx context.Context, w Writer) error {
	if a.IfGone != "" {
		switch there, err := w.NodeExists(ctx, a.IfGone); {
		case err != nil:
			return fmt.Errorf("%s: %w", a, err)
		case there:
			return fmt.Errorf("%s: node %q is there", a, a.IfGone)
		}
	}
	var err error
	switch a.Verb {
	case Create:
		err = w.CreateOperation(ctx, a.Operation)
	case Update:
		err = w.UpdateOperation(ctx, a.Operation)
	case UpdateStatus:
		err = w.UpdateOperationStatus(ctx, a.Operation)
	case Delete:
		if len(a.Operation.Finalizers) > 0 {
			released := a.Operation.DeepCopy()
			released.Finalizers = nil
			if err = w.UpdateOperation(ctx, released); err != nil {
				break
			}
		}
		err = w.DeleteOperation(ctx, a.Operation)
	case UpdateClaim:
		err = w.UpdateClaimStatus(ctx, a.Claim)
	case TaintDevice:
		err = w.CreateTaintRule(ctx, a.Rule)
	default:
		return fmt.Errorf("%s: unknown verb", a)
	}
	if a.Verb == Delete && apierrors.IsNotFound(err) || a.Verb == TaintDevice && apierrors.IsAlreadyExists(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("%s: %w", a, err)
	}
	return nil
}

// String is for logs.
func (a Action) String() string {
	switch {
	case a.Operation != nil:
		return fmt.Sprintf("%s operation %s (%s, attempt %d)", a.Verb, a.Operation.Name, a.Operation.Spec.Action, a.Operation.Spec.Attempt)
	case a.Claim != nil:
		return fmt.Sprintf("%s %s/%s", a.Verb, a.Claim.Namespace, a.Claim.Name)
	case a.Rule != nil:
		return fmt.Sprintf("%s %s", a.Verb, a.Rule.Name)
	}
	return string(a.Verb)
}

// Reorder is the write that gives op another order.
func Reorder(op *v1alpha1.DeviceOperation, action v1alpha1.Operation, reason string) Action {
	op = op.DeepCopy()
	op.Spec.Action, op.Spec.Reason = action, reason
	op.Spec.Attempt++
	return Action{Verb: Update, Operation: op}
}

// Tell is the write that sets a condition of op; ok is false when it is set
// already.
func Tell(op *v1alpha1.DeviceOperation, c metav1.Condition) (a Action, ok bool) {
	op = op.DeepCopy()
	if !meta.SetStatusCondition(&op.Status.Conditions, c) {
		return Action{}, false
	}
	return Action{Verb: UpdateStatus, Operation: op}, true
}
