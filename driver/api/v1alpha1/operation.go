package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dra-lab/dra-lab/driver/api"
)

// Names of the resource of DeviceOperations, which is in no namespace.
const (
	OperationKind     = "DeviceOperation"
	OperationResource = "deviceoperations"
	// OperationNodeField is the field that a node's driver selects its
	// operations by.
	OperationNodeField = "spec.node"
	// OperationFinalizer keeps an operation that attached a device until the
	// device is detached: until then no other operation on the device can exist.
	OperationFinalizer = api.DriverName + "/detach"
)

// GroupVersion is that of this package's resources.
func GroupVersion() schema.GroupVersion {
	return schema.GroupVersion{Group: api.DriverName, Version: "v1alpha1"}
}

// AddToScheme lets s decode the resources of this package.
func AddToScheme(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion(), &DeviceOperation{}, &DeviceOperationList{})
	metav1.AddToGroupVersion(s, GroupVersion())
	return nil
}

// OperationName is the name of the only operation that there can be on a device.
// Names of devices have no dots, so no two devices have the same.
func OperationName(pool, device string) string { return pool + "." + device }

// Operation is what is to be done to a device.
type Operation string

// All operations.
const (
	// OperationAttach brings a network-attached device to the node. It stands
	// for the attachment as long as that lasts.
	OperationAttach Operation = "Attach"
	// OperationDetach undoes OperationAttach.
	OperationDetach Operation = "Detach"
	// OperationProbe asks the device how it is.
	OperationProbe Operation = "Probe"
	// OperationReset resets a simulated device that nothing uses.
	OperationReset Operation = "Reset"
	// OperationReplace keeps every Pod away from the device, those that have it
	// included, so that others are scheduled. Nothing is done on the node.
	OperationReplace Operation = "Replace"
	// OperationWait is for the operator: nothing is done by itself.
	OperationWait Operation = "Wait"
)

// DeviceOperation is one thing that the controller wants done to one device, and
// what became of it. The controller writes the spec, the driver of the node the
// status. It is named by OperationName: the API server itself keeps a second
// operation on the same device from existing.
type DeviceOperation struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitzero"`

	Spec   DeviceOperationSpec   `json:"spec"`
	Status DeviceOperationStatus `json:"status,omitzero"`
}

// DeviceOperationSpec says what is wanted. Node, Driver, Pool and Device never
// change: a device goes to another node by way of another object.
type DeviceOperationSpec struct {
	Node   string    `json:"node"`
	Driver string    `json:"driver"`
	Pool   string    `json:"pool"`
	Device string    `json:"device"`
	Action Operation `json:"action"`
	// Attempt counts the orders, from 1. Each change of the action and each
	// repetition is one more; it never goes down.
	Attempt int64 `json:"attempt"`
	// Claim is the claim that a device is attached for.
	Claim *ClaimReference `json:"claim,omitempty"`
	// Reason says why, for people.
	Reason string `json:"reason,omitempty"`
}

// ClaimReference is one ResourceClaim, not just any of its name.
type ClaimReference struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	UID       string `json:"uid"`
}

// DeviceOperationStatus says what became of it.
type DeviceOperationStatus struct {
	// ObservedAttempt is the last order that the driver has carried out, or
	// refused. Until it is spec.attempt, the rest is about an earlier one.
	ObservedAttempt int64 `json:"observedAttempt,omitempty"`
	// ObservedAt is when that was.
	ObservedAt metav1.Time `json:"observedAt,omitzero"`
	// Conditions are by type: ConditionCompleted is the driver's, the others
	// are the controller's.
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// Types of conditions of a DeviceOperation.
const (
	// ConditionCompleted says whether the driver has done what the order said.
	ConditionCompleted = "Completed"
	// ConditionRecovered says whether the device needs no repair any more.
	ConditionRecovered = "Recovered"
	// ConditionAttachFailed is true when a device could not be attached. It is
	// kept from new claims as long as the operation is there.
	ConditionAttachFailed = "AttachFailed"
)

// Reasons of ConditionCompleted.
const (
	ReasonSucceeded   = "Succeeded"
	ReasonFailed      = "Failed"      // it was tried, and the message says what went wrong
	ReasonInUse       = "InUse"       // a claim or a process has the device
	ReasonUnsupported = "Unsupported" // never on this device
	ReasonUnhealthy   = "Unhealthy"   // the answer of a probe
)

// Done says whether the driver has answered the last order, and how. An order
// that is not answered yet gives false and nil.
func (o *DeviceOperation) Done() (answered bool, completed *metav1.Condition) {
	if o.Status.ObservedAttempt != o.Spec.Attempt {
		return false, nil
	}
	for i := range o.Status.Conditions {
		if o.Status.Conditions[i].Type == ConditionCompleted {
			return true, &o.Status.Conditions[i]
		}
	}
	return false, nil
}

// DeviceOperationList is what the API server lists.
type DeviceOperationList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`

	Items []DeviceOperation `json:"items"`
}

// DeepCopy gives a copy that shares nothing.
func (o *DeviceOperation) DeepCopy() *DeviceOperation {
	if o == nil {
		return nil
	}
	c := *o
	o.DeepCopyInto(&c.ObjectMeta)
	if o.Spec.Claim != nil {
		claim := *o.Spec.Claim
		c.Spec.Claim = &claim
	}
	o.Status.ObservedAt.DeepCopyInto(&c.Status.ObservedAt)
	c.Status.Conditions = nil
	for i := range o.Status.Conditions {
		c.Status.Conditions = append(c.Status.Conditions, *o.Status.Conditions[i].DeepCopy())
	}
	return &c
}

// DeepCopyObject is DeepCopy for runtime.Object.
func (o *DeviceOperation) DeepCopyObject() runtime.Object { return o.DeepCopy() }

// DeepCopyObject gives a copy that shares nothing.
func (l *DeviceOperationList) DeepCopyObject() runtime.Object {
	c := *l
	l.DeepCopyInto(&c.ListMeta)
	c.Items = nil
	for i := range l.Items {
		c.Items = append(c.Items, *l.Items[i].DeepCopy())
	}
	return &c
}
