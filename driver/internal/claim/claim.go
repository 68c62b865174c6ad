// Package claim decides which devices of this node a ResourceClaim has been
// given. It is pure: the same claim and inventory give the same answer.
//
// It takes nothing on trust. What the scheduler allocated is refused when the
// device does not exist here, is listed twice, or was allocated in a way that
// this driver cannot carry out; a Pod that waits with a clear message is better
// than one that runs on the wrong device.
package claim

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/utils/ptr"

	"github.com/dra-lab/dra-lab/driver/api"
	"github.com/dra-lab/dra-lab/driver/api/v1alpha1"
	"github.com/dra-lab/dra-lab/driver/internal/device"
)

// Assignment is one device of a claim.
type Assignment struct {
	// Request is the request that the device is for, with the subrequest if
	// there is one: "gpu", "gpu/large".
	Request string
	Pool    string
	GPU     device.GPU // or a partition of one
	// Monitor means admin access: the claim looks at the device and does not
	// hold it.
	Monitor bool
	// Share identifies the part of a shared GPU that the claim has; its size is
	// in Settings. Empty means the whole GPU.
	Share string
	// Settings are those that claim and class configure for the request. A
	// claim that only looks changes none.
	Settings device.Settings
}

// Inventory is what a node has.
type Inventory struct {
	Driver string                // only results of this driver are looked at
	Pool   string                // the pool of this node
	GPUs   map[string]device.GPU // and their partitions, by name
}

// uid is what claim UIDs look like. They become part of file names.
var uid = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9-]{0,63}$`)

// ValidateUID checks that a claim's UID may become part of a file name.
func ValidateUID(s string) error {
	if !uid.MatchString(s) {
		return fmt.Errorf("claim UID %q: want letters, digits and '-', at most 64", s)
	}
	return nil
}

// Resolve gives the devices of a claim in the order of its allocation. A claim
// that is allocated but has no device of this driver gives none.
func Resolve(c *resourceapi.ResourceClaim, inv Inventory) ([]Assignment, error) {
	if err := ValidateUID(string(c.UID)); err != nil {
		return nil, err
	}
	if c.Status.Allocation == nil {
		return nil, errors.New("claim is not allocated")
	}
	configs, err := configurations(c.Status.Allocation.Devices.Config, inv.Driver)
	if err != nil {
		return nil, err
	}
	var assigned []Assignment
	// The scheduler gives a device to a claim once, admin access included.
	seen := map[string]bool{}
	for _, r := range c.Status.Allocation.Devices.Results {
		if r.Driver != inv.Driver {
			continue
		}
		a, err := resolve(r, inv)
		if err != nil {
			return nil, fmt.Errorf("request %q: device %q: %w", r.Request, r.Device, err)
		}
		if seen[r.Device] {
			return nil, fmt.Errorf("request %q: device %q: allocated twice in one claim, ask for different ones with a constraint distinctAttribute on uuid", r.Request, r.Device)
		}
		seen[r.Device] = true
		if !a.Monitor {
			bytes := a.Settings.MemoryBytes
			a.Settings = settings(configs, a.Request)
			a.Settings.MemoryBytes = bytes
			if a.Share != "" && a.Settings.Exclusive {
				return nil, fmt.Errorf("request %q: device %q: a share of a GPU cannot be %s", r.Request, r.Device, v1alpha1.Exclusive)
			}
		}
		assigned = append(assigned, a)
	}
	return assigned, nil
}

func resolve(r resourceapi.DeviceRequestAllocationResult, inv Inventory) (Assignment, error) {
	if r.Pool != inv.Pool {
		return Assignment{}, fmt.Errorf("pool is %q, this node has %q", r.Pool, inv.Pool)
	}
	gpu, ok := inv.GPUs[r.Device]
	if !ok {
		return Assignment{}, errors.New("does not exist on this node")
	}
	a := Assignment{
		Request: r.Request,
		Pool:    r.Pool,
		GPU:     gpu,
		Monitor: r.AdminAccess != nil && *r.AdminAccess,
	}
	if a.Monitor && gpu.Partition != nil {
		return Assignment{}, fmt.Errorf("a partition exists only while a claim holds it: ask for admin access to %s", gpu.Partition.Parent)
	}
	if a.Monitor || r.ShareID == nil && len(r.ConsumedCapacity) == 0 {
		return a, nil
	}
	if !gpu.Shared {
		return Assignment{}, errors.New("allocated as a share, but the device is not shared")
	}
	bytes, err := consumed(r, inv.Driver)
	if err != nil {
		return Assignment{}, err
	}
	if r.ShareID == nil || bytes == 0 || bytes > gpu.MemoryBytes {
		return Assignment{}, fmt.Errorf("share %s of %d bytes: want an ID and at most %d bytes", ptr.Deref(r.ShareID, "without ID"), bytes, gpu.MemoryBytes)
	}
	a.Share, a.Settings.MemoryBytes = string(*r.ShareID), bytes
	return a, nil
}

// consumed is how much memory a result has of its device. The name may be given
// with the driver's domain or without.
func consumed(r resourceapi.DeviceRequestAllocationResult, driver string) (uint64, error) {
	q, ok := r.ConsumedCapacity[api.CapacityMemory]
	if !ok {
		q, ok = r.ConsumedCapacity[resourceapi.QualifiedName(driver+"/"+api.CapacityMemory)]
	}
	if !ok {
		return 0, errors.New("allocated as a share without a part of the memory")
	}
	bytes, exact := q.AsInt64()
	if !exact || bytes < 0 {
		return 0, fmt.Errorf("allocated %s of the memory, want a whole number of bytes", q.String())
	}
	return uint64(bytes), nil
}

// configuration is one for this driver.
type configuration struct {
	requests []string // none means all
	config   v1alpha1.GPUConfig
	source   resourceapi.AllocationConfigSource
}

// configurations reads all that are for this driver: a wrong one is an error
// even if no device of the claim needs it. They are in the order in which the
// later one counts: those of the class before those of the claim.
func configurations(all []resourceapi.DeviceAllocationConfiguration, driver string) ([]configuration, error) {
	var ours []configuration
	for _, c := range all {
		if c.Opaque == nil || c.Opaque.Driver != driver {
			continue
		}
		config, err := v1alpha1.Parse(c.Opaque.Parameters.Raw)
		if err != nil {
			return nil, fmt.Errorf("configuration from %s for requests %v: %w", c.Source, c.Requests, err)
		}
		ours = append(ours, configuration{requests: c.Requests, config: config, source: c.Source})
	}
	slices.SortStableFunc(ours, func(a, b configuration) int {
		fromClaim := func(c configuration) int {
			if c.source == resourceapi.AllocationConfigSourceClaim {
				return 1
			}
			return 0
		}
		return fromClaim(a) - fromClaim(b)
	})
	return ours, nil
}

// settings are what the last configuration for a request says. One for a
// request counts for each of its subrequests.
func settings(all []configuration, request string) device.Settings {
	parent, _, _ := strings.Cut(request, "/")
	config := v1alpha1.Default()
	for _, c := range all {
		if len(c.requests) == 0 || slices.Contains(c.requests, request) || slices.Contains(c.requests, parent) {
			config = c.config
		}
	}
	switch {
	case config.Sharing.Strategy == v1alpha1.Exclusive:
		return device.Settings{Exclusive: true}
	case config.Sharing.TimeSlicing.Interval == v1alpha1.IntervalDefault:
		return device.Settings{}
	}
	return device.Settings{TimeSlice: string(config.Sharing.TimeSlicing.Interval)}
}
