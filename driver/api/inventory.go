package api

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Bounds of an inventory.
const (
	maxInventoryBytes = 64 << 10
	// MaxGPUs is the largest number of simulated GPUs on one node.
	MaxGPUs = 1024
	// DefaultGPUs is what a node has when nobody says otherwise.
	DefaultGPUs = "h100:4"
)

// Profiles are the GPU models that can be simulated, in alphabetical order.
func Profiles() []string {
	return []string{"a100", "b200", "h100", "h200", "l4", "t4"}
}

// HasFabric says whether GPUs of a profile are in an NVLink fabric.
func HasFabric(profile string) bool {
	switch profile {
	case "a100", "b200", "h100", "h200":
		return true
	}
	return false
}

// GPUs is a number of GPUs of one model.
type GPUs struct {
	Profile string `json:"profile"` // one of Profiles
	Count   int    `json:"count"`   // at least 1
	// Shared lets claims have a part of a GPU's memory each.
	Shared bool `json:"shared,omitempty"`
}

// sharedWord ends the short form of GPUs that are shared.
const sharedWord = "shared"

// Inventory is the content of InventoryName: the simulated GPUs of one node,
// in the order of their index. Devices are named gpu-0, gpu-1 and so on
// through the whole list.
type Inventory struct {
	GPUs []GPUs `json:"gpus"`
}

// DefaultInventory is the inventory of a node that has no InventoryName.
func DefaultInventory() Inventory {
	return Inventory{GPUs: []GPUs{{Profile: "h100", Count: 4}}}
}

// ParseInventory reads the content of InventoryName.
func ParseInventory(data []byte) (Inventory, error) {
	var inv Inventory
	if err := decodeStrict(data, maxInventoryBytes, &inv); err != nil {
		return Inventory{}, fmt.Errorf("parse inventory: %w", err)
	}
	if err := inv.validate(); err != nil {
		return Inventory{}, fmt.Errorf("parse inventory: %w", err)
	}
	return inv, nil
}

// ParseGPUs reads the short form of an inventory, "h100:4" or
// "h100:2,t4:2:shared". A profile without a count means one GPU.
func ParseGPUs(s string) (Inventory, error) {
	var inv Inventory
	for part := range strings.SplitSeq(s, ",") {
		part, shared := strings.CutSuffix(part, ":"+sharedWord)
		profile, count, found := strings.Cut(part, ":")
		n := 1
		if found {
			var err error
			if n, err = strconv.Atoi(count); err != nil {
				return Inventory{}, fmt.Errorf("parse GPUs %q: count %q is not a number", s, count)
			}
		}
		inv.GPUs = append(inv.GPUs, GPUs{Profile: profile, Count: n, Shared: shared})
		if len(inv.GPUs) > MaxGPUs {
			return Inventory{}, fmt.Errorf("parse GPUs: more than %d entries", MaxGPUs)
		}
	}
	if err := inv.validate(); err != nil {
		return Inventory{}, fmt.Errorf("parse GPUs %q: %w", s, err)
	}
	return inv, nil
}

// String is the short form that ParseGPUs reads.
func (inv Inventory) String() string {
	parts := make([]string, 0, len(inv.GPUs))
	for _, g := range inv.GPUs {
		part := g.Profile + ":" + strconv.Itoa(g.Count)
		if g.Shared {
			part += ":" + sharedWord
		}
		parts = append(parts, part)
	}
	return strings.Join(parts, ",")
}

// Profiles lists the profile of every GPU by index.
func (inv Inventory) Profiles() []string {
	var all []string
	for _, g := range inv.GPUs {
		all = append(all, slices.Repeat([]string{g.Profile}, g.Count)...)
	}
	return all
}

// Shared says whether the GPU of an index is shared.
func (inv Inventory) Shared(index int) bool {
	for _, g := range inv.GPUs {
		if index < g.Count {
			return g.Shared
		}
		index -= g.Count
	}
	return false
}

func (inv Inventory) validate() error {
	if len(inv.GPUs) == 0 {
		return fmt.Errorf("no GPUs")
	}
	total := 0
	for _, g := range inv.GPUs {
		if !slices.Contains(Profiles(), g.Profile) {
			return fmt.Errorf("unknown profile %q, have %s", g.Profile, strings.Join(Profiles(), ", "))
		}
		if g.Count < 1 || g.Count > MaxGPUs {
			return fmt.Errorf("profile %q: count %d, want 1 to %d", g.Profile, g.Count, MaxGPUs)
		}
		total += g.Count
	}
	if total > MaxGPUs {
		return fmt.Errorf("%d GPUs, at most %d allowed", total, MaxGPUs)
	}
	return nil
}

// DeviceName is the name of the GPU with this index.
func DeviceName(index int) string { return "gpu-" + strconv.Itoa(index) }
