package api

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Kinds of [Fault] that a GPU can have.
const (
	// FaultXID is an error report of the GPU's driver; Code is the XID. Which
	// XIDs are fatal the driver decides, not the fault.
	FaultXID = "xid"
	// FaultECCDouble is an uncorrectable memory error.
	FaultECCDouble = "ecc-double"
	// FaultECCSingle is a corrected memory error: reported, not fatal.
	FaultECCSingle = "ecc-single"
	// FaultFabric keeps the GPU out of the NVLink fabric.
	FaultFabric = "fabric"
	// FaultHang keeps calls of the GPU's library from returning.
	FaultHang = "gpu-hang"
	// FaultLost takes the GPU off the bus: no call reaches it.
	FaultLost = "gpu-lost"
	// FaultMemoryLeak has Code MiB in use that belong to no process.
	FaultMemoryLeak = "memory-leak"
	// FaultPCIeGeneration slows the PCIe link to generation Code.
	FaultPCIeGeneration = "pcie-generation"
	// FaultPCIeWidth narrows the PCIe link to Code lanes.
	FaultPCIeWidth = "pcie-width"
	// FaultPower has the power supply slow the GPU down.
	FaultPower = "power"
	// FaultTemperature heats the GPU to Code degrees Celsius.
	FaultTemperature = "temperature"
	// FaultUnreadable makes telemetry calls answer "not supported", as virtual
	// machines often do: the driver must call that unknown, not unhealthy.
	FaultUnreadable = "telemetry-unreadable"
)

// Kinds of [Fault] that the driver can have. They are for labs: the driver looks
// for them where the state of simulated hardware lies, and has none without it.
const (
	// FaultAPIUnreachable fails the driver's calls of the API server.
	FaultAPIUnreachable = "api-unreachable"
	// FaultCDIFull fails the writing of CDI specs as a full disk does.
	FaultCDIFull = "cdi-full"
	// FaultCheckpointFull fails the writing of the checkpoint as a full disk
	// does.
	FaultCheckpointFull = "checkpoint-full"
	// FaultClockJump moves the times in health reports by Code seconds.
	FaultClockJump = "clock-jump"
	// FaultDriverKill kills the driver with SIGKILL when it has done Step.
	FaultDriverKill = "driver-kill"
	// FaultHealthBreaks ends every health stream with an error.
	FaultHealthBreaks = "health-breaks"
	// FaultHealthLate tells of health Code seconds later than it was so.
	FaultHealthLate = "health-late"
	// FaultHealthStalls keeps health streams open and silent.
	FaultHealthStalls = "health-stalls"
	// FaultPrepareFails, FaultPrepareHangs and FaultPrepareSlow are about
	// NodePrepareResources; slow ones wait Code seconds first.
	FaultPrepareFails = "prepare-fails"
	FaultPrepareHangs = "prepare-hangs"
	FaultPrepareSlow  = "prepare-slow"
	// FaultRegistrationFails refuses to tell the kubelet who is there, when it
	// next registers the driver.
	FaultRegistrationFails = "registration-fails"
	// FaultSocketLost takes the service socket away, and who was connected to
	// it; the registration socket stays.
	FaultSocketLost = "socket-lost"
	// FaultUnprepareFails, FaultUnprepareHangs and FaultUnprepareSlow are about
	// NodeUnprepareResources; slow ones wait Code seconds first.
	FaultUnprepareFails = "unprepare-fails"
	FaultUnprepareHangs = "unprepare-hangs"
	FaultUnprepareSlow  = "unprepare-slow"
)

