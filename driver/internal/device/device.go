// Package device has the words in which the rest of the driver speaks of GPUs:
// what a GPU is, what it reports by itself, and what it answers when asked. It
// knows nothing of NVML, so that everything above it builds and is tested
// without cgo.
package device

// GPU is one whole GPU, or a partition of one, as found when the driver started.
// Strings that could not be read are empty and numbers 0.
type GPU struct {
	Index         int    // NVML's index
	Name          string // name in ResourceSlices, "gpu-0"
	UUID          string // "GPU-..."
	Product       string // "NVIDIA H100 80GB HBM3"
	Brand         string // "NVIDIA"
	Architecture  string // "Hopper"
	ComputeMajor  int
	ComputeMinor  int
	MemoryBytes   uint64
	PCIBusID      string // "0000:17:00.0"
	PCIeRoot      string // "pci0000:15", the root complex that the GPU hangs on
	NUMANode      Value[int]
	Minor         int    // of /dev/nvidia<Minor>, -1 when unknown
	DriverVersion string // "580.95.05"
	CUDAVersion   string // "13.0"
	// Problem is why the GPU cannot be given to claims: something that it has to
	// tell could not be read. Empty when all is well; that it declines to tell
	// what can be done without is well, too.
	Problem string
	// Shared means that several claims may have a part of its memory each.
	Shared bool
	// Partitions are all that a GPU in MIG mode can be cut into, one for each
	// place where one can be; nil for any other.
	Partitions []Partition
	// Partition is set when this is not a whole GPU but a part of one; see
	// [GPU.Part].
	Partition *Partition
}

// Settings are what a claim wants of a GPU while it has it. The zero value is
// how a GPU is by itself.
type Settings struct {
	// Exclusive lets one process at a time use the GPU.
	Exclusive bool `json:"exclusive,omitempty"`
	// TimeSlice is how long a process has the GPU before it is the next one's
	// turn, in the words of driver/api/v1alpha1; empty is the GPU's own default.
	TimeSlice string `json:"timeSlice,omitempty"`
	// MemoryBytes is what the claim may use of the memory; 0 is all of it.
	MemoryBytes uint64 `json:"memoryBytes,omitempty"`
}

// Usage is what runs on a GPU.
type Usage struct {
	UsedBytes  uint64
	TotalBytes uint64
	Processes  []Process
}

// Process uses a GPU. PID is in the namespace that NVML reports, which is not
// always the driver's: show it, never signal it.
type Process struct {
	PID   uint32
	Bytes uint64
}

// Value is an answer that a GPU may decline to give.
type Value[T any] struct {
	V     T
	Known bool
}

// Known is a given answer.
func Known[T any](v T) Value[T] { return Value[T]{V: v, Known: true} }

// RecoveryAction is what a GPU says has to be done before it works again.
type RecoveryAction int

// The actions of NVML, with its numbers.
const (
	RecoveryNone RecoveryAction = iota
	RecoveryGPUReset
	RecoveryNodeReboot
	RecoveryDrainP2P
	RecoveryDrainAndReset
	RecoveryIMEXDomain
	RecoveryBusReset
	RecoverySystemReboot
)

// String is for messages.
func (a RecoveryAction) String() string {
	switch a {
	case RecoveryNone:
		return "none"
	case RecoveryGPUReset:
		return "GPU reset"
	case RecoveryNodeReboot:
		return "node reboot"
	case RecoveryDrainP2P:
		return "drain peer-to-peer"
	case RecoveryDrainAndReset:
		return "drain and reset"
	case RecoveryIMEXDomain:
		return "recover IMEX domain"
	case RecoveryBusReset:
		return "bus reset"
	case RecoverySystemReboot:
		return "system reboot"
	}
	return "unknown action"
}

// Reading is one round of questions to a GPU.
type Reading struct {
	// Lost says that the GPU is no longer reachable; nothing else is known
	// then, and Detail has the answer that said so.
	Lost bool
	// Problem is the GPU's: why it cannot be given to claims.
	Problem string
	// Detail is why the reading is incomplete, for people.
	Detail string

	Temperature      Value[int] // degrees Celsius
	TemperatureLimit Value[int] // where the GPU slows itself down
	PCIeWidth        Value[int] // lanes in use
	PCIeWidthMax     Value[int] // lanes that GPU and slot have
	// PCIeGeneration is that of the link while the GPU works; one that idles
	// lowers it to save power, and does not tell.
	PCIeGeneration    Value[int]
	PCIeGenerationMax Value[int] // that GPU and slot have
	PowerMilliwatts   Value[int]
	PowerBraked       Value[bool]   // the power supply has the GPU slow down
	FabricError       Value[string] // why the GPU is not in the NVLink fabric; "" when it is
	UncorrectedECC    Value[uint64] // errors since the GPU's driver was loaded
	RemapFailed       Value[bool]   // a bad memory row could not be remapped
	Recovery          Value[RecoveryAction]
	UsedBytes         Value[uint64]
}

// Answered says whether the GPU answered at least one question.
func (r Reading) Answered() bool {
	return !r.Lost && (r.Temperature.Known || r.PCIeWidth.Known || r.PowerMilliwatts.Known ||
		r.UncorrectedECC.Known || r.Recovery.Known || r.UsedBytes.Known)
}

// EventKind says what a GPU reported by itself.
type EventKind int

const (
	// EventXID is an error report; Code has the XID.
	EventXID EventKind = iota + 1
	// EventECCDouble is an uncorrectable memory error.
	EventECCDouble
	// EventECCSingle is a corrected memory error.
	EventECCSingle
	// EventRemap is a memory page or row that was retired, or could not be.
	EventRemap
	// EventUnavailable says that a GPU, or with Index -1 some GPU, is gone.
	EventUnavailable
	// EventRecovery says that the action to recover has changed: ask.
	EventRecovery
)

// String is for messages.
func (k EventKind) String() string {
	switch k {
	case EventXID:
		return "XID"
	case EventECCDouble:
		return "uncorrectable ECC error"
	case EventECCSingle:
		return "corrected ECC error"
	case EventRemap:
		return "memory retirement"
	case EventUnavailable:
		return "GPU unavailable"
	case EventRecovery:
		return "recovery action changed"
	}
	return "unknown event"
}

// Event is one report of a GPU.
type Event struct {
	Index int // of the GPU; -1 when the report does not say which
	Kind  EventKind
	Code  uint64 // XID for EventXID, else 0
}
