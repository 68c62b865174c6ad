package gpu

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/dra-lab/dra-lab/driver/internal/device"
)

// memorySlices is what every GPU in MIG mode has of them.
const memorySlices = 8

// partitions asks a GPU what it can be cut into: nothing unless it is in MIG
// mode.
func partitions(h nvml.Device, memoryBytes uint64) ([]device.Partition, error) {
	current, _, ret := h.GetMigMode()
	if unsupported(ret) || ret == nvml.SUCCESS && current != nvml.DEVICE_MIG_ENABLE {
		return nil, nil
	}
	if ret != nvml.SUCCESS {
		return nil, fmt.Errorf("MIG mode: %w", ret)
	}
	var all []device.Partition
	for kind := range nvml.GPU_INSTANCE_PROFILE_COUNT {
		info, ret := h.GetGpuInstanceProfileInfo(kind)
		if unsupported(ret) || ret == nvml.ERROR_INVALID_ARGUMENT {
			continue // another model's, or unknown to this version of the library
		}
		if ret != nvml.SUCCESS {
			return nil, fmt.Errorf("MIG profile %d: %w", kind, ret)
		}
		places, ret := h.GetGpuInstancePossiblePlacements(&info)
		if ret != nvml.SUCCESS {
			return nil, fmt.Errorf("placements of MIG profile %d: %w", kind, ret)
		}
		for _, at := range places {
			all = append(all, device.Partition{
				Profile: profileName(info, kind, memoryBytes), Kind: kind,
				Start: int(at.Start), Size: int(at.Size),
				Slices: int(info.SliceCount), Processors: int(info.MultiprocessorCount),
				Media: info.JpegCount > 0 || info.OfaCount > 0, MemoryBytes: info.MemorySizeMB << 20,
			})
		}
	}
	return all, nil
}

// profileName is how everybody calls a profile: compute slices, and the share of
// the GPU's memory in the round numbers of its data sheet. NVML has the name
// only in a form of the call that an implementation other than the library
// itself cannot answer.
func profileName(info nvml.GpuInstanceProfileInfo, kind int, memoryBytes uint64) string {
	const gib = 1 << 30
	whole := math.Ceil(float64(memoryBytes) / gib)
	share := math.Ceil(float64(info.MemorySizeMB<<20) / float64(max(memoryBytes, 1)) * memorySlices)
	name := fmt.Sprintf("%dg.%.0fgb", info.SliceCount, math.Round(share/memorySlices*whole))
	switch kind {
	case nvml.GPU_INSTANCE_PROFILE_1_SLICE_REV1, nvml.GPU_INSTANCE_PROFILE_2_SLICE_REV1:
		name += "+me"
	case nvml.GPU_INSTANCE_PROFILE_1_SLICE_GFX, nvml.GPU_INSTANCE_PROFILE_2_SLICE_GFX,
		nvml.GPU_INSTANCE_PROFILE_3_SLICE_GFX, nvml.GPU_INSTANCE_PROFILE_4_SLICE_GFX:
		name += "+gfx"
	case nvml.GPU_INSTANCE_PROFILE_1_SLICE_NO_ME, nvml.GPU_INSTANCE_PROFILE_2_SLICE_NO_ME:
		name += "-me"
	case nvml.GPU_INSTANCE_PROFILE_1_SLICE_ALL_ME, nvml.GPU_INSTANCE_PROFILE_2_SLICE_ALL_ME:
		name += "+me.all"
	}
	return name
}

// Create makes a partition, unless it is there already, and gives its UUID. A
// caller must not destroy it at the same time.
func (g *GPUs) Create(part device.GPU) (uuid string, err error) {
	instance, err := g.instance(part)
	if err != nil {
		return "", err
	}
	h, _ := g.at(part.Index)
	if instance == nil {
		info, ret := h.GetGpuInstanceProfileInfo(part.Partition.Kind)
		if ret != nvml.SUCCESS {
			return "", fmt.Errorf("create %s: %w", part.Name, ret)
		}
		at := nvml.GpuInstancePlacement{Start: uint32(part.Partition.Start), Size: uint32(part.Partition.Size)}
		if instance, ret = h.CreateGpuInstanceWithPlacement(&info, &at); ret != nvml.SUCCESS {
			return "", fmt.Errorf("create %s: %w", part.Name, ret)
		}
	}
	// Whoever died here has left an instance without one.
	present, info, err := computeInstances(instance)
	if err != nil {
		return "", fmt.Errorf("create %s: %w", part.Name, err)
	}
	if len(present) == 0 {
		if _, ret := instance.CreateComputeInstance(&info); ret != nvml.SUCCESS {
			return "", fmt.Errorf("create compute instance of %s: %w", part.Name, ret)
		}
	}
	mig, err := g.migDevice(part.Index, instance)
	if err != nil {
		return "", fmt.Errorf("find %s: %w", part.Name, err)
	}
	uuid, ret := mig.GetUUID()
	if ret != nvml.SUCCESS {
		return "", fmt.Errorf("read UUID of %s: %w", part.Name, ret)
	}
	return uuid, nil
}

