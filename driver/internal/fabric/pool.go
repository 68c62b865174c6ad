// Package fabric decides about network-attached GPUs: how they are published,
// and which is to be attached to which node or detached from it. It is pure:
// claims, operations, nodes and time in, writes out.
package fabric

import (
	"crypto/sha256"
	"fmt"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/utils/ptr"

	"github.com/dra-lab/dra-lab/driver/api"
	"github.com/dra-lab/dra-lab/driver/api/v1alpha1"
)

// MaxDevices is the largest number of devices, which is what one slice takes.
const MaxDevices = resourceapi.ResourceSliceMaxDevicesWithAdvancedFeatures

// Model of the simulated devices.
const (
	productName = "NVIDIA H100 80GB HBM3"
	memoryBytes = 80 << 30
)

// gpusLabel is on the nodes that have a driver.
const gpusLabel = api.DriverName + "/gpus"

// DeviceName is the name of the device with this index.
func DeviceName(index int) string { return "net-" + strconv.Itoa(index) }

// UUID is that of a device. It is the same on whichever node it is.
func UUID(device string) string {
	u := sha256.Sum256(fmt.Appendf(nil, "%s %s", api.FabricDriverName, device))
	u[6] = u[6]&0x0f | 0x80
	u[8] = u[8]&0x3f | 0x80
	return fmt.Sprintf("GPU-%x-%x-%x-%x-%x", u[0:4], u[4:6], u[6:8], u[8:10], u[10:16])
}

// Resources describes count devices for every node with GPUs. The scheduler ties
// a claim to the node that it chose, and waits with the Pod for the conditions.
// A device that could not be attached, which its operation says, is tainted.
func Resources(count int, operations map[string]*v1alpha1.DeviceOperation) resourceslice.DriverResources {
	var slice resourceslice.Slice
	for i := range count {
		name := DeviceName(i)
		d := resourceapi.Device{
			Name: name,
			Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
				api.AttributeType:        {StringValue: ptr.To(api.TypeGPU)},
				api.AttributeUUID:        {StringValue: ptr.To(UUID(name))},
				api.AttributeProductName: {StringValue: ptr.To(productName)},
				api.AttributeIndex:       {IntValue: ptr.To(int64(i))},
				api.AttributeSimulated:   {BoolValue: ptr.To(true)},
			},
			Capacity: map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{
				api.CapacityMemory: {Value: *resource.NewQuantity(memoryBytes, resource.BinarySI)},
			},
			BindsToNode:              ptr.To(true),
			BindingConditions:        []string{api.ConditionAttached},
			BindingFailureConditions: []string{api.ConditionAttachFailed},
		}
		if op := operations[v1alpha1.OperationName(api.FabricPool, name)]; op != nil {
			if c := meta.FindStatusCondition(op.Status.Conditions, v1alpha1.ConditionAttachFailed); c != nil && c.Status == metav1.ConditionTrue {
				d.Taints = []resourceapi.DeviceTaint{{
					Key: api.TaintAttachFailed, Effect: resourceapi.DeviceTaintEffectNoSchedule, TimeAdded: ptr.To(c.LastTransitionTime),
				}}
			}
		}
		slice.Devices = append(slice.Devices, d)
	}
	pool := resourceslice.Pool{
		NodeSelector: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
			MatchExpressions: []corev1.NodeSelectorRequirement{{Key: gpusLabel, Operator: corev1.NodeSelectorOpExists}},
		}}},
		Slices: []resourceslice.Slice{slice},
	}
	return resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{api.FabricPool: pool}}
}
