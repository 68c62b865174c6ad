// Package driverroot is the folder in which a node has what its real GPUs need
// of the host: the lab fills it, the driver reads it. It is one layout, wherever
// the files are on the host:
//
//	lib/libcuda.so.1   each library at the name that programs ask for
//	dev/nvidia0        the device nodes of this node's GPUs, and those that all share
//
// A GPU whose device node is not there belongs to another node. That division is
// one between drivers that keep to it: a privileged node sees all of the host's
// devices.
package driverroot

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Dir is where nodes have the folder, and the driver's container, too.
const Dir = "/opt/dra-lab/driver"

// NVML is the library through which a driver speaks to GPUs.
const NVML = "libnvidia-ml.so.1"

// Names of the device nodes that all GPUs share.
const (
	Control  = "nvidiactl"
	UVM      = "nvidia-uvm" // without it no program allocates memory
	UVMTools = "nvidia-uvm-tools"
)

// SharedNodes are the device nodes that a container needs besides those of its
// GPUs. Those that a host does not have are left out.
func SharedNodes() []string { return []string{Control, UVM, UVMTools} }

// GPUNode is the name of a GPU's device node.
func GPUNode(minor int) string { return fmt.Sprintf("nvidia%d", minor) }

// LibraryDir is the directory of the libraries below root.
func LibraryDir(root string) string { return filepath.Join(root, "lib") }

// Library is the path of a library below root.
func Library(root, soname string) string { return filepath.Join(LibraryDir(root), soname) }

// Device is the path of a device node below root.
func Device(root, name string) string { return filepath.Join(root, "dev", name) }

// Node is a device node.
type Node struct {
	Major uint32 `json:"major"`
	Minor uint32 `json:"minor"`
	// StandIn means that a file describes the node, as in a folder that is no
	// host's root but looks like one: it can be counted and mounted, not opened.
	StandIn bool `json:"standIn,omitempty"`
}

// ErrNotDevice means that something else has a device node's name.
var ErrNotDevice = errors.New("not a device node")

// maxStandIn bounds the text of a stand-in.
const maxStandIn = 64

// ReadNode looks at the device node at path, a character device or a regular
// file that says "c MAJOR MINOR", as mknod takes it. Anything else is
// ErrNotDevice.
func ReadNode(path string) (Node, error) {
	info, err := os.Stat(path)
	if err != nil {
		return Node{}, err
	}
	if info.Mode()&os.ModeCharDevice != 0 {
		var stat unix.Stat_t
		if err := unix.Stat(path, &stat); err != nil {
			return Node{}, &os.PathError{Op: "stat", Path: path, Err: err}
		}
		return Node{Major: unix.Major(stat.Rdev), Minor: unix.Minor(stat.Rdev)}, nil
	}
	if !info.Mode().IsRegular() || info.Size() > maxStandIn {
		return Node{}, fmt.Errorf("look at %q: %w", path, ErrNotDevice)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return Node{}, err
	}
	n, ok := parseStandIn(string(text))
	if !ok {
		return Node{}, fmt.Errorf("look at %q: %w", path, ErrNotDevice)
	}
	return n, nil
}

func parseStandIn(text string) (Node, bool) {
	fields := strings.Fields(text)
	if len(fields) != 3 || fields[0] != "c" {
		return Node{}, false
	}
	major, err := strconv.ParseUint(fields[1], 10, 12) // as many bits as Linux has for it
	if err != nil || major == 0 {
		return Node{}, false
	}
	minor, err := strconv.ParseUint(fields[2], 10, 20)
	if err != nil {
		return Node{}, false
	}
	return Node{Major: uint32(major), Minor: uint32(minor), StandIn: true}, true
}
