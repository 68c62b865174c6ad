package timeline

import (
	"time"

	"github.com/dra-lab/dra-lab/lab/timeline/workload"
)

// Component is who did something.
type Component string

// Components, in the order in which a claim meets them.
const (
	User              Component = "user"
	APIServer         Component = "api-server"
	ControllerManager Component = "controller-manager"
	Scheduler         Component = "scheduler"
	Kubelet           Component = "kubelet"
	Driver            Component = "driver"
	Controller        Component = "controller"
	GPU               Component = "gpu"
	Container         Component = "container"
	Lab               Component = "lab"
)

// Source is where the time of an event comes from; see the package's comment.
type Source string

// Sources of times.
const (
	SourceWatch    Source = "watch"
	SourceReport   Source = "report"
	SourceWorkload Source = "workload"
	SourceEvent    Source = "event"
	SourceCaller   Source = "caller"
)

// Kind says what happened, stable for programs.
type Kind string

// Kinds of events. Events of a workload have the kind WorkloadPrefix plus the
// workload's name for it.
const (
	JobCreated   Kind = "job-created"
	JobCompleted Kind = "job-completed"
	JobFailed    Kind = "job-failed"

	PodCreated       Kind = "pod-created"
	PodScheduled     Kind = "pod-scheduled"
	PodUnschedulable Kind = "pod-unschedulable"
	SandboxReady     Kind = "sandbox-ready"
	ContainerWaiting Kind = "container-waiting" // with a reason that is no part of a normal start
	ContainerStarted Kind = "container-started"
	ContainerExited  Kind = "container-exited"
	PodReady         Kind = "pod-ready"
	PodNotReady      Kind = "pod-not-ready"
	PodSucceeded     Kind = "pod-succeeded"
	PodFailed        Kind = "pod-failed"
	PodDisrupted     Kind = "pod-disrupted" // marked for eviction; Text has the reason
	PodDeleted       Kind = "pod-deleted"   // deletion was asked for
	PodGone          Kind = "pod-gone"      // the object is gone
	PodHealth        Kind = "pod-health"    // allocatedResourcesStatus changed; Detail is the health

	ClaimCreated     Kind = "claim-created"
	ClaimAllocated   Kind = "claim-allocated" // one event per device
	ClaimCondition   Kind = "claim-condition" // of a device; Detail is the condition's name and status
	ClaimReserved    Kind = "claim-reserved"
	ClaimUnreserved  Kind = "claim-unreserved"
	ClaimDeallocated Kind = "claim-deallocated"
	ClaimGone        Kind = "claim-gone"

	SlicePublished Kind = "slice-published"
	SliceGone      Kind = "slice-gone"
	DeviceTainted  Kind = "device-tainted" // in the ResourceSlice; Detail is key=value:effect
	DeviceUntaint  Kind = "device-untainted"

	PrepareStarted   Kind = "prepare-started"
	PrepareStep      Kind = "prepare-step" // Detail names it
	Prepared         Kind = "prepared"
	PrepareFailed    Kind = "prepare-failed"
	UnprepareStarted Kind = "unprepare-started"
	UnprepareStep    Kind = "unprepare-step"
	Unprepared       Kind = "unprepared"
	UnprepareFailed  Kind = "unprepare-failed"
	GPUEvent         Kind = "gpu-event"
	DeviceHealth     Kind = "device-health"    // the driver reports it; Detail is the health
	DeviceOperation  Kind = "device-operation" // the driver did what the controller ordered; Detail is the action, with "Failed" after it if it did not
	DriverStep       Kind = "driver-step"      // anything else that the driver reports; Detail names it

	FaultAsked    Kind = "fault-asked" // the command to inject one
	FaultInjected Kind = "fault-injected"
	FaultCleared  Kind = "fault-cleared"
	Action        Kind = "action"   // something else that the user did
	Remark        Kind = "remark"   // an explanation of what comes, or does not come yet
	Measured      Kind = "measured" // a figure that was worked out from earlier events
	Warning       Kind = "warning"  // a Kubernetes Event of type Warning; Detail is its reason

	WorkloadPrefix = "workload-"
)

// Workload is the kind of an event of a workload.
func Workload(event string) Kind { return Kind(WorkloadPrefix + event) }

// Event is one thing that happened. Fields that do not apply are empty.
type Event struct {
	// Sequence is the order in which events were recorded, from 1. Their
	// times can have another order, because reports travel longer than
	// watches.
	Sequence  int       `json:"sequence"`
	Time      time.Time `json:"time"`
	Source    Source    `json:"source"`
	Component Component `json:"component"`
	Kind      Kind      `json:"kind"`

	Node   string `json:"node,omitempty"`
	Pod    string `json:"pod,omitempty"`
	Claim  string `json:"claim,omitempty"`
	Device string `json:"device,omitempty"`

	// Detail is for programs, as the kind says; Text is for people.
	Detail string `json:"detail,omitempty"`
	Text   string `json:"text"`

	// Duration is how long the step took, if it says so.
	Duration time.Duration `json:"durationNanoseconds,omitempty"`
	// Value is a figure that is no duration, in Unit.
	Value float64 `json:"value,omitempty"`
	Unit  string  `json:"unit,omitempty"`
	// Workload is what a workload said, for the kinds with WorkloadPrefix.
	Workload *workload.Line `json:"workload,omitempty"`
}
