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
	// MIG has the GPUs in MIG mode: claims may have partitions of them, which
	// the hardware keeps apart. Only for MIGProfiles, and not with Shared.
	MIG bool `json:"mig,omitempty"`
}

// MIGProfiles are those of Profiles that know MIG mode, in alphabetical order.
func MIGProfiles() []string {
	return []string{"a100", "b200", "h100", "h200"}
}

// maxMIG bounds the GPUs in MIG mode: each is published as some 26 devices.
const maxMIG = 64

// The words that end the short form of GPUs, after profile and count.
const (
	sharedWord = "shared"
	migWord    = "mig"
)

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
// "h100:1:mig,t4:2:shared". A profile without a count means one GPU.
func ParseGPUs(s string) (Inventory, error) {
	var inv Inventory
	for part := range strings.SplitSeq(s, ",") {
		fields := strings.Split(part, ":")
		g := GPUs{Profile: fields[0], Count: 1}
		for i, field := range fields[1:] {
			switch {
			case field == sharedWord:
				g.Shared = true
			case field == migWord:
				g.MIG = true
			case i > 0:
				return Inventory{}, fmt.Errorf("parse GPUs %q: %q after the count, want %s or %s", s, field, sharedWord, migWord)
			default:
				n, err := strconv.Atoi(field)
				if err != nil {
					return Inventory{}, fmt.Errorf("parse GPUs %q: count %q is not a number", s, field)
				}
				g.Count = n
			}
		}
		inv.GPUs = append(inv.GPUs, g)
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
		if g.MIG {
			part += ":" + migWord
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
func (inv Inventory) Shared(index int) bool { return inv.at(index).Shared }

// MIG says whether the GPU of an index is in MIG mode.
func (inv Inventory) MIG(index int) bool { return inv.at(index).MIG }

// at is the entry that the GPU of an index belongs to, empty for an unknown one.
func (inv Inventory) at(index int) GPUs {
	for _, g := range inv.GPUs {
		if index < g.Count {
			return g
		}
		index -= g.Count
	}
	return GPUs{}
}

func (inv Inventory) validate() error {
	if len(inv.GPUs) == 0 {
		return fmt.Errorf("no GPUs")
	}
	total, mig := 0, 0
	for _, g := range inv.GPUs {
		if !slices.Contains(Profiles(), g.Profile) {
			return fmt.Errorf("unknown profile %q, have %s", g.Profile, strings.Join(Profiles(), ", "))
		}
		if g.Count < 1 || g.Count > MaxGPUs {
			return fmt.Errorf("profile %q: count %d, want 1 to %d", g.Profile, g.Count, MaxGPUs)
		}
		if g.MIG {
			if !slices.Contains(MIGProfiles(), g.Profile) {
				return fmt.Errorf("profile %q has no MIG mode, those that have are %s", g.Profile, strings.Join(MIGProfiles(), ", "))
			}
			if g.Shared {
				return fmt.Errorf("profile %q: a GPU is either %s or in MIG mode", g.Profile, sharedWord)
			}
			mig += g.Count
		}
		total += g.Count
	}
	if mig > maxMIG {
		return fmt.Errorf("%d GPUs in MIG mode, at most %d allowed", mig, maxMIG)
	}
	if total > MaxGPUs {
		return fmt.Errorf("%d GPUs, at most %d allowed", total, MaxGPUs)
	}
	return nil
}

// DeviceName is the name of the GPU with this index.
func DeviceName(index int) string { return "gpu-" + strconv.Itoa(index) }
