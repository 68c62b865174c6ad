package device

import (
	"errors"
	"fmt"
	"strings"
)

// ErrInUse marks the refusal to destroy a partition that processes use.
var ErrInUse = errors.New("processes use it")

// Partition is a part of a GPU in MIG mode: the memory slices of its place, and
// as many compute slices as its profile says. It exists only while somebody has
// made it.
type Partition struct {
	Profile     string // "1g.10gb"
	Kind        int    // NVML's number of the profile
	Start, Size int    // the first memory slice, and how many
	Slices      int    // compute slices
	Processors  int    // multiprocessors
	// Media means that it has the engines for images and optical flow, which at
	// most one has.
	Media       bool
	MemoryBytes uint64
	// Parent and ParentUUID are the GPU's. Only GPU.Part sets them.
	Parent, ParentUUID string
}

// Part is a partition of the GPU as a device of its own. Its Index stays that of
// the GPU. UUID says which partition it is and is no UUID of NVML's, which gives
// one only to what exists.
func (g GPU) Part(p Partition) GPU {
	p.Parent, p.ParentUUID = g.Name, g.UUID
	suffix := fmt.Sprintf("mig-%s-%d", strings.NewReplacer(".", "", "+", "").Replace(p.Profile), p.Start)
	g.Name, g.UUID = g.Name+"-"+suffix, g.UUID+"/"+suffix
	g.MemoryBytes, g.Partitions, g.Partition = p.MemoryBytes, nil, &p
	return g
}

// Parts are all partitions that the GPU can be cut into, as devices.
func (g GPU) Parts() []GPU {
	parts := make([]GPU, 0, len(g.Partitions))
	for _, p := range g.Partitions {
		parts = append(parts, g.Part(p))
	}
	return parts
}

// Overlaps says whether the two cannot be in use at the same time, because they
// are the same, or are of one GPU and have memory of it in common.
func (g GPU) Overlaps(other GPU) bool {
	if g.Index != other.Index {
		return false
	}
	if g.Partition == nil || other.Partition == nil {
		return true
	}
	return Overlap(g.Partition.Start, g.Partition.Size, other.Partition.Start, other.Partition.Size)
}

// Overlap says whether two ranges of memory slices have one in common.
func Overlap(start, size, otherStart, otherSize int) bool {
	return start < otherStart+otherSize && otherStart < start+size
}
