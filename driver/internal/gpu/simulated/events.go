package simulated

import (
	"sync"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"
)

// maxQueued bounds the events that wait for a reader; then the oldest go.
const maxQueued = 256

// wholeGPU is what NVML says for the partition of an event of a whole GPU.
const wholeGPU = 0xFFFFFFFF

// occurrence is what one Wait returns.
type occurrence struct {
	data nvml.EventData
	ret  nvml.Return
}

// eventSet collects the events of the GPUs that are registered in it.
type eventSet struct {
	mock.EventSet // whatever the driver does not call
	gpus          []*board

	mu      sync.Mutex
	queue   []occurrence
	arrived chan struct{} // has a value when the queue may have one
	freed   bool
}

func newEventSet(gpus []*board) *eventSet {
	return &eventSet{gpus: gpus, arrived: make(chan struct{}, 1)}
}

// Free takes the set away from the GPUs.
func (s *eventSet) Free() nvml.Return {
	for _, g := range s.gpus {
		g.unregister(s)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.freed = true
	return nvml.SUCCESS
}

// Wait gives the next event. The timeout is in milliseconds.
func (s *eventSet) Wait(milliseconds uint32) (nvml.EventData, nvml.Return) {
	timeout := time.NewTimer(time.Duration(milliseconds) * time.Millisecond)
	defer timeout.Stop()
	for {
		s.mu.Lock()
		if s.freed {
			s.mu.Unlock()
			return nvml.EventData{}, nvml.ERROR_INVALID_ARGUMENT
		}
		if len(s.queue) > 0 {
			o := s.queue[0]
			s.queue = s.queue[1:]
			s.mu.Unlock()
			return o.data, o.ret
		}
		s.mu.Unlock()
		select {
		case <-s.arrived:
		case <-timeout.C:
			return nvml.EventData{}, nvml.ERROR_TIMEOUT
		}
	}
}

func (s *eventSet) add(o occurrence) {
	s.mu.Lock()
	s.queue = append(s.queue, o)
	if len(s.queue) > maxQueued {
		s.queue = s.queue[1:]
	}
	s.mu.Unlock()
	select {
	case s.arrived <- struct{}{}:
	default:
	}
}
