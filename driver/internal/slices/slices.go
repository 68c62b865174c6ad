// Package slices decides what the driver publishes about its devices. It is
// pure: GPUs and taints in, the content of ResourceSlices out.
package slices

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/dynamic-resource-allocation/deviceattribute"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/utils/ptr"

	"github.com/dra-lab/dra-lab/driver/api"
	"github.com/dra-lab/dra-lab/driver/internal/device"
	"github.com/dra-lab/dra-lab/driver/internal/health"
)

// Pool describes all devices of a node as one pool of its name, in slices of
// no more devices than the API allows. Of a GPU in MIG mode there are both the
// whole and all its partitions; slices of their own have the counters that keep
// the scheduler from giving one thing away twice. A node without devices has an
// empty slice, which says that the driver is there and has nothing. Taints are
// by device.
func Pool(node string, gpus []device.GPU, taints map[string][]health.Taint, simulated bool) resourceslice.DriverResources {
	var pool resourceslice.Pool
	// The API allows fewer devices in a slice when one of them is tainted.
	// Slices must not be cut anew when that happens, so this is the limit always.
	const limit = resourceapi.ResourceSliceMaxDevicesWithAdvancedFeatures
	var devices []resourceapi.Device
	for _, gpu := range gpus {
		parts := gpu.Parts()
		for _, d := range append([]device.GPU{gpu}, parts...) {
			devices = append(devices, Device(d, taintsOf(d, gpu, parts, taints), simulated))
		}
		if len(parts) > 0 {
			consume(devices[len(devices)-len(parts)-1:], gpu)
		}
	}
	for start := 0; start < len(devices) || start == 0; start += limit {
		pool.Slices = append(pool.Slices, resourceslice.Slice{Devices: devices[start:min(start+limit, len(devices))]})
	}
	// After the devices: a slice of those stays what it is when GPUs come to be
	// in MIG mode.
	sets := counterSets(gpus)
	for start := 0; start < len(sets); start += resourceapi.ResourceSliceMaxCounterSets {
		pool.Slices = append(pool.Slices, resourceslice.Slice{
			SharedCounters: sets[start:min(start+resourceapi.ResourceSliceMaxCounterSets, len(sets))],
		})
	}
	return resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{node: pool}}
}

// Device describes one GPU, or a partition of one. What could not be read is left
// out.
func Device(gpu device.GPU, taints []health.Taint, simulated bool) resourceapi.Device {
	d := resourceapi.Device{
		Name: gpu.Name,
		Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
			api.AttributeType:      {StringValue: ptr.To(api.TypeGPU)},
			api.AttributeIndex:     {IntValue: ptr.To(int64(gpu.Index))},
			api.AttributeSimulated: {BoolValue: ptr.To(simulated)},
		},
	}
	text := func(name resourceapi.QualifiedName, value string) {
		if value != "" {
			d.Attributes[name] = resourceapi.DeviceAttribute{StringValue: ptr.To(truncate(value))}
		}
	}
	version := func(name resourceapi.QualifiedName, value string) {
		if v, ok := semantic(value); ok {
			d.Attributes[name] = resourceapi.DeviceAttribute{VersionValue: ptr.To(v)}
		}
	}
	if p := gpu.Partition; p != nil {
		d.Attributes[api.AttributeType] = resourceapi.DeviceAttribute{StringValue: ptr.To(api.TypeMIG)}
		d.Attributes[api.AttributePlacement] = resourceapi.DeviceAttribute{IntValue: ptr.To(int64(p.Start))}
		text(api.AttributeProfile, p.Profile)
		text(api.AttributeParent, p.Parent)
		text(api.AttributeParentUUID, p.ParentUUID)
	} else {
		text(api.AttributeUUID, gpu.UUID)
	}
	text(api.AttributeProductName, gpu.Product)
	text(api.AttributeBrand, gpu.Brand)
	text(api.AttributeArchitecture, gpu.Architecture)
	version(api.AttributeDriverVersion, gpu.DriverVersion)
	version(api.AttributeCUDAVersion, gpu.CUDAVersion)
	if gpu.ComputeMajor > 0 {
		version(api.AttributeComputeCapability, fmt.Sprintf("%d.%d", gpu.ComputeMajor, gpu.ComputeMinor))
	}
	if attr, err := deviceattribute.GetPCIBusIDAttribute(gpu.PCIBusID); err == nil {
		d.Attributes[attr.Name] = attr.Value
	}
	text(deviceattribute.StandardDeviceAttributePCIeRoot, gpu.PCIeRoot)
	// One number, not a list: lists need a feature gate, and whether the cluster
	// has it the driver cannot tell.
	if attr, err := deviceattribute.GetNUMANodeAttribute(gpu.NUMANode.V, deviceattribute.ScalarAttribute); err == nil && gpu.NUMANode.Known {
		d.Attributes[attr.Name] = attr.Value
	}
	if gpu.MemoryBytes > 0 {
		d.Capacity = map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{
			api.CapacityMemory: memory(gpu),
		}
		if gpu.Shared {
			d.AllowMultipleAllocations = ptr.To(true)
		}
		if p := gpu.Partition; p != nil {
			d.Capacity[api.CapacityProcessors] = resourceapi.DeviceCapacity{Value: *resource.NewQuantity(int64(p.Processors), resource.DecimalSI)}
		}
	}
	for _, t := range taints {
		d.Taints = append(d.Taints, resourceapi.DeviceTaint{
			Key:       t.Key,
			Value:     t.Value,
			Effect:    resourceapi.DeviceTaintEffect(t.Effect),
			TimeAdded: ptr.To(metav1.NewTime(t.Since)),
		})
	}
	return d
}

// minimumShare is the least memory that a claim gets of a shared GPU.
const minimumShare = 1 << 20

// memory is that of a GPU. Who asks for no part of a shared one gets all of it.
func memory(gpu device.GPU) resourceapi.DeviceCapacity {
	all := resource.NewQuantity(int64(gpu.MemoryBytes), resource.BinarySI)
	if !gpu.Shared {
		return resourceapi.DeviceCapacity{Value: *all}
	}
	return resourceapi.DeviceCapacity{Value: *all, RequestPolicy: &resourceapi.CapacityRequestPolicy{
		Default:    all,
		ValidRange: &resourceapi.CapacityRequestPolicyRange{Min: resource.NewQuantity(minimumShare, resource.BinarySI)},
	}}
}

// truncate cuts a string to what an attribute may have: so many bytes, and only
// whole characters.
func truncate(s string) string {
	return strings.ToValidUTF8(s[:min(len(s), resourceapi.DeviceAttributeMaxValueLength)], "")
}

var numbers = regexp.MustCompile(`^(\d{1,9})\.(\d{1,9})(?:\.(\d{1,9}))?$`)

// semantic makes of two or three numbers the semantic version that the API
// wants: three numbers, without leading zeros ("580.95.05" is 580.95.5).
func semantic(s string) (string, bool) {
	m := numbers.FindStringSubmatch(s)
	if m == nil {
		return "", false
	}
	out := ""
	for i, part := range m[1:] {
		if part == "" {
			part = "0"
		}
		n, err := strconv.Atoi(part)
		if err != nil {
			return "", false
		}
		if i > 0 {
			out += "."
		}
		out += strconv.Itoa(n)
	}
	return out, true
}
