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
	// FaultLost takes the GPU off the bus: no call reaches it.
	FaultLost = "gpu-lost"
	// FaultTemperature heats the GPU to Code degrees Celsius.
	FaultTemperature = "temperature"
	// FaultPCIeWidth narrows the PCIe link to Code lanes.
	FaultPCIeWidth = "pcie-width"
	// FaultUnreadable makes telemetry calls answer "not supported", as virtual
	// machines often do: the driver must call that unknown, not unhealthy.
	FaultUnreadable = "telemetry-unreadable"
)

// FaultKinds are the kinds above, in alphabetical order.
func FaultKinds() []string {
	return []string{
		FaultECCDouble, FaultECCSingle, FaultLost, FaultPCIeWidth,
		FaultTemperature, FaultUnreadable, FaultXID,
	}
}

// Bounds of a faults file.
const (
	maxFaultsBytes  = 64 << 10
	maxFaults       = 64
	maxMessageBytes = 512
	maxXID          = 999
	maxCelsius      = 200
	maxPCIeLanes    = 32
)

// Fault is one thing that is wrong with a simulated GPU.
type Fault struct {
	// ID is unique within the file. The GPU raises the fault's event once
	// when an ID appears, and recovers when it is gone.
	ID string `json:"id"`
	// Kind is one of FaultKinds.
	Kind string `json:"kind"`
	// Code belongs to the kind: an XID, degrees Celsius, PCIe lanes; otherwise
	// 0.
	Code int `json:"code,omitempty"`
	// Message says why, for people; the driver repeats it nowhere.
	Message string `json:"message,omitempty"`
	// Since is when the fault was injected.
	Since time.Time `json:"since,omitzero"`
	// Until, if set, is when the fault goes by itself.
	Until *time.Time `json:"until,omitempty"`
}

// Active says whether f still holds at the given time.
func (f Fault) Active(at time.Time) bool { return f.Until == nil || at.Before(*f.Until) }

// Validate finds what is wrong with f, with the name of the field.
func (f Fault) Validate() error {
	if !name.MatchString(f.ID) {
		return fmt.Errorf("fault id %q: want lower case letters, digits, '-' and '.', at most 63", f.ID)
	}
	if !slices.Contains(FaultKinds(), f.Kind) {
		return fmt.Errorf("fault %q: unknown kind %q, have %s", f.ID, f.Kind, strings.Join(FaultKinds(), ", "))
	}
	low, high := codeRange(f.Kind)
	if f.Code < low || f.Code > high {
		if high == 0 {
			return fmt.Errorf("fault %q: kind %s takes no code", f.ID, f.Kind)
		}
		return fmt.Errorf("fault %q: code %d, kind %s takes %d to %d", f.ID, f.Code, f.Kind, low, high)
	}
	if len(f.Message) > maxMessageBytes {
		return fmt.Errorf("fault %q: message has %d bytes, at most %d allowed", f.ID, len(f.Message), maxMessageBytes)
	}
	return nil
}

func codeRange(kind string) (low, high int) {
	switch kind {
	case FaultXID:
		return 1, maxXID
	case FaultTemperature:
		return 1, maxCelsius
	case FaultPCIeWidth:
		return 1, maxPCIeLanes
	}
	return 0, 0
}

// Faults is the content of FaultsName: everything that is wrong with one GPU
// now. The file is always replaced as a whole (temporary file and rename); no
// file means no faults.
type Faults struct {
	Faults []Fault `json:"faults"`
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