// Kinds of [Fault] that a node can have. Whoever injects them acts on the node;
// the driver does not know them.
const (
	// FaultContainerdRestart restarts the container runtime.
	FaultContainerdRestart = "containerd-restart"
	// FaultKubeletKill kills the kubelet with SIGKILL; the node starts it again.
	FaultKubeletKill = "kubelet-kill"
	// FaultKubeletRestart restarts the kubelet in good order.
	FaultKubeletRestart = "kubelet-restart"
	// FaultKubeletStop stops the kubelet.
	FaultKubeletStop = "kubelet-stop"
	// FaultNetworkCut drops what the node and its Pods send to the API server.
	FaultNetworkCut = "network-cut"
	// FaultNodeReboot restarts the node; what it has in memory, such as CDI
	// specs, is lost.
	FaultNodeReboot = "node-reboot"
)

// FaultTarget is what has a fault.
type FaultTarget string

// All targets. Those of the driver and the node are also the names of their
// directories in HardwareDir, beside those of the GPUs.
const (
	TargetGPU    FaultTarget = "gpu"
	TargetDriver FaultTarget = "driver"
	TargetNode   FaultTarget = "node"
)

// FaultKinds are all kinds, in alphabetical order.
func FaultKinds() []string {
	kinds := make([]string, 0, len(faultTraits()))
	for kind := range faultTraits() {
		kinds = append(kinds, kind)
	}
	slices.Sort(kinds)
	return kinds
}

// Target is what has a fault of the kind; "" for an unknown kind.
func Target(kind string) FaultTarget { return faultTraits()[kind].target }

// traits is what a kind of fault may say.
type traits struct {
	target    FaultTarget
	low, high int  // of Code; both 0: none
	times     bool // Times may be set
	step      bool // Step has to be set
	moment    bool // over as soon as it has happened: neither Until nor Flap
	held      bool // no Flap
}

func faultTraits() map[string]traits {
	return map[string]traits{
		FaultECCDouble:      {target: TargetGPU},
		FaultECCSingle:      {target: TargetGPU},
		FaultFabric:         {target: TargetGPU},
		FaultHang:           {target: TargetGPU},
		FaultLost:           {target: TargetGPU},
		FaultMemoryLeak:     {target: TargetGPU, low: 2, high: maxLeakMiB},
		FaultPCIeGeneration: {target: TargetGPU, low: 1, high: maxPCIeGeneration},
		FaultPCIeWidth:      {target: TargetGPU, low: 1, high: maxPCIeLanes},
		FaultPower:          {target: TargetGPU},
		FaultTemperature:    {target: TargetGPU, low: 1, high: maxCelsius},
		FaultUnreadable:     {target: TargetGPU},
		FaultXID:            {target: TargetGPU, low: 1, high: maxXID},

		FaultAPIUnreachable:    {target: TargetDriver},
		FaultCDIFull:           {target: TargetDriver, times: true},
		FaultCheckpointFull:    {target: TargetDriver, times: true},
		FaultClockJump:         {target: TargetDriver, low: -maxJumpSeconds, high: maxJumpSeconds},
		FaultDriverKill:        {target: TargetDriver, times: true, step: true},
		FaultHealthBreaks:      {target: TargetDriver, times: true},
		FaultHealthLate:        {target: TargetDriver, low: 1, high: maxWaitSeconds},
		FaultHealthStalls:      {target: TargetDriver},
		FaultPrepareFails:      {target: TargetDriver, times: true},
		FaultPrepareHangs:      {target: TargetDriver, times: true},
		FaultPrepareSlow:       {target: TargetDriver, low: 1, high: maxWaitSeconds, times: true},
		FaultRegistrationFails: {target: TargetDriver, times: true},
		FaultSocketLost:        {target: TargetDriver, held: true},
		FaultUnprepareFails:    {target: TargetDriver, times: true},
		FaultUnprepareHangs:    {target: TargetDriver, times: true},
		FaultUnprepareSlow:     {target: TargetDriver, low: 1, high: maxWaitSeconds, times: true},

		FaultContainerdRestart: {target: TargetNode, moment: true},
		FaultKubeletKill:       {target: TargetNode, moment: true},
		FaultKubeletRestart:    {target: TargetNode, moment: true},
		FaultKubeletStop:       {target: TargetNode, held: true},
		FaultNetworkCut:        {target: TargetNode, held: true},
		FaultNodeReboot:        {target: TargetNode, moment: true},
	}
}

