package gpu

import (
	"fmt"
	"sync"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/dra-lab/dra-lab/driver/internal/device"
	"github.com/dra-lab/dra-lab/driver/internal/health"
)

// wanted is every event that says something about the health of a GPU. Each
// GPU is asked for those of them that it supports: naming one that it does not
// know would register none.
const wanted = nvml.EventTypeXidCriticalError |
	nvml.EventTypeSingleBitEccError |
	nvml.EventTypeDoubleBitEccError |
	nvml.EventTypeDramRetirementEvent |
	nvml.EventTypeDramRetirementFailure |
	nvml.EventTypeNonFatalPoisonError |
	nvml.EventTypeFatalPoisonError |
	nvml.EventTypeGpuUnavailableError |
	nvml.EventTypeGpuRecoveryAction

type events struct {
	set nvml.EventSet // nil when no GPU supports events

	mu    sync.RWMutex
	index map[nvml.Device]int // of the GPUs that are registered
}

func listen(lib Library, handles []nvml.Device) (*events, error) {
	e := &events{index: make(map[nvml.Device]int, len(handles))}
	set, ret := lib.EventSetCreate()
	if unsupported(ret) {
		return e, nil
	}
	if ret != nvml.SUCCESS {
		return nil, fmt.Errorf("create event set: %w", ret)
	}
	e.set = set
	for i, h := range handles {
		if h != nil {
			e.register(h, i)
		}
	}
	if len(e.index) == 0 {
		set.Free()
		e.set = nil
	}
	return e, nil
}

// register listens to a GPU as well. One that supports no event is asked at
// intervals like all others; that has to do.
func (e *events) register(h nvml.Device, index int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if _, ok := e.index[h]; ok || e.set == nil {
		return
	}
	supported, ret := h.GetSupportedEventTypes()
	if ret != nvml.SUCCESS || supported&wanted == 0 {
		return
	}
	if ret := h.RegisterEvents(supported&wanted, e.set); ret == nvml.SUCCESS {
		e.index[h] = index
	}
}

// of is the index of the GPU that an event is of, -1 if it is not known.
func (e *events) of(h nvml.Device) int {
	e.mu.RLock()
	defer e.mu.RUnlock()
	if index, ok := e.index[h]; ok {
		return index
	}
	return -1
}

func (e *events) close() error {
	if e.set == nil {
		return nil
	}
	if ret := e.set.Free(); ret != nvml.SUCCESS {
		return fmt.Errorf("free event set: %w", ret)
	}
	return nil
}

// Next waits for the next event of any GPU, at most as long as told. It gives
// ok false when none came, which may also happen early, and ErrNoEvents of
// package health when no GPU supports events.
func (g *GPUs) Next(wait time.Duration) (e device.Event, ok bool, err error) {
	if g.events.set == nil {
		return device.Event{}, false, health.ErrNoEvents
	}
	data, ret := g.events.set.Wait(uint32(wait.Milliseconds()))
	switch ret {
	case nvml.SUCCESS:
	case nvml.ERROR_TIMEOUT:
		return device.Event{}, false, nil
	case nvml.ERROR_GPU_IS_LOST:
		// NVML does not say which GPU: whoever reads this has to ask each.
		return device.Event{Index: -1, Kind: device.EventUnavailable}, true, nil
	default:
		return device.Event{}, false, ret
	}
	kind := kindOf(data.EventType)
	if kind == 0 {
		return device.Event{}, false, nil
	}
	return device.Event{Index: g.events.of(data.Device), Kind: kind, Code: data.EventData}, true, nil
}

func kindOf(eventType uint64) device.EventKind {
	switch eventType {
	case nvml.EventTypeXidCriticalError:
		return device.EventXID
	case nvml.EventTypeDoubleBitEccError, nvml.EventTypeFatalPoisonError:
		return device.EventECCDouble
	case nvml.EventTypeSingleBitEccError, nvml.EventTypeNonFatalPoisonError:
		return device.EventECCSingle
	case nvml.EventTypeDramRetirementEvent, nvml.EventTypeDramRetirementFailure:
		return device.EventRemap
	case nvml.EventTypeGpuUnavailableError:
		return device.EventUnavailable
	case nvml.EventTypeGpuRecoveryAction:
		return device.EventRecovery
	}
	return 0
}

// unsupported says whether an answer means that nobody can answer, as opposed
// to something being wrong: virtual machines and older GPUs decline a lot.
func unsupported(ret nvml.Return) bool {
	switch ret {
	case nvml.ERROR_NOT_SUPPORTED, nvml.ERROR_NO_PERMISSION, nvml.ERROR_FUNCTION_NOT_FOUND,
		nvml.ERROR_ARGUMENT_VERSION_MISMATCH, nvml.ERROR_DEPRECATED:
		return true
	}
	return false
}
