package fault

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/dra-lab/dra-lab/driver/api"
	"github.com/dra-lab/dra-lab/lab/internal/ui"
)

// Kind is a way to break a GPU, the driver or a node.
type Kind struct {
	Name    string          // as on the command line
	Target  api.FaultTarget // what has it
	Summary string          // what it does, for the help page
	Code    string          // what the code means; empty: the kind takes none
	Default int             // the code when none is given; 0: it has to be given
}

// Kinds lists all kinds, those of GPUs first, each target's in alphabetical order.
func Kinds() []Kind {
	gpu, driver, node := api.TargetGPU, api.TargetDriver, api.TargetNode
	return []Kind{
		{Name: api.FaultECCDouble, Target: gpu, Summary: "an uncorrectable memory error (two bits)"},
		{Name: api.FaultECCSingle, Target: gpu, Summary: "a corrected memory error (one bit), which is no reason to stop"},
		{Name: api.FaultFabric, Target: gpu, Summary: "the GPU is not let into the NVLink fabric"},
		{Name: api.FaultHang, Target: gpu, Summary: "calls of the GPU's library do not return"},
		{Name: api.FaultLost, Target: gpu, Summary: "the GPU falls off the bus, no call reaches it"},
		{Name: api.FaultMemoryLeak, Target: gpu, Summary: "memory is in use that belongs to no process", Code: "MiB", Default: 1024},
		{Name: api.FaultPCIeGeneration, Target: gpu, Summary: "the PCIe link runs at a lower generation, which shows while the GPU works", Code: "generation", Default: 1},
		{Name: api.FaultPCIeWidth, Target: gpu, Summary: "the PCIe link runs with fewer lanes", Code: "lanes", Default: 8},
		{Name: api.FaultPower, Target: gpu, Summary: "the power supply slows the GPU down"},
		{Name: api.FaultTemperature, Target: gpu, Summary: "the GPU is too hot", Code: "degrees Celsius", Default: 105},
		{Name: api.FaultUnreadable, Target: gpu, Summary: "telemetry answers \"not supported\", as in many virtual machines"},
		{Name: api.FaultXID, Target: gpu, Summary: "an error report of the GPU's driver, such as 79 (fallen off the bus) or 31 (an application's own fault)", Code: "XID"},

		{Name: api.FaultAPIUnreachable, Target: driver, Summary: "the driver does not reach the API server"},
		{Name: api.FaultCDIFull, Target: driver, Summary: "no space for CDI specs"},
		{Name: api.FaultCheckpointFull, Target: driver, Summary: "no space for the checkpoint"},
		{Name: api.FaultClockJump, Target: driver, Summary: "the times in health reports are wrong", Code: "seconds", Default: -3600},
		{Name: api.FaultDriverKill, Target: driver, Summary: "SIGKILL once a --step is done, the first of --times 1"},
		{Name: api.FaultHealthBreaks, Target: driver, Summary: "health streams end with an error"},
		{Name: api.FaultHealthLate, Target: driver, Summary: "health is told late", Code: "seconds", Default: 10},
		{Name: api.FaultHealthStalls, Target: driver, Summary: "health streams stay open and say nothing"},
		{Name: api.FaultPrepareFails, Target: driver, Summary: "NodePrepareResources fails, always or --times"},
		{Name: api.FaultPrepareHangs, Target: driver, Summary: "NodePrepareResources does not return"},
		{Name: api.FaultPrepareSlow, Target: driver, Summary: "NodePrepareResources takes longer", Code: "seconds", Default: 5},
		{Name: api.FaultRegistrationFails, Target: driver, Summary: "the kubelet is refused when it next registers the driver"},
		{Name: api.FaultSocketLost, Target: driver, Summary: "the service socket goes, the registration socket stays"},
		{Name: api.FaultUnprepareFails, Target: driver, Summary: "NodeUnprepareResources fails, always or --times"},
		{Name: api.FaultUnprepareHangs, Target: driver, Summary: "NodeUnprepareResources does not return"},
		{Name: api.FaultUnprepareSlow, Target: driver, Summary: "NodeUnprepareResources takes longer", Code: "seconds", Default: 5},

		{Name: api.FaultContainerdRestart, Target: node, Summary: "containerd is restarted"},
		{Name: api.FaultKubeletKill, Target: node, Summary: "SIGKILL for the kubelet, which starts again"},
		{Name: api.FaultKubeletRestart, Target: node, Summary: "the kubelet is restarted"},
		{Name: api.FaultKubeletStop, Target: node, Summary: "the kubelet is stopped"},
		{Name: api.FaultNetworkCut, Target: node, Summary: "nothing from the node or its Pods reaches the API server"},
		{Name: api.FaultNodeReboot, Target: node, Summary: "the node is restarted, /run and CDI specs are lost"},
	}
}