// Moment says whether a fault of the kind is over as soon as it has happened.
func Moment(kind string) bool { return faultTraits()[kind].moment }

// KillSteps are the values of Fault.Step: what the driver has just done for a
// claim when it is killed, in the order in which it does it.
func KillSteps() []string {
	return []string{
		"prepare/resolved", "prepare/started", "prepare/bound", "prepare/described", "prepare/completed",
		"unprepare/found", "unprepare/hidden", "unprepare/unbound", "unprepare/verified", "unprepare/forgotten",
	}
}

// Bounds of a faults file.
const (
	maxFaultsBytes    = 64 << 10
	maxFaults         = 64
	maxMessageBytes   = 512
	maxXID            = 999
	maxCelsius        = 200
	maxPCIeLanes      = 32
	maxPCIeGeneration = 7
	maxLeakMiB        = 1 << 20
	maxWaitSeconds    = 600
	maxJumpSeconds    = 24 * 60 * 60
	maxTimes          = 1000
	// minFlap keeps what flaps from doing nothing else.
	minFlap = 100 * time.Millisecond
)

// Fault is one thing that is wrong with a simulated GPU, with the driver or with
// a node.
type Fault struct {
	// ID is unique within the file. The GPU raises the fault's event once
	// when an ID appears, and recovers when it is gone.
	ID string `json:"id"`
	// Kind is one of FaultKinds.
	Kind string `json:"kind"`
	// Code belongs to the kind: an XID, degrees Celsius, PCIe lanes or
	// generation, MiB, seconds; otherwise 0.
	Code int `json:"code,omitempty"`
	// Times is how often the driver does it; 0 is always.
	Times int `json:"times,omitempty"`
	// Step is where FaultDriverKill strikes, one of KillSteps; otherwise "".
	Step string `json:"step,omitempty"`
	// Flap, if set, has the fault come and go: from Since on it is there for
	// this long, away for as long, and so on.
	Flap time.Duration `json:"flapNanoseconds,omitempty"`
	// Message says why, for people; the driver repeats it nowhere.
	Message string `json:"message,omitempty"`
	// Since is when the fault was injected.
	Since time.Time `json:"since,omitzero"`
	// Until, if set, is when the fault goes by itself.
	Until *time.Time `json:"until,omitempty"`
}

// Active says whether f is still there at the given time, be it in the quiet
// half of its flapping.
func (f Fault) Active(at time.Time) bool { return f.Until == nil || at.Before(*f.Until) }

// On says whether f acts at the given time: it is active, and not in the quiet
// half of its flapping.
func (f Fault) On(at time.Time) bool {
	return f.Active(at) && (f.Flap <= 0 || at.Before(f.Since) || at.Sub(f.Since)/f.Flap%2 == 0)
}

// Next is when On may change after the given time; zero if it stays.
func (f Fault) Next(at time.Time) time.Time {
	if !f.Active(at) {
		return time.Time{}
	}
	var next time.Time
	if f.Flap > 0 {
		next = f.Since.Add(f.Flap)
		if !at.Before(f.Since) {
			next = f.Since.Add((at.Sub(f.Since)/f.Flap + 1) * f.Flap)
		}
	}
	if f.Until != nil && (next.IsZero() || f.Until.Before(next)) {
		next = *f.Until
	}
	return next
}

