package api

import (
	"fmt"
	"slices"
	"strings"
)

// Environment of a container that has been given GPUs.
const (
	// EnvDevices lists the GPUs of the request, "gpu-0=GPU-uuid,gpu-1=...".
	// When a container uses several requests or claims, the runtime keeps one
	// of their values; the variables with EnvDevicePrefix have all of them.
	EnvDevices = "DRA_LAB_DEVICES"
	// EnvDevicePrefix begins the variable that each GPU has for itself:
	// DRA_LAB_DEVICE_GPU_0=gpu-0=GPU-uuid.
	EnvDevicePrefix = "DRA_LAB_DEVICE_"
	// EnvExclusivePrefix begins the variable that is "true" when a simulated
	// GPU may be used by one process at a time. Real ones see to that
	// themselves.
	EnvExclusivePrefix = "DRA_LAB_EXCLUSIVE_"
	// EnvMemoryPrefix begins the variable with the bytes that a claim has of a
	// GPU, if it has not all of them.
	EnvMemoryPrefix = "DRA_LAB_MEMORY_"
	// EnvSimulated is "true" when the GPUs are simulated, else absent.
	EnvSimulated = "DRA_LAB_SIMULATED"
	// EnvNVIDIAVisibleDevices tells an NVIDIA container runtime, where one is
	// installed, to add nothing of its own: the value is always "void".
	EnvNVIDIAVisibleDevices = "NVIDIA_VISIBLE_DEVICES"
	// EnvCUDAVisibleDevices lists UUIDs, as CUDA takes them.
	EnvCUDAVisibleDevices = "CUDA_VISIBLE_DEVICES"
)

// maxEnvDevices bounds the devices that a container's environment may name.
const maxEnvDevices = 1024

// DeviceRef names one GPU.
type DeviceRef struct {
	Name string // "gpu-0", unique on the node
	UUID string // "GPU-...", unique everywhere
}

// String has the form name=uuid.
func (r DeviceRef) String() string { return r.Name + "=" + r.UUID }

// FormatDevices writes refs as the value of EnvDevices.
func FormatDevices(refs []DeviceRef) string {
	parts := make([]string, 0, len(refs))
	for _, r := range refs {
		parts = append(parts, r.String())
	}
	return strings.Join(parts, ",")
}

// ParseDevices reads the value of EnvDevices. The empty string is an empty
// list; a device without a UUID or named twice is an error.
func ParseDevices(value string) ([]DeviceRef, error) {
	if value == "" {
		return nil, nil
	}
	if n := strings.Count(value, ",") + 1; n > maxEnvDevices {
		return nil, fmt.Errorf("parse devices: %d entries, at most %d allowed", n, maxEnvDevices)
	}
	var refs []DeviceRef
	for entry := range strings.SplitSeq(value, ",") {
		name, uuid, ok := strings.Cut(entry, "=")
		if !ok || name == "" || uuid == "" {
			return nil, fmt.Errorf("parse device %q: want name=uuid", entry)
		}
		if slices.ContainsFunc(refs, func(r DeviceRef) bool { return r.Name == name }) {
			return nil, fmt.Errorf("parse devices: %q named twice", name)
		}
		refs = append(refs, DeviceRef{Name: name, UUID: uuid})
	}
	return refs, nil
}

// DeviceEnvName is the name of the variable that a GPU has for itself.
func DeviceEnvName(device string) string { return EnvDevicePrefix + envWord(device) }

// ExclusiveEnvName is the name of the variable that says whether a GPU may be
// used by one process at a time.
func ExclusiveEnvName(device string) string { return EnvExclusivePrefix + envWord(device) }

// MemoryEnvName is the name of the variable with the bytes that a claim has of
// a GPU.
func MemoryEnvName(device string) string { return EnvMemoryPrefix + envWord(device) }

// envWord makes a device name part of a variable's name.
func envWord(device string) string {
	return strings.ToUpper(strings.Map(func(r rune) rune {
		if r == '-' || r == '.' {
			return '_'
		}
		return r
	}, device))
}

// DevicesFromEnviron finds every GPU that environ, in the form of os.Environ,
// grants, whatever number of claims it came from, ordered by name.
func DevicesFromEnviron(environ []string) ([]DeviceRef, error) {
	var refs []DeviceRef
	add := func(value string) error {
		found, err := ParseDevices(value)
		if err != nil {
			return err
		}
		for _, ref := range found {
			i := slices.IndexFunc(refs, func(r DeviceRef) bool { return r.Name == ref.Name })
			switch {
			case i < 0:
				refs = append(refs, ref)
			case refs[i] != ref:
				return fmt.Errorf("parse device %q: both %s and %s", ref.Name, refs[i].UUID, ref.UUID)
			}
		}
		return nil
	}
	for _, entry := range environ {
		name, value, _ := strings.Cut(entry, "=")
		if name != EnvDevices && !strings.HasPrefix(name, EnvDevicePrefix) {
			continue
		}
		if err := add(value); err != nil {
			return nil, fmt.Errorf("read %s: %w", name, err)
		}
	}
	slices.SortFunc(refs, func(a, b DeviceRef) int { return strings.Compare(a.Name, b.Name) })
	return refs, nil
}
