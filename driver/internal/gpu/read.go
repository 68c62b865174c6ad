package gpu

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/dra-lab/dra-lab/driver/internal/device"
)

// reader puts questions to one GPU and remembers how they were answered.
type reader struct {
	reading  device.Reading
	declined int
	errors   []string
}

// answered says whether there is an answer to the question named what. A GPU
// that is gone answers every question the same way.
func (r *reader) answered(what string, ret nvml.Return) bool {
	switch {
	case ret == nvml.SUCCESS:
		return true
	case ret == nvml.ERROR_GPU_IS_LOST || ret == nvml.ERROR_GPU_NOT_FOUND || ret == nvml.ERROR_RESET_REQUIRED && what == "memory":
		r.reading = device.Reading{Lost: true, Problem: r.reading.Problem, Detail: what + ": " + ret.Error()}
	case unsupported(ret):
		r.declined++
	default:
		r.errors = append(r.errors, what+": "+ret.Error())
	}
	return false
}

// Read asks the GPU with this index how it is, and one with a Problem first
// whether it still has that. It takes as long as the hardware takes.
func (g *GPUs) Read(index int) device.Reading {
	h, gpu := g.at(index)
	if gpu.Problem != "" {
		h, gpu = g.again(index)
	}
	if h == nil {
		return device.Reading{Problem: gpu.Problem, Detail: gpu.Problem}
	}
	r := reader{reading: device.Reading{Problem: gpu.Problem}}
	for _, ask := range []func(*reader, nvml.Device){
		readMemory, readRecovery, readTemperature, readPower, readPCIe, readECC, readRemapping, readFabric,
	} {
		if ask(&r, h); r.reading.Lost {
			return r.reading
		}
	}
	switch {
	case len(r.errors) > 0:
		r.reading.Detail = strings.Join(r.errors, "; ")
	case r.declined > 0:
		r.reading.Detail = fmt.Sprintf("%d questions are not supported here", r.declined)
	}
	return r.reading
}

func readMemory(r *reader, h nvml.Device) {
	if memory, ret := h.GetMemoryInfo(); r.answered("memory", ret) {
		r.reading.UsedBytes = device.Known(memory.Used)
	}
}

func readTemperature(r *reader, h nvml.Device) {
	if t, ret := h.GetTemperature(nvml.TEMPERATURE_GPU); r.answered("temperature", ret) {
		r.reading.Temperature = device.Known(int(t))
	}
	if t, ret := h.GetTemperatureThreshold(nvml.TEMPERATURE_THRESHOLD_SLOWDOWN); r.answered("temperature limit", ret) {
		r.reading.TemperatureLimit = device.Known(int(t))
	}
}

func readPower(r *reader, h nvml.Device) {
	if mw, ret := h.GetPowerUsage(); r.answered("power", ret) {
		r.reading.PowerMilliwatts = device.Known(int(mw))
	}
	if reasons, ret := h.GetCurrentClocksEventReasons(); r.answered("clocks", ret) {
		r.reading.PowerBraked = device.Known(reasons&nvml.ClocksThrottleReasonHwPowerBrakeSlowdown != 0)
	}
}

// readPCIe looks at the generation only while the GPU works: an idle one lowers
// that of its link to save power, and that is no fault.
func readPCIe(r *reader, h nvml.Device) {
	if lanes, ret := h.GetCurrPcieLinkWidth(); r.answered("PCIe width", ret) {
		r.reading.PCIeWidth = device.Known(lanes)
	}
	if lanes, ret := h.GetMaxPcieLinkWidth(); r.answered("PCIe maximum width", ret) {
		r.reading.PCIeWidthMax = device.Known(lanes)
	}
	load, ret := h.GetUtilizationRates()
	if !r.answered("utilization", ret) || load.Gpu == 0 {
		return
	}
	if generation, ret := h.GetCurrPcieLinkGeneration(); r.answered("PCIe generation", ret) {
		r.reading.PCIeGeneration = device.Known(generation)
	}
	if generation, ret := h.GetMaxPcieLinkGeneration(); r.answered("PCIe maximum generation", ret) {
		r.reading.PCIeGenerationMax = device.Known(generation)
	}
}

// readFabric does not count as a question that was declined: most GPUs are in no
// fabric.
func readFabric(r *reader, h nvml.Device) {
	info, ret := h.GetGpuFabricInfo()
	if unsupported(ret) || !r.answered("fabric", ret) || info.State != nvml.GPU_FABRIC_STATE_COMPLETED {
		return
	}
	r.reading.FabricError = device.Known("")
	if status := nvml.Return(info.Status); status != nvml.SUCCESS {
		r.reading.FabricError = device.Known(status.Error())
	}
}

func readECC(r *reader, h nvml.Device) {
	if n, ret := h.GetTotalEccErrors(nvml.MEMORY_ERROR_TYPE_UNCORRECTED, nvml.VOLATILE_ECC); r.answered("ECC errors", ret) {
		r.reading.UncorrectedECC = device.Known(n)
	}
}

func readRemapping(r *reader, h nvml.Device) {
	if _, _, _, failed, ret := h.GetRemappedRows(); r.answered("remapped rows", ret) {
		r.reading.RemapFailed = device.Known(failed)
	}
}

func readRecovery(r *reader, h nvml.Device) {
	values := []nvml.FieldValue{{FieldId: nvml.FI_DEV_GET_GPU_RECOVERY_ACTION}}
	if ret := h.GetFieldValues(values); !r.answered("recovery action", ret) {
		return
	}
	if ret := nvml.Return(values[0].NvmlReturn); !r.answered("recovery action", ret) {
		return
	}
	// NVML hands out a C union; the action is its unsigned 32-bit member.
	r.reading.Recovery = device.Known(device.RecoveryAction(binary.NativeEndian.Uint32(values[0].Value[:4])))
}

// Usage says what runs on the GPU with this index. A GPU that does not tell
// gives errors.ErrUnsupported.
func (g *GPUs) Usage(index int) (device.Usage, error) {
	h, gpu := g.at(index)
	if h == nil {
		return device.Usage{}, fmt.Errorf("read memory of GPU %d: %s", index, gpu.Problem)
	}
	return usage(h, fmt.Sprintf("GPU %d", index))
}

// usage is that of a GPU or a partition, by its name.
func usage(h nvml.Device, name string) (device.Usage, error) {
	memory, ret := h.GetMemoryInfo()
	if unsupported(ret) {
		return device.Usage{}, fmt.Errorf("read memory of %s: %w (%w)", name, errors.ErrUnsupported, ret)
	}
	if ret != nvml.SUCCESS {
		return device.Usage{}, fmt.Errorf("read memory of %s: %w", name, ret)
	}
	usage := device.Usage{UsedBytes: memory.Used, TotalBytes: memory.Total}
	processes, ret := h.GetComputeRunningProcesses()
	if ret != nvml.SUCCESS {
		if unsupported(ret) {
			return usage, nil
		}
		return device.Usage{}, fmt.Errorf("list processes of %s: %w", name, ret)
	}
	for _, p := range processes {
		usage.Processes = append(usage.Processes, device.Process{PID: p.Pid, Bytes: p.UsedGpuMemory})
	}
	return usage, nil
}