// Params is what a fault can be given besides its kind.
type Params struct {
	Code    int           // 0: the kind's default
	Message string        // why, for whoever lists faults; may be empty
	For     time.Duration // 0: until cleared
	Flap    time.Duration // there for so long, away for so long; 0: there all the time
	Times   int           // how often the driver does it; 0: always, or once if it kills
	Step    string        // of FaultDriverKill, one of api.KillSteps
}

// New makes a fault of a kind with an ID that no other has, which holds from
// now on. What is wrong with kind or params is a usage error.
func New(kind string, params Params) (api.Fault, error) {
	f, err := newFault(kind, params, time.Now())
	return f, ui.UsageError(err)
}

func newFault(kind string, params Params, now time.Time) (api.Fault, error) {
	kinds := Kinds()
	i := slices.IndexFunc(kinds, func(k Kind) bool { return k.Name == kind })
	if i < 0 {
		names := make([]string, 0, len(kinds))
		for _, k := range kinds {
			names = append(names, k.Name)
		}
		return api.Fault{}, ui.WithHint(fmt.Errorf("unknown kind of fault %q", kind),
			"one of %s", strings.Join(names, ", "))
	}
	code := params.Code
	if code == 0 {
		code = kinds[i].Default
	}
	if code == 0 && kinds[i].Code != "" {
		return api.Fault{}, ui.WithHint(fmt.Errorf("fault %s needs a code (%s)", kind, kinds[i].Code),
			"lab fault inject %s --code 79", kind)
	}
	if kind == api.FaultDriverKill && params.Times == 0 {
		params.Times = 1 // again and again it would never be more than started
	}
	switch {
	case params.For < 0:
		return api.Fault{}, fmt.Errorf("fault %s for %s: the duration is negative", kind, params.For)
	case params.For > 0 && api.Moment(kind):
		return api.Fault{}, ui.WithHint(fmt.Errorf("fault %s for %s: it is over as soon as it has happened", kind, params.For),
			"lab fault inject %s", kind)
	case kind == api.FaultDriverKill && params.Step == "":
		return api.Fault{}, ui.WithHint(fmt.Errorf("fault %s needs a step", kind), "--step with one of %s", strings.Join(api.KillSteps(), ", "))
	}
	// The kind for its ID, as long as the user may see it in an error.
	f := api.Fault{ID: kind, Kind: kind, Code: code, Times: params.Times, Step: params.Step, Flap: params.Flap, Message: params.Message, Since: now.UTC()}
	if params.For > 0 {
		until := f.Since.Add(params.For)
		f.Until = &until
	}
	if err := f.Validate(); err != nil {
		return api.Fault{}, err
	}
	f.ID = newID(kind)
	return f, nil
}

// complete gives a fault that a program made by hand the fields that New would
// have set.
func complete(f api.Fault, now time.Time) (api.Fault, error) {
	if f.ID == "" {
		f.ID = newID(f.Kind)
	}
	if f.Since.IsZero() {
		f.Since = now.UTC()
	}
	if f.Until != nil && !f.Until.After(now) {
		return api.Fault{}, errors.New("the fault's time is already over")
	}
	return f, f.Validate()
}

// newID makes an ID like xid-3f9a01c2. It is random, not counted, so that two
// commands at the same time need not agree.
func newID(kind string) string {
	var b [4]byte
	_, _ = rand.Read(b[:]) // never fails
	return kind + "-" + hex.EncodeToString(b[:])
}
