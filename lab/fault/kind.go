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

// Kind is a way to break a GPU.
type Kind struct {
	Name    string // as on the command line
	Summary string // what it does, for the help page
	Code    string // what the code means; empty: the kind takes none
	Default int    // the code when none is given; 0: it has to be given
}

// Kinds lists all kinds in alphabetical order.
func Kinds() []Kind {
	return []Kind{
		{Name: api.FaultECCDouble, Summary: "an uncorrectable memory error (two bits)"},
		{Name: api.FaultECCSingle, Summary: "a corrected memory error (one bit), which is no reason to stop"},
		{Name: api.FaultLost, Summary: "the GPU falls off the bus, no call reaches it"},
		{Name: api.FaultPCIeWidth, Summary: "the PCIe link runs with fewer lanes", Code: "lanes", Default: 8},
		{Name: api.FaultTemperature, Summary: "the GPU is too hot", Code: "degrees Celsius", Default: 105},
		{Name: api.FaultUnreadable, Summary: "telemetry answers \"not supported\", as in many virtual machines"},
		{Name: api.FaultXID, Summary: "an error report of the GPU's driver, such as 79 (fallen off the bus) or 31 (an application's own fault)", Code: "XID"},
	}
}

// Params is what a fault can be given besides its kind.
type Params struct {
	Code    int           // 0: the kind's default
	Message string        // why, for whoever lists faults; may be empty
	For     time.Duration // 0: until cleared
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
	if params.For < 0 {
		return api.Fault{}, fmt.Errorf("fault %s for %s: the duration is negative", kind, params.For)
	}
	// The kind for its ID, as long as the user may see it in an error.
	f := api.Fault{ID: kind, Kind: kind, Code: code, Message: params.Message, Since: now.UTC()}
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