// Destroy undoes Create. A partition that is not there is not an error; one that
// processes use gives device.ErrInUse and stays.
func (g *GPUs) Destroy(part device.GPU) error {
	instance, err := g.instance(part)
	if err != nil || instance == nil {
		return err
	}
	present, _, err := computeInstances(instance)
	if err != nil {
		return fmt.Errorf("destroy %s: %w", part.Name, err)
	}
	for _, c := range present {
		if ret := c.Destroy(); ret != nvml.SUCCESS {
			return fmt.Errorf("destroy compute instance of %s: %w", part.Name, inUse(ret))
		}
	}
	if ret := instance.Destroy(); ret != nvml.SUCCESS {
		return fmt.Errorf("destroy %s: %w", part.Name, inUse(ret))
	}
	return nil
}

func inUse(ret nvml.Return) error {
	if ret == nvml.ERROR_IN_USE {
		return errors.Join(ret, device.ErrInUse)
	}
	return ret
}

// Present are the partitions of a GPU that exist, whoever made them.
func (g *GPUs) Present(gpu device.GPU) ([]device.GPU, error) {
	var present []device.GPU
	starts := map[int][]int{} // by kind
	for _, part := range gpu.Parts() {
		kind := part.Partition.Kind
		if _, asked := starts[kind]; !asked {
			placed, err := g.instances(part)
			if err != nil {
				return nil, err
			}
			starts[kind] = slices.Collect(maps.Keys(placed))
		}
		if slices.Contains(starts[kind], part.Partition.Start) {
			present = append(present, part)
		}
	}
	return present, nil
}

// PartitionUsage says what runs on a partition. One that does not exist is an
// error; one that does not tell gives errors.ErrUnsupported.
func (g *GPUs) PartitionUsage(part device.GPU) (device.Usage, error) {
	instance, err := g.instance(part)
	if err != nil {
		return device.Usage{}, err
	}
	if instance == nil {
		return device.Usage{}, fmt.Errorf("%s does not exist", part.Name)
	}
	mig, err := g.migDevice(part.Index, instance)
	if err != nil {
		return device.Usage{}, fmt.Errorf("find %s: %w", part.Name, err)
	}
	return usage(mig, part.Name)
}

// instance finds the GPU instance of a partition by its place, nil if there is
// none.
func (g *GPUs) instance(part device.GPU) (nvml.GpuInstance, error) {
	placed, err := g.instances(part)
	if err != nil {
		return nil, err
	}
	return placed[part.Partition.Start], nil
}

// instances are those of the profile of a partition, by their first memory slice.
func (g *GPUs) instances(part device.GPU) (map[int]nvml.GpuInstance, error) {
	if part.Partition == nil || part.Index < 0 || part.Index >= len(g.handles) {
		return nil, fmt.Errorf("%s is no partition", part.Name)
	}
	h, gpu := g.at(part.Index)
	if h == nil {
		return nil, fmt.Errorf("find %s: %s", part.Name, gpu.Problem)
	}
	info, ret := h.GetGpuInstanceProfileInfo(part.Partition.Kind)
	if ret != nvml.SUCCESS {
		return nil, fmt.Errorf("find %s: %w", part.Name, ret)
	}
	instances, ret := h.GetGpuInstances(&info)
	if ret != nvml.SUCCESS {
		return nil, fmt.Errorf("find %s: %w", part.Name, ret)
	}
	placed := make(map[int]nvml.GpuInstance, len(instances))
	for _, i := range instances {
		found, ret := i.GetInfo()
		if ret != nvml.SUCCESS {
			return nil, fmt.Errorf("find %s: %w", part.Name, ret)
		}
		placed[int(found.Placement.Start)] = i
	}
	return placed, nil
}

// computeInstances lists those of an instance that have all of it, and how such
// a one is made. Others are nobody's business: this driver makes none.
func computeInstances(i nvml.GpuInstance) (present []nvml.ComputeInstance, whole nvml.ComputeInstanceProfileInfo, err error) {
	found := false
	for kind := range nvml.COMPUTE_INSTANCE_PROFILE_COUNT {
		info, ret := i.GetComputeInstanceProfileInfo(kind, nvml.COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED)
		if unsupported(ret) || ret == nvml.ERROR_INVALID_ARGUMENT {
			continue
		}
		if ret != nvml.SUCCESS {
			return nil, whole, fmt.Errorf("compute profile %d: %w", kind, ret)
		}
		if !found || info.SliceCount > whole.SliceCount {
			whole, found = info, true
		}
		instances, ret := i.GetComputeInstances(&info)
		if ret != nvml.SUCCESS {
			return nil, whole, fmt.Errorf("list compute instances: %w", ret)
		}
		present = append(present, instances...)
	}
	if !found {
		return nil, whole, errors.New("no compute profile is supported")
	}
	return present, whole, nil
}

// migDevice finds what programs see of an instance.
func (g *GPUs) migDevice(index int, instance nvml.GpuInstance) (nvml.Device, error) {
	info, ret := instance.GetInfo()
	if ret != nvml.SUCCESS {
		return nil, ret
	}
	h, _ := g.at(index)
	count, ret := h.GetMaxMigDeviceCount()
	if ret != nvml.SUCCESS {
		return nil, ret
	}
	for i := range count {
		mig, ret := h.GetMigDeviceHandleByIndex(i)
		if ret == nvml.ERROR_NOT_FOUND {
			continue
		}
		if ret != nvml.SUCCESS {
			return nil, ret
		}
		if id, ret := mig.GetGpuInstanceId(); ret == nvml.SUCCESS && id == int(info.Id) {
			return mig, nil
		}
	}
	return nil, errors.New("no MIG device for it")
}
