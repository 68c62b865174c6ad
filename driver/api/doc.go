// Package api is what the driver and everybody around it have to agree on: the
// names that appear in Kubernetes objects, the files through which simulated
// hardware is seen and broken, the environment that a container with a GPU
// finds, and the reports that the driver writes for the timeline.
//
// It is a leaf: the standard library only, no I/O, no state. Every type that is
// read from a file or a log comes with a parser that bounds its input.
package api

// Names that appear in Kubernetes objects.
const (
	// DriverName is the name of the DRA driver: in ResourceSlices, in
	// allocation results, in opaque configuration and on the registration
	// socket.
	DriverName = "gpu.lab.example"
	// DeviceClassName selects every whole GPU of the driver.
	DeviceClassName = "gpu.lab.example"
	// MIGDeviceClassName selects every partition of a GPU in MIG mode.
	MIGDeviceClassName = "mig.gpu.lab.example"
	// Namespace is where the lab installs itself.
	Namespace = "dra-lab"
	// DaemonSetName is the driver's DaemonSet in Namespace.
	DaemonSetName = "driver"
	// AppLabel is the value of the label app.kubernetes.io/name on the
	// driver's Pods.
	AppLabel = "driver"
)

// Attributes of a device. They are published without a domain, which means
// that of the driver: in CEL device.attributes["gpu.lab.example"].uuid. Besides
// there are the standard ones that say where the device is, each where the
// kernel tells it: resource.kubernetes.io/pciBusID (0000:17:00.0), pcieRoot
// (pci0000:15) and numaNode (a number).
const (
	AttributeType              = "type"                  // string, TypeGPU or TypeMIG
	AttributeUUID              = "uuid"                  // string, "GPU-..."
	AttributeProductName       = "productName"           // string, as NVML says it
	AttributeBrand             = "brand"                 // string
	AttributeArchitecture      = "architecture"          // string, "Hopper"
	AttributeComputeCapability = "cudaComputeCapability" // version, "9.0.0"
	AttributeDriverVersion     = "driverVersion"         // version
	AttributeCUDAVersion       = "cudaDriverVersion"     // version
	AttributeIndex             = "index"                 // int, NVML's index
	AttributeSimulated         = "simulated"             // bool
	// Of a partition, which has no AttributeUUID: it gets one when it is made.
	// AttributeIndex is that of its GPU.
	AttributeProfile    = "profile"    // string, "1g.10gb"
	AttributeParentUUID = "parentUUID" // string, "GPU-..."
	AttributeParent     = "parent"     // string, name of the GPU's own device, "gpu-0"
	AttributePlacement  = "placement"  // int, its first memory slice
	// CapacityMemory is the frame buffer in bytes.
	CapacityMemory = "memory"
	// CapacityProcessors are the multiprocessors of a partition.
	CapacityProcessors = "multiprocessors"
	// Values of AttributeType: a whole GPU, and a partition of one.
	TypeGPU = "gpu"
	TypeMIG = "mig"
)

// Keys of the taints that the driver puts on devices in its ResourceSlices.
const (
	// TaintXID marks a GPU after a fatal XID; the value is the XID.
	TaintXID = DriverName + "/xid"
	// TaintECC marks a GPU with an uncorrectable memory error.
	TaintECC = DriverName + "/ecc"
	// TaintLost marks a GPU that the driver no longer reaches.
	TaintLost = DriverName + "/gpu-lost"
	// TaintRecovery marks a GPU that says it has to be recovered, where nothing
	// says what happened to it; the value names the action.
	TaintRecovery = DriverName + "/recovery"
	// TaintTelemetry marks a GPU whose telemetry is out of bounds; the value
	// names the reading.
	TaintTelemetry = DriverName + "/telemetry"
	// TaintUnreadable marks a GPU that cannot be given to claims because what it
	// is could not be read; the value is UnreadableInventory.
	TaintUnreadable = DriverName + "/unreadable"
	// TaintLeaked marks a GPU on which something of a claim stayed behind after
	// that was unprepared; the value is one of Leak...
	TaintLeaked = DriverName + "/leaked"
)

// UnreadableInventory is the value of TaintUnreadable: the GPU cannot be opened,
// or does not tell its UUID or its memory.
const UnreadableInventory = "inventory"

// Values of TaintLeaked.
const (
	LeakProcesses = "processes" // processes still use the GPU
	LeakMemory    = "memory"    // memory in use did not come back to what it was
	LeakPartition = "partition" // a partition could not be destroyed
)

// Places on the node. The driver's container sees them under the same paths.
const (
	// PluginDir has the driver's sockets and its checkpoint.
	PluginDir = "/var/lib/kubelet/plugins/" + DriverName
	// RegistrarDir is where the kubelet looks for registration sockets.
	RegistrarDir = "/var/lib/kubelet/plugins_registry"
	// SocketName is the name of the DRA socket in PluginDir when the driver
	// runs without rolling updates (flag -pod-uid empty).
	SocketName = "dra.sock"
	// CheckpointName begins the names of the two files of the checkpoint in
	// PluginDir, checkpoint-a.json and checkpoint-b.json; the one with the
	// higher sequence counts.
	CheckpointName = "checkpoint"
	// CDIDir is where the CDI specs of prepared claims lie.
	CDIDir = "/var/run/cdi"
	// HardwareDir has the state of simulated hardware. It lives outside the
	// driver, as real hardware does: a directory per GPU, named like the
	// device.
	HardwareDir = "/var/lib/dra-lab/hardware"
	// InventoryName is the file in HardwareDir that says which GPUs the node
	// has; see [Inventory].
	InventoryName = "inventory.json"
	// FaultsName is the file in a GPU's directory with its active faults; see
	// [Faults].
	FaultsName = "faults.json"
	// ProcessesName is the directory in a GPU's directory with one file per
	// process that uses the GPU; see [Process].
	ProcessesName = "processes"
	// ContainerHardwareDir is HardwareDir as a container with a simulated GPU
	// sees it: <ContainerHardwareDir>/<device>/processes is mounted writable.
	ContainerHardwareDir = "/var/run/dra-lab/hardware"
)

// CDIKind is vendor and class of the CDI devices that the driver makes, one
// per claim and device: <CDIKind>=<claim UID>-<device>.
const CDIKind = "k8s." + DriverName + "/claim"

// Names of the network-attached GPUs, which belong to no node until the
// controller has attached them to one.
const (
	// FabricDriverName is the name under which they are published and prepared:
	// one of their own, since the kubelet finds by it who prepares a device, and
	// who asks for a GPU of a node must not be given one of these.
	FabricDriverName = "fabric." + DriverName
	// FabricDeviceClassName selects every one of them.
	FabricDeviceClassName = FabricDriverName
	// FabricPool is their only pool.
	FabricPool = "fabric"
	// FabricCDIKind is vendor and class of their CDI devices.
	FabricCDIKind = "k8s." + FabricDriverName + "/claim"
	// FabricHardwareName is the directory in HardwareDir that has those which are
	// attached to the node.
	FabricHardwareName = "fabric"
	// ConditionAttached is the condition of a claim's device with which its Pod
	// may be bound to a node: the device is there.
	ConditionAttached = DriverName + "/attached"
	// ConditionAttachFailed is the one with which the scheduler has to choose
	// again.
	ConditionAttachFailed = DriverName + "/attach-failed"
	// TaintAttachFailed keeps claims away for a while from a device that could
	// not be attached.
	TaintAttachFailed = DriverName + "/attach-failed"
	// ControllerName is the controller's Deployment in Namespace, the value of
	// the label app.kubernetes.io/name on its Pods, and its Lease.
	ControllerName = "controller"
)
