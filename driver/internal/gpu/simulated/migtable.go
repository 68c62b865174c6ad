package simulated

import "github.com/NVIDIA/go-nvml/pkg/nvml"

// migMemorySlices and migComputeSlices are what a GPU in MIG mode is cut into.
const (
	migMemorySlices  = 8
	migComputeSlices = 7
)

// migProfile is a kind of GPU instance.
type migProfile struct {
	kind          int    // nvml.GPU_INSTANCE_PROFILE_...
	id            uint32 // as `nvidia-smi mig -lgip` shows it
	slices        uint32 // compute slices
	size          uint32 // memory slices
	starts        []uint32
	instances     uint32 // at a time
	media         uint32 // JPEG and OFA engines
	memoryMiB     uint64
	processors    uint32
	computeKind   int // the compute instance that has all of it
	computeID     uint32
	copyEngines   uint32
	decodeEngines uint32
}

// migProfiles is the table of a model, nil for one that has no MIG mode. The
// models that are simulated have the same profiles at the same places, as
// `nvidia-smi mig -lgipp` prints them; memory and multiprocessors are those that
// `nvidia-smi mig -lgip` prints for each; of the B200 those of three slices and
// more are not from a real one. go-nvml's mocks have tables, too, but
// with placements of 7 memory slices and invented memory sizes.
func migProfiles(model string) []migProfile {
	var memory map[uint32]uint64 // MiB by memory slices
	var processors [6]uint32     // 1g, 1g with twice the memory, 2g, 3g, 4g, 7g
	switch model {
	case "a100":
		memory = map[uint32]uint64{1: 9728, 2: 19968, 4: 40192, 8: 80640}
		processors = [...]uint32{14, 14, 28, 42, 56, 98}
	case "h100":
		memory = map[uint32]uint64{1: 9984, 2: 20096, 4: 40448, 8: 81152}
		processors = [...]uint32{16, 26, 32, 60, 64, 132}
	case "h200":
		memory = map[uint32]uint64{1: 16384, 2: 33024, 4: 71168, 8: 143104}
		processors = [...]uint32{16, 26, 32, 60, 64, 132}
	case "b200":
		memory = map[uint32]uint64{1: 22528, 2: 45312, 4: 91136, 8: 182528}
		processors = [...]uint32{18, 30, 36, 70, 72, 148}
	default:
		return nil
	}
	anywhere := []uint32{0, 1, 2, 3, 4, 5, 6}
	table := []migProfile{
		{kind: nvml.GPU_INSTANCE_PROFILE_1_SLICE, id: 19, slices: 1, size: 1, starts: anywhere, instances: 7, processors: processors[0]},
		{kind: nvml.GPU_INSTANCE_PROFILE_1_SLICE_REV1, id: 20, slices: 1, size: 1, starts: anywhere, instances: 1, media: 1, processors: processors[0]},
		{kind: nvml.GPU_INSTANCE_PROFILE_1_SLICE_REV2, id: 15, slices: 1, size: 2, starts: []uint32{0, 2, 4, 6}, instances: 4, processors: processors[1]},
		{kind: nvml.GPU_INSTANCE_PROFILE_2_SLICE, id: 14, slices: 2, size: 2, starts: []uint32{0, 2, 4}, instances: 3, processors: processors[2]},
		{kind: nvml.GPU_INSTANCE_PROFILE_3_SLICE, id: 9, slices: 3, size: 4, starts: []uint32{0, 4}, instances: 2, processors: processors[3]},
		{kind: nvml.GPU_INSTANCE_PROFILE_4_SLICE, id: 5, slices: 4, size: 4, starts: []uint32{0}, instances: 1, processors: processors[4]},
		{kind: nvml.GPU_INSTANCE_PROFILE_7_SLICE, id: 0, slices: 7, size: 8, starts: []uint32{0}, instances: 1, media: 1, processors: processors[5]},
	}
	compute := map[uint32]struct {
		kind int
		id   uint32
	}{
		1: {nvml.COMPUTE_INSTANCE_PROFILE_1_SLICE, 0},
		2: {nvml.COMPUTE_INSTANCE_PROFILE_2_SLICE, 1},
		3: {nvml.COMPUTE_INSTANCE_PROFILE_3_SLICE, 2},
		4: {nvml.COMPUTE_INSTANCE_PROFILE_4_SLICE, 3},
		7: {nvml.COMPUTE_INSTANCE_PROFILE_7_SLICE, 4},
	}
	for i := range table {
		p := &table[i]
		p.memoryMiB, p.copyEngines, p.decodeEngines = memory[p.size], p.slices, max(1, p.slices/2)
		p.computeKind, p.computeID = compute[p.slices].kind, compute[p.slices].id
	}
	return table
}

// info is what NVML tells of the profile.
func (p migProfile) info() nvml.GpuInstanceProfileInfo {
	return nvml.GpuInstanceProfileInfo{
		Id: p.id, SliceCount: p.slices, InstanceCount: p.instances,
		MultiprocessorCount: p.processors, MemorySizeMB: p.memoryMiB,
		CopyEngineCount: p.copyEngines, DecoderCount: p.decodeEngines, JpegCount: p.media, OfaCount: p.media,
	}
}

// placements are where an instance may be.
func (p migProfile) placements() []nvml.GpuInstancePlacement {
	all := make([]nvml.GpuInstancePlacement, 0, len(p.starts))
	for _, start := range p.starts {
		all = append(all, nvml.GpuInstancePlacement{Start: start, Size: p.size})
	}
	return all
}

// computeInfo is the compute instance that has all of the GPU instance.
func (p migProfile) computeInfo() nvml.ComputeInstanceProfileInfo {
	return nvml.ComputeInstanceProfileInfo{
		Id: p.computeID, SliceCount: p.slices, InstanceCount: 1, MultiprocessorCount: p.processors,
		SharedCopyEngineCount: p.copyEngines, SharedDecoderCount: p.decodeEngines, SharedJpegCount: p.media, SharedOfaCount: p.media,
	}
}
