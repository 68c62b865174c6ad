// Package passthrough is NVIDIA's library and a node's real GPUs, as the lab puts
// them into the folder that package driverroot describes.
//
// It reads, and changes nothing: it never resets a GPU, never changes its MIG or
// compute mode and never ends a process. What a claim would need that for is
// checked, and refused with the command that an administrator would use.
//
// What the library cannot do because it is older than go-nvml, it answers with
// ERROR_FUNCTION_NOT_FOUND. Without that the process would end: go-nvml calls
// functions that the loader looks up when they are first called.
package passthrough

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/dl"
	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/dra-lab/dra-lab/driver/driverroot"
	"github.com/dra-lab/dra-lab/driver/internal/cdi"
	"github.com/dra-lab/dra-lab/driver/internal/device"
)

// containerDir is where a container finds the libraries: the directory that
// NVIDIA's own images tell their loader of. Others are told by the environment.
const containerDir = "/usr/local/nvidia/lib64"

// Hardware is the library, initialised, and the GPUs that belong to this node.
// Use is safe from several goroutines.
type Hardware struct {
	nvml.Interface
	missing map[string]bool // functions that the library has not, by go-nvml's names
	own     []int           // the library's indices of this node's GPUs
	nodes   map[int]cdi.DeviceNode
	common  cdi.Edits
}

// Open loads the library below root, initialises it and finds the GPUs whose
// device nodes are there. A process can open one library only: go-nvml binds its
// functions for good.
func Open(root string) (*Hardware, error) {
	h, err := open(root)
	if err != nil {
		return nil, fmt.Errorf("open GPUs below %q: %w", root, err)
	}
	return h, nil
}

func open(root string) (*Hardware, error) {
	h := &Hardware{nodes: map[int]cdi.DeviceNode{}}
	if err := h.readNodes(root); err != nil {
		return nil, err
	}
	if err := h.readLibraries(root); err != nil {
		return nil, err
	}
	library := driverroot.Library(root, driverroot.NVML)
	if err := h.survey(library); err != nil {
		return nil, err
	}
	h.Interface = nvml.New(nvml.WithLibraryPath(library))
	if ret := h.Init(); ret != nvml.SUCCESS {
		return nil, fmt.Errorf("initialize %s: %w%s", driverroot.NVML, ret, meaning(ret))
	}
	if err := h.find(); err != nil {
		return nil, err
	}
	return h, nil
}

// Shutdown does nothing. Somebody may still wait for a GPU that does not answer:
// the library must not go away under such a call before the process does.
func (h *Hardware) Shutdown() nvml.Return { return nvml.SUCCESS }

// meaning says more than the library does of how its Init may fail.
func meaning(ret nvml.Return) string {
	switch ret {
	case nvml.ERROR_LIB_RM_VERSION_MISMATCH:
		return ": the node was made with libraries of another version than the kernel module has now; make it anew"
	case nvml.ERROR_DRIVER_NOT_LOADED:
		return ": the kernel module is no longer loaded, or its device nodes are not in this container"
	case nvml.ERROR_NO_PERMISSION:
		return ": the device nodes cannot be opened; the container has to be privileged"
	}
	return ""
}