// Validate finds what is wrong with f, with the name of the field.
func (f Fault) Validate() error {
	if !name.MatchString(f.ID) {
		return fmt.Errorf("fault id %q: want lower case letters, digits, '-' and '.', at most 63", f.ID)
	}
	t, known := faultTraits()[f.Kind]
	if !known {
		return fmt.Errorf("fault %q: unknown kind %q, have %s", f.ID, f.Kind, strings.Join(FaultKinds(), ", "))
	}
	if f.Code < t.low || f.Code > t.high || f.Code == 0 && t.low < 0 {
		if t.high == 0 {
			return fmt.Errorf("fault %q: kind %s takes no code", f.ID, f.Kind)
		}
		return fmt.Errorf("fault %q: code %d, kind %s takes %d to %d", f.ID, f.Code, f.Kind, t.low, t.high)
	}
	switch {
	case f.Times != 0 && !t.times:
		return fmt.Errorf("fault %q: kind %s takes no number of times", f.ID, f.Kind)
	case f.Times < 0 || f.Times > maxTimes:
		return fmt.Errorf("fault %q: %d times, want 0 to %d", f.ID, f.Times, maxTimes)
	case t.step && !slices.Contains(KillSteps(), f.Step):
		return fmt.Errorf("fault %q: unknown step %q, have %s", f.ID, f.Step, strings.Join(KillSteps(), ", "))
	case !t.step && f.Step != "":
		return fmt.Errorf("fault %q: kind %s takes no step", f.ID, f.Kind)
	case f.Flap != 0 && (t.moment || t.held):
		return fmt.Errorf("fault %q: kind %s cannot flap", f.ID, f.Kind)
	case f.Flap != 0 && f.Flap < minFlap:
		return fmt.Errorf("fault %q: flaps every %s, at least %s", f.ID, f.Flap, minFlap)
	case len(f.Message) > maxMessageBytes:
		return fmt.Errorf("fault %q: message has %d bytes, at most %d allowed", f.ID, len(f.Message), maxMessageBytes)
	}
	return nil
}

// Faults is the content of FaultsName: everything that is wrong with one GPU,
// with the driver or with the node now. The file is always replaced as a whole (temporary file and rename); no
// file means no faults.
type Faults struct {
	Faults []Fault `json:"faults"`
}

// ParseFaultsOf is ParseFaults for the file of a target: faults of others in it
// are errors.
func ParseFaultsOf(target FaultTarget, data []byte) (Faults, error) {
	f, err := ParseFaults(data)
	if err != nil {
		return Faults{}, err
	}
	for _, fault := range f.Faults {
		if Target(fault.Kind) != target {
			return Faults{}, fmt.Errorf("parse faults: fault %q: kind %s is not one of a %s", fault.ID, fault.Kind, target)
		}
	}
	return f, nil
}

// ParseFaults reads the content of FaultsName.
func ParseFaults(data []byte) (Faults, error) {
	var f Faults
	if err := decodeStrict(data, maxFaultsBytes, &f); err != nil {
		return Faults{}, fmt.Errorf("parse faults: %w", err)
	}
	if err := f.Validate(); err != nil {
		return Faults{}, fmt.Errorf("parse faults: %w", err)
	}
	return f, nil
}

// Validate checks every fault and that no ID is there twice.
func (f Faults) Validate() error {
	if len(f.Faults) > maxFaults {
		return fmt.Errorf("%d faults, at most %d allowed", len(f.Faults), maxFaults)
	}
	seen := make(map[string]bool, len(f.Faults))
	for _, fault := range f.Faults {
		if err := fault.Validate(); err != nil {
			return err
		}
		if seen[fault.ID] {
			return fmt.Errorf("fault id %q is there twice", fault.ID)
		}
		seen[fault.ID] = true
	}
	return nil
}

// Encode checks f and writes it as ParseFaults reads it.
func (f Faults) Encode() ([]byte, error) {
	if err := f.Validate(); err != nil {
		return nil, fmt.Errorf("encode faults: %w", err)
	}
	if f.Faults == nil {
		f.Faults = []Fault{}
	}
	data, err := json.Marshal(f)
	if err != nil {
		return nil, fmt.Errorf("encode faults: %w", err)
	}
	if len(data) > maxFaultsBytes {
		return nil, errors.New("encode faults: too large")
	}
	return append(data, '\n'), nil
}
