// Package gpu is everything that the driver asks of NVML, for any
// implementation of its interface, and gives it in the words of package device.
// It does not know, and must not ask, whether the hardware is real.
package gpu

import (
	"errors"
	"fmt"
	"strings"
	"time"
	"unsafe"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

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
	handles []nvml.Device
	gpus    []device.GPU
	events  *events
}

// Discover finds all GPUs and begins to listen to their events. A GPU of which
// something cannot be read is listed with what is known; only when the library
// itself fails, or a GPU has no handle and no identity at all, is that an error.
func Discover(lib Library) (*GPUs, error) {
	count, ret := lib.DeviceGetCount()
	if ret != nvml.SUCCESS {
		return nil, fmt.Errorf("count GPUs: %w", ret)
	}
	var common device.GPU
	common.DriverVersion, _ = lib.SystemGetDriverVersion()
	if cuda, ret := lib.SystemGetCudaDriverVersion(); ret == nvml.SUCCESS {
		common.CUDAVersion = fmt.Sprintf("%d.%d", cuda/1000, cuda%1000/10)
	}
	g := &GPUs{}
	for i := range count {
		handle, ret := lib.DeviceGetHandleByIndex(i)
		if ret != nvml.SUCCESS {
			return nil, fmt.Errorf("open GPU %d: %w", i, ret)
		}
		g.handles = append(g.handles, handle)
		g.gpus = append(g.gpus, describeInTime(handle, i, common))
	}
	events, err := listen(lib, g.handles)
	if err != nil {
		return nil, err
	}
	g.events = events
	return g, nil
}

// List gives the GPUs by index.
func (g *GPUs) List() []device.GPU { return g.gpus }

// Close stops listening to events. Nobody may be in Next.
func (g *GPUs) Close() error { return g.events.close() }

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

func describe(h nvml.Device, index int, gpu device.GPU) device.GPU {
	gpu.Index, gpu.Name = index, api.DeviceName(index)
	var problems []error
	failed := func(what string, ret nvml.Return) bool {
		if ret != nvml.SUCCESS {
			problems = append(problems, fmt.Errorf("%s: %w", what, ret))
		}
		return ret != nvml.SUCCESS
	}
	var ret nvml.Return
	gpu.UUID, ret = h.GetUUID()
	failed("UUID", ret)
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
	if memory, ret := h.GetMemoryInfo(); !failed("memory", ret) {
		gpu.MemoryBytes = memory.Total
	}
	if pci, ret := h.GetPciInfo(); !failed("PCI address", ret) {
		gpu.PCIBusID = busID(pci)
	}
	if gpu.Minor, ret = h.GetMinorNumber(); failed("minor number", ret) {
		gpu.Minor = -1
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
