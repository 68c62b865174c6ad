// Package devices checks that a container has the GPUs that its claim promised,
// and registers the process on them.
//
// The environment says what was promised; the mounts and device nodes say what
// was given. Only when both agree, in kind and number, does the trainer start:
// a container that lost its CDI edits must fail at once and not train on
// something else.
package devices

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/dra-lab/dra-lab/driver/api"
)

// Container is the process's surroundings.
type Container struct {
	Environ   []string // as os.Environ
	Mounts    []byte   // as /proc/self/mountinfo
	DevDir    string   // /dev
	Simulated string   // api.ContainerHardwareDir
}

// This is the container that the process runs in.
func This() (Container, error) {
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return Container{}, fmt.Errorf("read mounts: %w", err)
	}
	return Container{Environ: os.Environ(), Mounts: mounts, DevDir: "/dev", Simulated: api.ContainerHardwareDir}, nil
}

// Granted are the GPUs of a container.
type Granted struct {
	Devices   []api.DeviceRef
	Simulated bool
}

// Check finds the container's GPUs. That there are others than want is an
// error that names what is missing.
func (c Container) Check(want int) (Granted, error) {
	refs, err := api.DevicesFromEnviron(c.Environ)
	if err != nil {
		return Granted{}, fmt.Errorf("check devices: %w", err)
	}
	if len(refs) != want {
		return Granted{}, fmt.Errorf("check devices: %s names %d (%s), want %d: does the Pod have its claim, and did the runtime apply the CDI spec?",
			api.EnvDevices, len(refs), api.FormatDevices(refs), want)
	}
	g := Granted{Devices: refs, Simulated: c.env(api.EnvSimulated) == "true"}
	uuids := strings.Split(c.env(api.EnvCUDAVisibleDevices), ",")
	for _, ref := range refs {
		// With several claims the variable has one of their values; the
		// mounts then tell.
		if len(refs) == 1 && !slices.Contains(uuids, ref.UUID) {
			return Granted{}, fmt.Errorf("check device %s: %s is %q, want %s", ref.Name, api.EnvCUDAVisibleDevices, c.env(api.EnvCUDAVisibleDevices), ref.UUID)
		}
		if err := c.checkHardware(ref, g.Simulated); err != nil {
			return Granted{}, fmt.Errorf("check device %s: %w", ref.Name, err)
		}
	}
	if !g.Simulated {
		return g, c.checkNodes(want)
	}
	return g, nil
}

// checkHardware looks for what the CDI spec mounts for a simulated GPU.
func (c Container) checkHardware(ref api.DeviceRef, simulated bool) error {
	if !simulated {
		return nil
	}
	path := c.processes(ref)
	if !c.mounted(path) {
		return fmt.Errorf("nothing is mounted at %q", path)
	}
	info, err := os.Stat(path)
	if err != nil {
		return fmt.Errorf("look at the GPU: %w", err)
	}
	if !info.IsDir() {
		return fmt.Errorf("%q is no folder", path)
	}
	return nil
}

// checkNodes counts the device nodes of real GPUs.
func (c Container) checkNodes(want int) error {
	nodes, err := filepath.Glob(filepath.Join(c.DevDir, "nvidia[0-9]*"))
	if err != nil {
		return fmt.Errorf("look for device nodes: %w", err)
	}
	if len(nodes) != want {
		return fmt.Errorf("check devices: %d device nodes %s, want %d", len(nodes), strings.Join(nodes, " "), want)
	}
	if _, err := os.Stat(filepath.Join(c.DevDir, "nvidiactl")); want > 0 && errors.Is(err, fs.ErrNotExist) {
		return errors.New("check devices: no device node nvidiactl")
	}
	return nil
}

func (c Container) processes(ref api.DeviceRef) string {
	return filepath.Join(c.Simulated, ref.Name, api.ProcessesName)
}

func (c Container) env(name string) string {
	for _, entry := range c.Environ {
		if value, ok := strings.CutPrefix(entry, name+"="); ok {
			return value
		}
	}
	return ""
}

// mounted says whether path itself is a mount point: the fifth field of a line
// of mountinfo.
func (c Container) mounted(path string) bool {
	scanner := bufio.NewScanner(bytes.NewReader(c.Mounts))
	for scanner.Scan() {
		if fields := strings.Fields(scanner.Text()); len(fields) > 4 && fields[4] == path {
			return true
		}
	}
	return false
}