func (h *Hardware) readNodes(root string) error {
	entries, err := os.ReadDir(driverroot.Device(root, ""))
	if err != nil {
		return err
	}
	for _, e := range entries {
		text, ok := strings.CutPrefix(e.Name(), "nvidia")
		minor, err := strconv.ParseUint(text, 10, 8)
		if !ok || err != nil {
			continue
		}
		if h.nodes[int(minor)], err = node(root, e.Name()); err != nil {
			return err
		}
	}
	if len(h.nodes) == 0 {
		return errors.New("no device node of a GPU")
	}
	for _, name := range driverroot.SharedNodes() {
		n, err := node(root, name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		h.common.Devices = append(h.common.Devices, n)
	}
	return nil
}

func node(root, name string) (cdi.DeviceNode, error) {
	inside := driverroot.Device(root, name)
	n, err := driverroot.ReadNode(inside)
	if err != nil {
		return cdi.DeviceNode{}, err
	}
	return cdi.DeviceNode{Node: inside, Container: path.Join("/dev", name), Major: n.Major, Minor: n.Minor}, nil
}

func (h *Hardware) readLibraries(root string) error {
	entries, err := os.ReadDir(driverroot.LibraryDir(root))
	if err != nil {
		return err
	}
	for _, e := range entries {
		h.common.Mounts = append(h.common.Mounts, cdi.Mount{
			Node: driverroot.Library(root, e.Name()), Container: path.Join(containerDir, e.Name()), Executable: true,
		})
	}
	h.common.Env = []string{"LD_LIBRARY_PATH=" + containerDir}
	return nil
}

// survey loads the library, to say why where that fails, which go-nvml does not,
// and finds out which functions it lacks.
func (h *Hardware) survey(library string) error {
	l := dl.New(library, dl.RTLD_LAZY|dl.RTLD_LOCAL)
	if err := l.Open(); err != nil {
		return fmt.Errorf("load %s: %w", driverroot.NVML, err)
	}
	defer func() { _ = l.Close() }() // go-nvml loads it again, for good
	has := func(names []string) bool {
		return slices.ContainsFunc(names, func(n string) bool { return l.Lookup(n) == nil })
	}
	for _, names := range required() {
		if !has(names) {
			return fmt.Errorf("load %s: it has no function %s: the driver is too old, or this is not NVIDIA's library", driverroot.NVML, names[0])
		}
	}
	h.missing = map[string]bool{}
	for method, names := range optional() {
		if !has(names) {
			h.missing[method] = true
		}
	}
	return nil
}

// find chooses this node's GPUs. The library lists those of the whole machine,
// also to a container of a node that has only some of them. A GPU that does not
// even tell its device node is this node's if one of the node's is claimed by
// nobody.
func (h *Hardware) find() error {
	count, ret := h.Interface.DeviceGetCount()
	if ret != nvml.SUCCESS {
		return fmt.Errorf("count GPUs: %w", ret)
	}
	claimed := 0
	var silent []int
	for i := range count {
		gpu, ret := h.Interface.DeviceGetHandleByIndex(i)
		minor := -1
		if ret == nvml.SUCCESS {
			minor, ret = h.guard(gpu).GetMinorNumber()
		}
		switch {
		case ret != nvml.SUCCESS:
			silent = append(silent, i)
		case h.nodes[minor].Node != "":
			claimed++
			h.own = append(h.own, i)
		}
	}
	h.own = append(h.own, silent[:min(len(silent), len(h.nodes)-claimed)]...)
	slices.Sort(h.own)
	if len(h.own) == 0 {
		return fmt.Errorf("the library lists %d GPUs, none of which has one of the device nodes", count)
	}
	return nil
}

// Bind checks that a claim can have the GPU as it is.
func (h *Hardware) Bind(gpu device.GPU, _ string, settings device.Settings) error {
	if _, ok := h.nodes[gpu.Minor]; !ok {
		return fmt.Errorf("%s: its device node is not known: %s", gpu.Name, gpu.Problem)
	}
	handle, ret := h.DeviceGetHandleByIndex(gpu.Index)
	if ret != nvml.SUCCESS {
		return fmt.Errorf("open %s: %w", gpu.Name, ret)
	}
	mode, ret := handle.GetComputeMode()
	if ret != nvml.SUCCESS {
		mode = nvml.COMPUTEMODE_COUNT // unknown
	}
	mig, _, ret := handle.GetMigMode()
	return permit(gpu, settings, mode, ret == nvml.SUCCESS && mig == nvml.DEVICE_MIG_ENABLE)
}

// permit decides whether a claim can have a GPU with these modes.
func permit(gpu device.GPU, settings device.Settings, mode nvml.ComputeMode, mig bool) error {
	administrator := func(what string) string {
		return fmt.Sprintf("on the host: nvidia-smi -i %s %s", gpu.UUID, what)
	}
	switch {
	case mig:
		return fmt.Errorf("%s is in MIG mode, in which it cannot be used as a whole; %s", gpu.Name, administrator("-mig 0"))
	case mode == nvml.COMPUTEMODE_PROHIBITED:
		return fmt.Errorf("%s is in compute mode Prohibited; %s", gpu.Name, administrator("-c DEFAULT"))
	case settings.Exclusive && mode != nvml.COMPUTEMODE_EXCLUSIVE_PROCESS:
		return fmt.Errorf("%s is not for one process at a time, and the mode of real GPUs is not changed here; %s", gpu.Name, administrator("-c EXCLUSIVE_PROCESS"))
	case settings.TimeSlice != "":
		return fmt.Errorf("%s: time slices of real GPUs are not changed here; %s", gpu.Name, administrator("compute-policy --set-timeslice"))
	case settings.MemoryBytes > 0:
		return fmt.Errorf("%s: a part of the memory of a real GPU cannot be given away", gpu.Name)
	}
	return nil
}

// Unbind has nothing to undo.
func (h *Hardware) Unbind(device.GPU, string) error { return nil }

// Bound is empty: real GPUs do not know claims.
func (h *Hardware) Bound(device.GPU) ([]string, error) { return nil, nil }

// Edits is what a container needs to use the GPU.
func (h *Hardware) Edits(gpu device.GPU, _ device.Settings) cdi.Edits {
	edits := cdi.Edits{Env: h.common.Env, Mounts: h.common.Mounts}
	if own, ok := h.nodes[gpu.Minor]; ok {
		edits.Devices = append([]cdi.DeviceNode{own}, h.common.Devices...)
	}
	return edits
}
