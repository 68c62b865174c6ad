package gpu_test

import (
	"errors"
	"fmt"
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
		GetMigModeFunc:                   func() (int, int, nvml.Return) { return 0, 0, ret },
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
			g, err := gpu.Discover(library{ret: tc.ret, events: nvml.ERROR_NOT_SUPPORTED}, nil)
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
	if _, err := gpu.Discover(library{events: nvml.ERROR_UNINITIALIZED}, nil); err == nil {
		t.Error("no error")
	}
}

// machine is one with two GPUs that can be opened or not, and tell or not.
type machine struct {
	library
	handle, memory nvml.Return // of GPU 1
	handles        [2]*mock.Device
	registered     int
}

func newMachine() *machine {
	m := &machine{library: library{ret: nvml.SUCCESS}}
	for i := range m.handles {
		h, _ := m.library.DeviceGetHandleByIndex(i)
		m.handles[i] = h.(*mock.Device)
		m.handles[i].GetUUIDFunc = func() (string, nvml.Return) { return fmt.Sprintf("GPU-%d", i), nvml.SUCCESS }
		m.handles[i].GetMemoryInfoFunc = func() (nvml.Memory, nvml.Return) {
			if i == 1 && m.memory != nvml.SUCCESS {
				return nvml.Memory{}, m.memory
			}
			return nvml.Memory{Total: 80 << 30}, nvml.SUCCESS
		}
		m.handles[i].GetSupportedEventTypesFunc = func() (uint64, nvml.Return) { return nvml.EventTypeXidCriticalError, nvml.SUCCESS }
		m.handles[i].RegisterEventsFunc = func(uint64, nvml.EventSet) nvml.Return { m.registered++; return nvml.SUCCESS }
	}
	return m
}

func (m *machine) DeviceGetCount() (int, nvml.Return) { return len(m.handles), nvml.SUCCESS }

func (m *machine) EventSetCreate() (nvml.EventSet, nvml.Return) {
	return &mock.EventSet{FreeFunc: func() nvml.Return { return nvml.SUCCESS }}, nvml.SUCCESS
}

func (m *machine) DeviceGetHandleByIndex(i int) (nvml.Device, nvml.Return) {
	if i == 1 && m.handle != nvml.SUCCESS {
		return nil, m.handle
	}
	return m.handles[i], nvml.SUCCESS
}

func TestGPUThatCannotBeOpenedStopsNobodyAndIsTriedAgain(t *testing.T) {
	for name, tc := range map[string]struct {
		set        func(*machine, nvml.Return)
		ret        nvml.Return
		registered int // at first
	}{
		"no handle":         {set: func(m *machine, ret nvml.Return) { m.handle = ret }, ret: nvml.ERROR_INSUFFICIENT_POWER, registered: 1},
		"no memory":         {set: func(m *machine, ret nvml.Return) { m.memory = ret }, ret: nvml.ERROR_UNKNOWN, registered: 2},
		"declines its size": {set: func(m *machine, ret nvml.Return) { m.memory = ret }, ret: nvml.ERROR_NOT_SUPPORTED, registered: 2},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine()
			tc.set(m, tc.ret)
			g, err := gpu.Discover(m, nil)
			if err != nil {
				t.Fatal(err)
			}
			defer g.Close()
			listed := g.List()
			if len(listed) != 2 || listed[0].Problem != "" || listed[1].Name != "gpu-1" || !strings.Contains(listed[1].Problem, tc.ret.Error()) {
				t.Fatalf("listed: %+v", listed)
			}
			if r := g.Read(1); !strings.Contains(r.Problem, tc.ret.Error()) || r.Lost {
				t.Errorf("reading: %+v", r)
			}
			if _, err := g.Usage(1); err == nil {
				t.Error("it has a usage")
			}
			if m.registered != tc.registered {
				t.Errorf("%d GPUs are listened to, want %d", m.registered, tc.registered)
			}
			// When it can be read, then it is like the others, events included.
			tc.set(m, nvml.SUCCESS)
			if r := g.Read(1); r.Problem != "" || !r.Answered() {
				t.Errorf("reading: %+v", r)
			}
			if listed := g.List(); listed[1].Problem != "" || listed[1].UUID != "GPU-1" || listed[1].MemoryBytes != 80<<30 {
				t.Errorf("listed: %+v", listed)
			}
			if m.registered != 2 {
				t.Errorf("%d GPUs are listened to, want 2", m.registered)
			}
		})
	}
}

func TestWhatAGPUNeedNotTellIsNoProblem(t *testing.T) {
	m := newMachine()
	for _, h := range m.handles {
		h.GetBrandFunc = func() (nvml.BrandType, nvml.Return) { return 0, nvml.ERROR_NOT_SUPPORTED }
		h.GetMinorNumberFunc = func() (int, nvml.Return) { return 0, nvml.ERROR_NO_PERMISSION }
	}
	g, err := gpu.Discover(m, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	if got := g.List()[0]; got.Problem != "" || got.Brand != "" || got.Minor != -1 || got.NUMANode.Known {
		t.Errorf("listed: %+v", got)
	}
}
