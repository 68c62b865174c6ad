// Package gpu is everything that the driver asks of NVML, for any
// implementation of its interface, and gives it in the words of package device.
// It does not know, and must not ask, whether the hardware is real.
package gpu

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"sync"
	"time"
	"unsafe"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"k8s.io/dynamic-resource-allocation/deviceattribute"

	"github.com/dra-lab/dra-lab/driver/api"
	"github.com/dra-lab/dra-lab/driver/internal/device"
)

// Library is the part of nvml.Interface that the driver uses. A caller has
// called Init before, and calls Shutdown when it no longer uses what is made
// from the library.
type Library interface {
	DeviceGetCount() (int, nvml.Return)
	DeviceGetHandleByIndex(int) (nvml.Device, nvml.Return)
	EventSetCreate() (nvml.EventSet, nvml.Return)
	SystemGetDriverVersion() (string, nvml.Return)
	SystemGetCudaDriverVersion() (int, nvml.Return)
}

// GPUs are the GPUs of this node. Use is safe from several goroutines.
type GPUs struct {
	lib    Library
	sysfs  fs.ReadLinkFS
	common device.GPU // what all GPUs have
	events *events

	mu      sync.RWMutex
	handles []nvml.Device // nil for a GPU that could not be opened
	gpus    []device.GPU
}

// Discover finds all GPUs and begins to listen to their events. sysfs is the
// machine's, /sys, and says where on the machine each GPU is; nil leaves that
// out. A GPU that cannot be opened or read is listed with what is known, and
// why in its Problem; Read tries again. Only when the library itself fails is
// that an error.
func Discover(lib Library, sysfs fs.ReadLinkFS) (*GPUs, error) {
	count, ret := lib.DeviceGetCount()
	if ret != nvml.SUCCESS {
		return nil, fmt.Errorf("count GPUs: %w", ret)
	}
	g := &GPUs{lib: lib, sysfs: sysfs}
	g.common.DriverVersion, _ = lib.SystemGetDriverVersion()
	if cuda, ret := lib.SystemGetCudaDriverVersion(); ret == nvml.SUCCESS {
		g.common.CUDAVersion = fmt.Sprintf("%d.%d", cuda/1000, cuda%1000/10)
	}
	for i := range count {
		handle, gpu := g.open(i, describeInTime)
		g.handles = append(g.handles, handle)
		g.gpus = append(g.gpus, gpu)
	}
	events, err := listen(lib, g.handles)
	if err != nil {
		return nil, err
	}
	g.events = events
	return g, nil
}

// List gives the GPUs by index. They are always the same ones; of a GPU with a
// Problem more may be known after a Read.
func (g *GPUs) List() []device.GPU {
	g.mu.RLock()
	defer g.mu.RUnlock()
	return slices.Clone(g.gpus)
}

// Close stops listening to events. Nobody may be in Next.
func (g *GPUs) Close() error { return g.events.close() }

// open asks for a GPU and what it is. Without a handle it gives nil, and why in
// the GPU's Problem.
func (g *GPUs) open(index int, describe func(nvml.Device, int, device.GPU) device.GPU) (nvml.Device, device.GPU) {
	handle, ret := g.lib.DeviceGetHandleByIndex(index)
	if ret != nvml.SUCCESS {
		gpu := g.common
		gpu.Index, gpu.Name, gpu.Minor = index, api.DeviceName(index), -1
		gpu.Problem = "open: " + ret.Error()
		return nil, gpu
	}
	gpu := describe(handle, index, g.common)
	g.place(&gpu)
	return handle, gpu
}

