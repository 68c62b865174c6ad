package passthrough

import (
	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// required are the functions without which nothing works; any of the names in a
// list does, as go-nvml takes the newest version that there is.
func required() [][]string {
	return [][]string{
		{"nvmlInit_v2", "nvmlInit"}, {"nvmlShutdown"}, {"nvmlErrorString"},
		{"nvmlDeviceGetCount_v2", "nvmlDeviceGetCount"},
		{"nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetHandleByIndex"},
	}
}

// optional are the functions that the driver can do without, by go-nvml's names
// for them. Whoever has the driver call another one adds it here and guards it
// below; a test sees to that.
func optional() map[string][]string {
	return map[string][]string{
		"SystemGetDriverVersion":     {"nvmlSystemGetDriverVersion"},
		"SystemGetCudaDriverVersion": {"nvmlSystemGetCudaDriverVersion"},
		"EventSetCreate":             {"nvmlEventSetCreate"},
		"Wait":                       {"nvmlEventSetWait_v2", "nvmlEventSetWait"},
		"Free":                       {"nvmlEventSetFree"},

		"GetArchitecture":              {"nvmlDeviceGetArchitecture"},
		"GetBrand":                     {"nvmlDeviceGetBrand"},
		"GetComputeMode":               {"nvmlDeviceGetComputeMode"},
		"GetComputeRunningProcesses":   {"nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetComputeRunningProcesses_v2", "nvmlDeviceGetComputeRunningProcesses"},
		"GetCudaComputeCapability":     {"nvmlDeviceGetCudaComputeCapability"},
		"GetCurrPcieLinkGeneration":    {"nvmlDeviceGetCurrPcieLinkGeneration"},
		"GetCurrPcieLinkWidth":         {"nvmlDeviceGetCurrPcieLinkWidth"},
		"GetCurrentClocksEventReasons": {"nvmlDeviceGetCurrentClocksEventReasons"},
		"GetFieldValues":               {"nvmlDeviceGetFieldValues"},
		"GetGpuFabricInfo":             {"nvmlDeviceGetGpuFabricInfo"},
		"GetMaxPcieLinkGeneration":     {"nvmlDeviceGetMaxPcieLinkGeneration"},
		"GetMaxPcieLinkWidth":          {"nvmlDeviceGetMaxPcieLinkWidth"},
		"GetMemoryInfo":                {"nvmlDeviceGetMemoryInfo"},
		"GetMigMode":                   {"nvmlDeviceGetMigMode"},
		"GetMinorNumber":               {"nvmlDeviceGetMinorNumber"},
		"GetName":                      {"nvmlDeviceGetName"},
		"GetPciInfo":                   {"nvmlDeviceGetPciInfo_v3", "nvmlDeviceGetPciInfo_v2", "nvmlDeviceGetPciInfo"},
		"GetPowerUsage":                {"nvmlDeviceGetPowerUsage"},
		"GetRemappedRows":              {"nvmlDeviceGetRemappedRows"},
		"GetSupportedEventTypes":       {"nvmlDeviceGetSupportedEventTypes"},
		"GetTemperature":               {"nvmlDeviceGetTemperature"},
		"GetTemperatureThreshold":      {"nvmlDeviceGetTemperatureThreshold"},
		"GetTotalEccErrors":            {"nvmlDeviceGetTotalEccErrors"},
		"GetUUID":                      {"nvmlDeviceGetUUID"},
		"GetUtilizationRates":          {"nvmlDeviceGetUtilizationRates"},
		"RegisterEvents":               {"nvmlDeviceRegisterEvents"},
	}
}

// DeviceGetCount counts this node's GPUs.
func (h *Hardware) DeviceGetCount() (int, nvml.Return) { return len(h.own), nvml.SUCCESS }

// DeviceGetHandleByIndex opens one of this node's GPUs.
func (h *Hardware) DeviceGetHandleByIndex(index int) (nvml.Device, nvml.Return) {
	if index < 0 || index >= len(h.own) {
		return nil, nvml.ERROR_INVALID_ARGUMENT
	}
	d, ret := h.Interface.DeviceGetHandleByIndex(h.own[index])
	if ret != nvml.SUCCESS {
		return nil, ret
	}
	return h.guard(d), nvml.SUCCESS
}

// SystemGetDriverVersion answers if the library can.
func (h *Hardware) SystemGetDriverVersion() (string, nvml.Return) {
	return ask(h, "SystemGetDriverVersion", h.Interface.SystemGetDriverVersion)
}

// SystemGetCudaDriverVersion answers if the library can.
func (h *Hardware) SystemGetCudaDriverVersion() (int, nvml.Return) {
	return ask(h, "SystemGetCudaDriverVersion", h.Interface.SystemGetCudaDriverVersion)
}

// EventSetCreate answers if the library can do all that is done with a set.
func (h *Hardware) EventSetCreate() (nvml.EventSet, nvml.Return) {
	if h.missing["EventSetCreate"] || h.missing["Wait"] || h.missing["Free"] || h.missing["RegisterEvents"] {
		return nil, nvml.ERROR_FUNCTION_NOT_FOUND
	}
	set, ret := h.Interface.EventSetCreate()
	if ret != nvml.SUCCESS {
		return nil, ret
	}
	return eventSet{set, h}, nvml.SUCCESS
}

// eventSet gives events with the GPUs that DeviceGetHandleByIndex gave.
type eventSet struct {
	nvml.EventSet
	h *Hardware
}

func (s eventSet) Wait(milliseconds uint32) (nvml.EventData, nvml.Return) {
	data, ret := s.EventSet.Wait(milliseconds)
	data.Device = s.h.guard(data.Device)
	return data, ret
}

func (h *Hardware) guard(d nvml.Device) guarded { return guarded{d, h} }

// guarded is a GPU that is asked only what the library can answer. Two of the
// same GPU are equal.
type guarded struct {
	nvml.Device
	h *Hardware
}

func ask[T any](h *Hardware, method string, call func() (T, nvml.Return)) (T, nvml.Return) {
	if h.missing[method] {
		var none T
		return none, nvml.ERROR_FUNCTION_NOT_FOUND
	}
	return call()
}

func ask2[T, U any](h *Hardware, method string, call func() (T, U, nvml.Return)) (T, U, nvml.Return) {
	if h.missing[method] {
		var none T
		var none2 U
		return none, none2, nvml.ERROR_FUNCTION_NOT_FOUND
	}
	return call()
}

func (d guarded) GetArchitecture() (nvml.DeviceArchitecture, nvml.Return) {
	return ask(d.h, "GetArchitecture", d.Device.GetArchitecture)
}

func (d guarded) GetBrand() (nvml.BrandType, nvml.Return) {
	return ask(d.h, "GetBrand", d.Device.GetBrand)
}

func (d guarded) GetComputeMode() (nvml.ComputeMode, nvml.Return) {
	return ask(d.h, "GetComputeMode", d.Device.GetComputeMode)
}

func (d guarded) GetComputeRunningProcesses() ([]nvml.ProcessInfo, nvml.Return) {
	return ask(d.h, "GetComputeRunningProcesses", d.Device.GetComputeRunningProcesses)
}

func (d guarded) GetCudaComputeCapability() (major, minor int, ret nvml.Return) {
	return ask2(d.h, "GetCudaComputeCapability", d.Device.GetCudaComputeCapability)
}

func (d guarded) GetCurrPcieLinkGeneration() (int, nvml.Return) {
	return ask(d.h, "GetCurrPcieLinkGeneration", d.Device.GetCurrPcieLinkGeneration)
}

func (d guarded) GetCurrPcieLinkWidth() (int, nvml.Return) {
	return ask(d.h, "GetCurrPcieLinkWidth", d.Device.GetCurrPcieLinkWidth)
}

func (d guarded) GetCurrentClocksEventReasons() (uint64, nvml.Return) {
	return ask(d.h, "GetCurrentClocksEventReasons", d.Device.GetCurrentClocksEventReasons)
}

func (d guarded) GetFieldValues(values []nvml.FieldValue) nvml.Return {
	if d.h.missing["GetFieldValues"] {
		return nvml.ERROR_FUNCTION_NOT_FOUND
	}
	return d.Device.GetFieldValues(values)
}

func (d guarded) GetGpuFabricInfo() (nvml.GpuFabricInfo, nvml.Return) {
	return ask(d.h, "GetGpuFabricInfo", d.Device.GetGpuFabricInfo)
}

func (d guarded) GetMaxPcieLinkGeneration() (int, nvml.Return) {
	return ask(d.h, "GetMaxPcieLinkGeneration", d.Device.GetMaxPcieLinkGeneration)
}

func (d guarded) GetMaxPcieLinkWidth() (int, nvml.Return) {
	return ask(d.h, "GetMaxPcieLinkWidth", d.Device.GetMaxPcieLinkWidth)
}

func (d guarded) GetMemoryInfo() (nvml.Memory, nvml.Return) {
	return ask(d.h, "GetMemoryInfo", d.Device.GetMemoryInfo)
}

func (d guarded) GetMigMode() (current, pending int, ret nvml.Return) {
	return ask2(d.h, "GetMigMode", d.Device.GetMigMode)
}

func (d guarded) GetMinorNumber() (int, nvml.Return) {
	return ask(d.h, "GetMinorNumber", d.Device.GetMinorNumber)
}

func (d guarded) GetName() (string, nvml.Return) { return ask(d.h, "GetName", d.Device.GetName) }

func (d guarded) GetPciInfo() (nvml.PciInfo, nvml.Return) {
	return ask(d.h, "GetPciInfo", d.Device.GetPciInfo)
}

func (d guarded) GetPowerUsage() (uint32, nvml.Return) {
	return ask(d.h, "GetPowerUsage", d.Device.GetPowerUsage)
}

func (d guarded) GetRemappedRows() (correctable, uncorrectable int, pending, failed bool, ret nvml.Return) {
	if d.h.missing["GetRemappedRows"] {
		return 0, 0, false, false, nvml.ERROR_FUNCTION_NOT_FOUND
	}
	return d.Device.GetRemappedRows()
}

func (d guarded) GetSupportedEventTypes() (uint64, nvml.Return) {
	return ask(d.h, "GetSupportedEventTypes", d.Device.GetSupportedEventTypes)
}

func (d guarded) GetTemperature(sensor nvml.TemperatureSensors) (uint32, nvml.Return) {
	return ask(d.h, "GetTemperature", func() (uint32, nvml.Return) { return d.Device.GetTemperature(sensor) })
}

func (d guarded) GetTemperatureThreshold(which nvml.TemperatureThresholds) (uint32, nvml.Return) {
	return ask(d.h, "GetTemperatureThreshold", func() (uint32, nvml.Return) { return d.Device.GetTemperatureThreshold(which) })
}

func (d guarded) GetTotalEccErrors(kind nvml.MemoryErrorType, counter nvml.EccCounterType) (uint64, nvml.Return) {
	return ask(d.h, "GetTotalEccErrors", func() (uint64, nvml.Return) { return d.Device.GetTotalEccErrors(kind, counter) })
}

func (d guarded) GetUUID() (string, nvml.Return) { return ask(d.h, "GetUUID", d.Device.GetUUID) }

func (d guarded) GetUtilizationRates() (nvml.Utilization, nvml.Return) {
	return ask(d.h, "GetUtilizationRates", d.Device.GetUtilizationRates)
}

// RegisterEvents takes a set of EventSetCreate.
func (d guarded) RegisterEvents(mask uint64, set nvml.EventSet) nvml.Return {
	s, ok := set.(eventSet)
	if !ok {
		return nvml.ERROR_INVALID_ARGUMENT
	}
	if d.h.missing["RegisterEvents"] {
		return nvml.ERROR_FUNCTION_NOT_FOUND
	}
	return d.Device.RegisterEvents(mask, s.EventSet)
}

// What follows would cut a GPU up, or look at its parts in order to. It is never
// done to real ones.

func (d guarded) SetMigMode(int) (nvml.Return, nvml.Return) {
	return nvml.ERROR_NOT_SUPPORTED, nvml.ERROR_NOT_SUPPORTED
}

func (d guarded) GetMaxMigDeviceCount() (int, nvml.Return) { return 0, nvml.ERROR_NOT_SUPPORTED }

func (d guarded) GetMigDeviceHandleByIndex(int) (nvml.Device, nvml.Return) {
	return nil, nvml.ERROR_NOT_SUPPORTED
}

func (d guarded) GetGpuInstanceProfileInfo(int) (nvml.GpuInstanceProfileInfo, nvml.Return) {
	return nvml.GpuInstanceProfileInfo{}, nvml.ERROR_NOT_SUPPORTED
}

func (d guarded) GetGpuInstancePossiblePlacements(*nvml.GpuInstanceProfileInfo) ([]nvml.GpuInstancePlacement, nvml.Return) {
	return nil, nvml.ERROR_NOT_SUPPORTED
}

func (d guarded) GetGpuInstances(*nvml.GpuInstanceProfileInfo) ([]nvml.GpuInstance, nvml.Return) {
	return nil, nvml.ERROR_NOT_SUPPORTED
}

func (d guarded) CreateGpuInstance(*nvml.GpuInstanceProfileInfo) (nvml.GpuInstance, nvml.Return) {
	return nil, nvml.ERROR_NOT_SUPPORTED
}

func (d guarded) CreateGpuInstanceWithPlacement(*nvml.GpuInstanceProfileInfo, *nvml.GpuInstancePlacement) (nvml.GpuInstance, nvml.Return) {
	return nil, nvml.ERROR_NOT_SUPPORTED
}

// GetGpuInstanceId is not supported: no partition of a real GPU is looked at.
//
//nolint:staticcheck // NVML's name
func (d guarded) GetGpuInstanceId() (int, nvml.Return) { return 0, nvml.ERROR_NOT_SUPPORTED }
