// Package v1alpha1 is the configuration that claims and device classes may give
// the driver, in the opaque parameters of a ResourceClaim or DeviceClass:
//
//	config:
//	- opaque:
//	    driver: gpu.lab.example
//	    parameters:
//	      apiVersion: gpu.lab.example/v1alpha1
//	      kind: GPUConfig
//	      sharing:
//	        strategy: Exclusive
//
// It is read strictly: a setting that is silently ignored is a wrong setting.
// The driver reads it when it prepares a claim; manifests/25-config.yaml has the
// same rules for the API server, which refuses a wrong one when it is written.
package v1alpha1

import (
	"errors"
	"fmt"
	"slices"

	"sigs.k8s.io/json"

	"github.com/dra-lab/dra-lab/driver/api"
)

// Group, version and kind of a GPUConfig.
const (
	APIVersion = api.DriverName + "/v1alpha1"
	Kind       = "GPUConfig"
)

// maxBytes is what the API server allows for opaque parameters.
const maxBytes = 10 << 10

// Strategy says how the processes of the containers with a claim share its GPUs.
type Strategy string

// All strategies.
const (
	// TimeSlicing lets any number of processes use a GPU in turn. It is what
	// GPUs do by themselves.
	TimeSlicing Strategy = "TimeSlicing"
	// Exclusive lets one process at a time use a GPU; a second one is refused.
	Exclusive Strategy = "Exclusive"
)

// Interval is how long a process has a GPU before it is the next one's turn.
type Interval string

// All intervals; how long they are is up to the GPU.
const (
	IntervalDefault Interval = "Default"
	IntervalShort   Interval = "Short"
	IntervalMedium  Interval = "Medium"
	IntervalLong    Interval = "Long"
)

// GPUConfig is the configuration of the GPUs of one or more requests. Use
// Parse, which checks it and fills in defaults.
type GPUConfig struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	// Sharing may be nil: TimeSlicing at the default interval.
	Sharing *Sharing `json:"sharing,omitempty"`
}

// Sharing is one strategy with its settings.
type Sharing struct {
	Strategy Strategy `json:"strategy"`
	// TimeSlicing may be given with that strategy only.
	TimeSlicing *TimeSlicingSettings `json:"timeSlicing,omitempty"`
}

// TimeSlicingSettings are those of the strategy TimeSlicing.
type TimeSlicingSettings struct {
	// Interval must be given.
	Interval Interval `json:"interval"`
}

// Default is the configuration of GPUs for which there is none.
func Default() GPUConfig {
	return GPUConfig{APIVersion: APIVersion, Kind: Kind, Sharing: &Sharing{
		Strategy: TimeSlicing, TimeSlicing: &TimeSlicingSettings{Interval: IntervalDefault},
	}}
}

// Parse reads a GPUConfig and fills in what it leaves to the defaults. Unknown
// fields, keys that are there twice, other kinds and versions, and values that
// make no sense are errors.
func Parse(data []byte) (GPUConfig, error) {
	if len(data) > maxBytes {
		return GPUConfig{}, fmt.Errorf("parse %s: %d bytes, at most %d allowed", Kind, len(data), maxBytes)
	}
	var c GPUConfig
	strict, err := json.UnmarshalStrict(data, &c)
	if err := errors.Join(append(strict, err)...); err != nil {
		return GPUConfig{}, fmt.Errorf("parse %s: %w", Kind, err)
	}
	if err := c.validate(); err != nil {
		return GPUConfig{}, fmt.Errorf("parse %s: %w", Kind, err)
	}
	if c.Sharing == nil {
		c.Sharing = Default().Sharing
	}
	if c.Sharing.Strategy == TimeSlicing && c.Sharing.TimeSlicing == nil {
		c.Sharing.TimeSlicing = Default().Sharing.TimeSlicing
	}
	return c, nil
}

func (c GPUConfig) validate() error {
	if c.APIVersion != APIVersion || c.Kind != Kind {
		return fmt.Errorf("apiVersion %q, kind %q: want %q, %q", c.APIVersion, c.Kind, APIVersion, Kind)
	}
	s := c.Sharing
	if s == nil {
		return nil
	}
	switch {
	case s.Strategy != TimeSlicing && s.Strategy != Exclusive:
		return fmt.Errorf("sharing.strategy is %q: want %s or %s", s.Strategy, TimeSlicing, Exclusive)
	case s.TimeSlicing == nil:
		return nil
	case s.Strategy != TimeSlicing:
		return fmt.Errorf("sharing.timeSlicing is for strategy %s, not %s", TimeSlicing, s.Strategy)
	}
	intervals := []Interval{IntervalDefault, IntervalShort, IntervalMedium, IntervalLong}
	if !slices.Contains(intervals, s.TimeSlicing.Interval) {
		return fmt.Errorf("sharing.timeSlicing.interval is %q: want one of %v", s.TimeSlicing.Interval, intervals)
	}
	return nil
}