// again opens a GPU that had a Problem once more. Once that is gone, its events
// are listened to, if any GPU's were at the start.
func (g *GPUs) again(index int) (nvml.Device, device.GPU) {
	// Nobody waits for this but whoever reads the GPU, which may hang as well.
	handle, gpu := g.open(index, describe)
	if handle != nil {
		g.events.register(handle, index)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.handles[index], g.gpus[index] = handle, gpu
	return handle, gpu
}

// at gives a GPU as it is known.
func (g *GPUs) at(index int) (nvml.Device, device.GPU) {
	g.mu.RLock()
	defer g.mu.RUnlock()
	return g.handles[index], g.gpus[index]
}

// place says where on the machine a GPU is. What the kernel does not tell, such
// as the NUMA node on a machine that has but one, is left out.
func (g *GPUs) place(gpu *device.GPU) {
	if g.sysfs == nil || gpu.PCIBusID == "" {
		return
	}
	sysfs := deviceattribute.WithFS(g.sysfs)
	if root, err := deviceattribute.GetPCIeRootAttributeByPCIBusID(gpu.PCIBusID, sysfs); err == nil {
		gpu.PCIeRoot = *root.Value.StringValue
	}
	if node, err := deviceattribute.GetNUMANodeAttributeByPCIBusID(gpu.PCIBusID, deviceattribute.ScalarAttribute, sysfs); err == nil {
		gpu.NUMANode = device.Known(int(*node.Value.IntValue))
	}
}

// describeTime bounds how long the driver's start waits for one GPU.
const describeTime = 2 * time.Second

// describeInTime is describe for a GPU that may hang: the others must not wait
// for it. It keeps its place, its handle and, if the library knows that much by
// itself, its UUID.
func describeInTime(h nvml.Device, index int, common device.GPU) device.GPU {
	described := make(chan device.GPU, 1)
	go func() { described <- describe(h, index, common) }()
	late := time.NewTimer(describeTime)
	defer late.Stop()
	select {
	case gpu := <-described:
		return gpu
	case <-late.C:
	}
	unknown := common // describe goes on with the other
	unknown.Index, unknown.Name, unknown.Minor = index, api.DeviceName(index), -1
	unknown.Problem = fmt.Sprintf("did not answer within %s", describeTime)
	known := make(chan string, 1)
	go func() {
		if uuid, ret := h.GetUUID(); ret == nvml.SUCCESS {
			known <- uuid
		}
	}()
	late.Reset(describeTime)
	select {
	case unknown.UUID = <-known:
	case <-late.C:
	}
	return unknown
}

// describe asks a GPU what it is. That it declines to say is no problem, except
// where a claim could not be given the GPU without: its UUID and its memory.
func describe(h nvml.Device, index int, gpu device.GPU) device.GPU {
	gpu.Index, gpu.Name = index, api.DeviceName(index)
	var problems []error
	var err error
	needed := func(what string, ret nvml.Return) bool {
		if ret != nvml.SUCCESS {
			problems = append(problems, fmt.Errorf("%s: %w", what, ret))
		}
		return ret != nvml.SUCCESS
	}
	failed := func(what string, ret nvml.Return) bool {
		if unsupported(ret) {
			return true
		}
		return needed(what, ret)
	}
	var ret nvml.Return
	gpu.UUID, ret = h.GetUUID()
	needed("UUID", ret)
	gpu.Product, ret = h.GetName()
	failed("name", ret)
	if brand, ret := h.GetBrand(); !failed("brand", ret) {
		gpu.Brand = brandName(brand)
	}
	if arch, ret := h.GetArchitecture(); !failed("architecture", ret) {
		gpu.Architecture = architectureName(arch)
	}
	gpu.ComputeMajor, gpu.ComputeMinor, ret = h.GetCudaComputeCapability()
	failed("compute capability", ret)
	if memory, ret := h.GetMemoryInfo(); !needed("memory", ret) {
		gpu.MemoryBytes = memory.Total
	}
	if pci, ret := h.GetPciInfo(); !failed("PCI address", ret) {
		gpu.PCIBusID = busID(pci)
	}
	if gpu.Minor, ret = h.GetMinorNumber(); failed("minor number", ret) {
		gpu.Minor = -1
	}
	if gpu.Partitions, err = partitions(h, gpu.MemoryBytes); err != nil {
		problems = append(problems, err)
	}
	if err := errors.Join(problems...); err != nil {
		gpu.Problem = strings.ReplaceAll(err.Error(), "\n", "; ")
	}
	return gpu
}

// busID brings NVML's form, 00000000:17:00.0, into that of the kernel,
// 0000:17:00.0.
func busID(pci nvml.PciInfo) string {
	id := strings.ToLower(cString(pci.BusId[:]))
	if domain, rest, ok := strings.Cut(id, ":"); ok && len(domain) == 8 {
		return domain[4:] + ":" + rest
	}
	return id
}

func cString(chars []int8) string {
	bytes := unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(chars))), len(chars))
	text, _, _ := strings.Cut(string(bytes), "\x00")
	return text
}

func brandName(b nvml.BrandType) string {
	switch b {
	case nvml.BRAND_NVIDIA:
		return "NVIDIA"
	case nvml.BRAND_TESLA:
		return "Tesla"
	case nvml.BRAND_QUADRO:
		return "Quadro"
	case nvml.BRAND_QUADRO_RTX:
		return "QuadroRTX"
	case nvml.BRAND_NVIDIA_RTX:
		return "NvidiaRTX"
	case nvml.BRAND_GEFORCE:
		return "GeForce"
	case nvml.BRAND_GEFORCE_RTX:
		return "GeForceRTX"
	case nvml.BRAND_TITAN:
		return "Titan"
	case nvml.BRAND_TITAN_RTX:
		return "TitanRTX"
	}
	return "Unknown"
}

func architectureName(a nvml.DeviceArchitecture) string {
	switch a {
	case nvml.DEVICE_ARCH_KEPLER:
		return "Kepler"
	case nvml.DEVICE_ARCH_MAXWELL:
		return "Maxwell"
	case nvml.DEVICE_ARCH_PASCAL:
		return "Pascal"
	case nvml.DEVICE_ARCH_VOLTA:
		return "Volta"
	case nvml.DEVICE_ARCH_TURING:
		return "Turing"
	case nvml.DEVICE_ARCH_AMPERE:
		return "Ampere"
	case nvml.DEVICE_ARCH_ADA:
		return "Ada Lovelace"
	case nvml.DEVICE_ARCH_HOPPER:
		return "Hopper"
	case nvml.DEVICE_ARCH_BLACKWELL:
		return "Blackwell"
	}
	return "Unknown"
}
