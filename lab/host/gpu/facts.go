// Package gpu finds out whether a host has NVIDIA GPUs that can be passed into
// nodes, and if not, why not. Look collects facts below a driver root, which is
// / or a folder that looks like a host's root; Judge decides by them alone.
//
// Nothing here loads a library or opens a device: what only NVML knows is asked
// of nvidia-smi, where that is installed, and unknown where it is not.
package gpu

import (
	"context"
	"path"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/dra-lab/dra-lab/driver/driverroot"
)

// Facts is what Look found.
type Facts struct {
	Root   string `json:"root"`             // the driver root
	Driver string `json:"driver,omitempty"` // version of the kernel module, "" if it is not loaded
	GPUs   []GPU  `json:"gpus,omitempty"`   // as the kernel module lists them, by address on the bus
	// PCI and Switches are what the bus has of NVIDIA, driver or not.
	PCI      []string `json:"pci,omitempty"`      // addresses of GPUs
	Switches int      `json:"switches,omitempty"` // NVSwitches
	// FabricManager says that the process runs that sets NVSwitches up.
	FabricManager bool `json:"fabricManager,omitempty"`
	Nouveau       bool `json:"nouveau,omitempty"` // the free driver is loaded, which excludes NVIDIA's

	// Nodes are the device nodes /dev/nvidia*, by path. Broken are the paths
	// where something else has such a name.
	Nodes  map[string]driverroot.Node `json:"nodes,omitempty"`
	Broken []string                   `json:"broken,omitempty"`

	Libraries []Library `json:"libraries,omitempty"` // of the kernel module's version
	Missing   []string  `json:"missing,omitempty"`   // required ones that are not there at all
	Others    []string  `json:"others,omitempty"`    // versions of required ones that are there instead

	WSL bool `json:"wsl,omitempty"` // the GPU comes through Windows, as /dev/dxg
	SMI *SMI `json:"smi,omitempty"` // nil: not installed, or nothing to ask it
}

// GPU is what the kernel module says of one.
type GPU struct {
	BusID string `json:"busID"` // "0000:17:00.0"
	Minor int    `json:"minor"` // of /dev/nvidia<Minor>
	UUID  string `json:"uuid,omitempty"`
	Model string `json:"model,omitempty"`
}

// Node is the path of the GPU's device node.
func (g GPU) Node() string { return "/dev/" + driverroot.GPUNode(g.Minor) }

// Look examines the driver root; "" is /. What it cannot find out stays at its
// zero value. It changes nothing, but runs the driver root's nvidia-smi, for at
// most 20 s.
func Look(ctx context.Context, root string) Facts {
	if root == "" {
		root = "/"
	}
	t := tree(root)
	f := Facts{
		Root:          root,
		FabricManager: t.runs("nv-fabricmanager"),
		Nouveau:       t.exists("/sys/module/nouveau"),
		WSL:           t.exists("/dev/dxg"),
	}
	if text := t.text("/proc/driver/nvidia/version"); text != "" {
		f.Driver = parseDriverVersion(text)
	}
	f.PCI, f.Switches = t.bus()
	for _, file := range t.glob("/proc/driver/nvidia/gpus/*/information") {
		if g, ok := parseInformation(t.text(file), path.Base(path.Dir(file))); ok {
			f.GPUs = append(f.GPUs, g)
		}
	}
	f.Nodes, f.Broken = t.nodes()
	if f.Driver != "" {
		f.Libraries, f.Missing, f.Others = t.findLibraries(f.Driver)
		f.SMI = t.ask(ctx)
	}
	return f
}

// nodes finds the device nodes, and what is none: Docker, for one, makes an empty
// directory where something is to be mounted that is not there.
func (t tree) nodes() (nodes map[string]driverroot.Node, broken []string) {
	for _, p := range t.glob("/dev/nvidia*") {
		name := path.Base(p)
		if name == "nvidia-caps" || name == "nvidia-caps-imex-channels" || name == "nvidia-fs" {
			continue // directories
		}
		n, err := driverroot.ReadNode(t.path(p))
		if err != nil || n.StandIn && t.real() {
			broken = append(broken, p)
			continue
		}
		if nodes == nil {
			nodes = map[string]driverroot.Node{}
		}
		nodes[p] = n
	}
	return nodes, broken
}

// Vendor and classes of PCI devices.
const (
	pciNVIDIA     = "0x10de"
	pciVGA        = "0x0300"
	pci3D         = "0x0302"
	pciSwitchLike = "0x0680" // other bridges, which is what NVSwitches are
)

func (t tree) bus() (gpus []string, switches int) {
	for _, file := range t.glob("/sys/bus/pci/devices/*/vendor") {
		device := path.Dir(file)
		if t.text(file) != pciNVIDIA {
			continue
		}
		class := t.text(path.Join(device, "class"))
		switch class[:min(len(class), len(pciVGA))] {
		case pciVGA, pci3D:
			gpus = append(gpus, path.Base(device))
		case pciSwitchLike:
			switches++
		}
	}
	return gpus, switches
}

// commLength is how much of a program's name the kernel keeps.
const commLength = 15

// runs says whether there is a process of this name, as far as this process can
// see others.
func (t tree) runs(name string) bool {
	name = name[:min(len(name), commLength)]
	for _, file := range t.glob("/proc/[0-9]*/comm") {
		if t.text(file) == name {
			return true
		}
	}
	return false
}

// parseInformation reads what the kernel module says of a GPU, lines such as
// "Device Minor: 	 0". A GPU that it was told to leave out is not ok.
func parseInformation(text, busID string) (g GPU, ok bool) {
	g = GPU{BusID: strings.ToLower(busID), Minor: -1}
	for line := range strings.Lines(text) {
		key, value, _ := strings.Cut(line, ":")
		value = strings.TrimSpace(value)
		switch strings.TrimSpace(key) {
		case "Model":
			g.Model = value
		case "GPU UUID":
			if !strings.Contains(value, "?") { // before anybody has opened the GPU
				g.UUID = value
			}
		case "Device Minor":
			if minor, err := strconv.ParseUint(value, 10, 8); err == nil {
				g.Minor = int(minor)
			}
		case "GPU Excluded":
			if value == "Yes" {
				return GPU{}, false
			}
		}
	}
	return g, g.Minor >= 0
}

// parseDriverVersion finds the version in the kernel module's own text, as in
// "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.15  Thu ...".
func parseDriverVersion(text string) string {
	first, _, _ := strings.Cut(text, "\n")
	for field := range strings.FieldsSeq(first) {
		if isVersion(field) {
			return field
		}
	}
	return "unknown"
}

func isVersion(text string) bool {
	if !strings.Contains(text, ".") {
		return false
	}
	for part := range strings.SplitSeq(text, ".") {
		if _, err := strconv.ParseUint(part, 10, 32); err != nil {
			return false
		}
	}
	return true
}

// HostPath is where a file of the driver root is for other programs of this
// host.
func (f Facts) HostPath(inside string) (string, error) {
	root, err := filepath.Abs(f.Root)
	if err != nil {
		return "", err
	}
	return filepath.Join(root, inside), nil
}
