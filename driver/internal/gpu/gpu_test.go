package gpu_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"

	"github.com/dra-lab/dra-lab/driver/internal/gpu"
	"github.com/dra-lab/dra-lab/driver/internal/health"
)

// library is one that answers every question in the same way, as broken or
// virtual hardware does.
type library struct {
	ret    nvml.Return
	events nvml.Return
}

func (l library) DeviceGetCount() (int, nvml.Return)             { return 1, nvml.SUCCESS }
func (l library) EventSetCreate() (nvml.EventSet, nvml.Return)   { return nil, l.events }
func (l library) SystemGetDriverVersion() (string, nvml.Return)  { return "", l.ret }
func (l library) SystemGetCudaDriverVersion() (int, nvml.Return) { return 0, l.ret }
func (l library) DeviceGetHandleByIndex(int) (nvml.Device, nvml.Return) {
	ret := l.ret
	return &mock.Device{
		GetUUIDFunc:                      func() (string, nvml.Return) { return "", ret },
		GetNameFunc:                      func() (string, nvml.Return) { return "", ret },
		GetBrandFunc:                     func() (nvml.BrandType, nvml.Return) { return 0, ret },
		GetArchitectureFunc:              func() (nvml.DeviceArchitecture, nvml.Return) { return 0, ret },
		GetCudaComputeCapabilityFunc:     func() (int, int, nvml.Return) { return 0, 0, ret },
		GetMemoryInfoFunc:                func() (nvml.Memory, nvml.Return) { return nvml.Memory{}, ret },
		GetPciInfoFunc:                   func() (nvml.PciInfo, nvml.Return) { return nvml.PciInfo{}, ret },
		GetMinorNumberFunc:               func() (int, nvml.Return) { return 0, ret },
		GetFieldValuesFunc:               func([]nvml.FieldValue) nvml.Return { return ret },
		GetTemperatureFunc:               func(nvml.TemperatureSensors) (uint32, nvml.Return) { return 0, ret },
		GetTemperatureThresholdFunc:      func(nvml.TemperatureThresholds) (uint32, nvml.Return) { return 0, ret },
		GetPowerUsageFunc:                func() (uint32, nvml.Return) { return 0, ret },
		GetCurrPcieLinkWidthFunc:         func() (int, nvml.Return) { return 0, ret },
		GetMaxPcieLinkWidthFunc:          func() (int, nvml.Return) { return 0, ret },
		GetUtilizationRatesFunc:          func() (nvml.Utilization, nvml.Return) { return nvml.Utilization{}, ret },
		GetGpuFabricInfoFunc:             func() (nvml.GpuFabricInfo, nvml.Return) { return nvml.GpuFabricInfo{}, ret },
		GetCurrentClocksEventReasonsFunc: func() (uint64, nvml.Return) { return 0, ret },
		GetTotalEccErrorsFunc:            func(nvml.MemoryErrorType, nvml.EccCounterType) (uint64, nvml.Return) { return 0, ret },
		GetRemappedRowsFunc:              func() (int, int, bool, bool, nvml.Return) { return 0, 0, false, false, ret },
	}, nvml.SUCCESS
}

func TestGPUThatAnswersNothing(t *testing.T) {
	for _, tc := range []struct {
		ret         nvml.Return
		lost        bool
		unsupported bool // Usage
	}{
		{ret: nvml.ERROR_NOT_SUPPORTED, unsupported: true},
		{ret: nvml.ERROR_NO_PERMISSION, unsupported: true},
		{ret: nvml.ERROR_UNKNOWN},
		{ret: nvml.ERROR_GPU_IS_LOST, lost: true},
		{ret: nvml.ERROR_RESET_REQUIRED, lost: true},
	} {
		t.Run(tc.ret.Error(), func(t *testing.T) {
			g, err := gpu.Discover(library{ret: tc.ret, events: nvml.ERROR_NOT_SUPPORTED})
			if err != nil {
				t.Fatal(err)
			}
			// It is listed nevertheless, with the reason.
			listed := g.List()
			if len(listed) != 1 || listed[0].Name != "gpu-0" || !strings.Contains(listed[0].Problem, tc.ret.Error()) || listed[0].Minor != -1 {
				t.Errorf("listed: %+v", listed)
			}
			r := g.Read(0)
			if r.Lost != tc.lost || r.Answered() || r.Detail == "" {
				t.Errorf("reading: %+v", r)
			}
			if _, err := g.Usage(0); err == nil || errors.Is(err, errors.ErrUnsupported) != tc.unsupported {
				t.Errorf("usage: %v", err)
			}
			if _, _, err := g.Next(time.Millisecond); !errors.Is(err, health.ErrNoEvents) {
				t.Errorf("events: %v", err)
			}
			if err := g.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestLibraryWithoutEventsForAnotherReasonIsAnError(t *testing.T) {
	if _, err := gpu.Discover(library{events: nvml.ERROR_UNINITIALIZED}); err == nil {
		t.Error("no error")
	}
}
