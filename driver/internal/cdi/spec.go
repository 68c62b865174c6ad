// Package cdi tells the container runtime, through the Container Device
// Interface, what a container with a prepared claim gets: one spec file per
// claim, in it one CDI device per device of the claim.
//
// What is in a file follows from the claim and its devices alone; see [Spec].
// Files are cheap: they are written again on every prepare and whenever the
// driver starts, because the directory usually does not survive a reboot while
// the Pods do.
package cdi

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"tags.cncf.io/container-device-interface/pkg/parser"
	specs "tags.cncf.io/container-device-interface/specs-go"

	"github.com/dra-lab/dra-lab/driver/api"
)

// Device is one device of a claim.
type Device struct {
	Request string // requests with the same name share one list of devices
	Name    string // "gpu-0"
	UUID    string
	// Edits is what a container needs to reach this device, besides the
	// environment.
	Edits Edits
}

// Edits is what the hardware, real or simulated, needs in a container. Several
// devices may have the same mount or device node: a runtime makes it once.
type Edits struct {
	Env     []string
	Mounts  []Mount
	Devices []DeviceNode
}

// Mount is a directory or file of the node in the container.
type Mount struct {
	Node, Container string
	Writable        bool
	Executable      bool // such as a library: it could not be loaded otherwise
}

// DeviceNode is a character device. Numbers are given so that a runtime makes it
// as it is told, without looking at the path on the node.
type DeviceNode struct {
	Node, Container string
	Major, Minor    uint32
}

// QualifiedName is the CDI device ID that goes to the kubelet.
func QualifiedName(claimUID, device string) string {
	return api.CDIKind + "=" + deviceName(claimUID, device)
}

// deviceName is unique on the node for all time, since claim UIDs are: a
// runtime that caches specs never mistakes an old device for a new one.
func deviceName(claimUID, device string) string { return claimUID + "-" + device }

// Spec is the content for one claim. Devices must not be empty, nor have the
// same name twice. Its version is the lowest that can express it, so that older
// runtimes read it.
func Spec(claimUID string, devices []Device) (*specs.Spec, error) {
	spec := &specs.Spec{Kind: api.CDIKind}
	for _, d := range devices {
		name := deviceName(claimUID, d.Name)
		if err := parser.ValidateDeviceName(name); err != nil {
			return nil, fmt.Errorf("describe device %q of claim %s: %w", d.Name, claimUID, err)
		}
		spec.Devices = append(spec.Devices, specs.Device{
			Name: name,
			ContainerEdits: specs.ContainerEdits{
				Env:         environment(d, devices),
				Mounts:      mounts(d.Edits.Mounts),
				DeviceNodes: deviceNodes(d.Edits.Devices),
			},
		})
	}
	if len(spec.Devices) == 0 {
		return nil, fmt.Errorf("describe claim %s: no devices", claimUID)
	}
	version, err := specs.MinimumRequiredVersion(spec)
	if err != nil {
		return nil, fmt.Errorf("describe claim %s: %w", claimUID, err)
	}
	spec.Version = version
	return spec, nil
}

// environment is that of one device. A runtime that merges several devices
// keeps the last value of a variable, so the lists name all devices of the
// request, the same for each, and what belongs to one device alone is in a
// variable of its own.
func environment(d Device, all []Device) []string {
	var refs []api.DeviceRef
	var uuids []string
	for _, other := range all {
		if other.Request != d.Request {
			continue
		}
		refs = append(refs, api.DeviceRef{Name: other.Name, UUID: other.UUID})
		uuids = append(uuids, other.UUID)
	}
	env := []string{
		api.EnvDevices + "=" + api.FormatDevices(refs),
		api.DeviceEnvName(d.Name) + "=" + api.DeviceRef{Name: d.Name, UUID: d.UUID}.String(),
		api.EnvCUDAVisibleDevices + "=" + strings.Join(uuids, ","),
		api.EnvNVIDIAVisibleDevices + "=void",
	}
	return slices.Concat(env, d.Edits.Env)
}

func mounts(in []Mount) []*specs.Mount {
	var out []*specs.Mount
	for _, m := range in {
		access := "ro"
		if m.Writable {
			access = "rw"
		}
		options := []string{access, "nosuid", "nodev", "noexec", "bind"}
		if m.Executable {
			options = slices.DeleteFunc(options, func(o string) bool { return o == "noexec" })
		}
		out = append(out, &specs.Mount{
			HostPath:      path.Clean(m.Node),
			ContainerPath: path.Clean(m.Container),
			Options:       options,
		})
	}
	return out
}

func deviceNodes(in []DeviceNode) []*specs.DeviceNode {
	var out []*specs.DeviceNode
	for _, d := range in {
		out = append(out, &specs.DeviceNode{
			Path: path.Clean(d.Container), HostPath: path.Clean(d.Node),
			Type: "c", Major: int64(d.Major), Minor: int64(d.Minor), Permissions: "rw",
		})
	}
	return out
}
