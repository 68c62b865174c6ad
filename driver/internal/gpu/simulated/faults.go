package simulated

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/dra-lab/dra-lab/driver/api"
)

// maxFile bounds what is read of any file in the hardware directory.
const maxFile = 64 << 10

// load reads the GPU's faults; without a file there are none.
func (g *board) load() ([]api.Fault, error) {
	path := filepath.Join(g.dir, api.FaultsName)
	data, err := readFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read %q: %w", path, err)
	}
	f, err := api.ParseFaultsOf(api.TargetGPU, data)
	if err != nil {
		return nil, fmt.Errorf("read %q: %w", path, err)
	}
	return f.Faults, nil
}

func readFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxFile+1))
}

// begin takes over the faults that are there when the library starts. Their
// events are history, and are not raised.
func (g *board) begin(faults []api.Fault) {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := time.Now()
	g.faults, g.on = faults, acting(faults, now)
	for _, f := range faults {
		g.count(f)
	}
	g.hang()
	g.action = g.recovery(now)
}

// become takes over the faults as they are now and raises the events of those
// that are new, or come again. With the same faults it announces what the time
// has changed.
func (g *board) become(faults []api.Fault) {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := time.Now()
	before := g.on
	g.faults, g.on = faults, acting(faults, now)
	g.hang()
	for _, f := range g.on {
		if slices.ContainsFunc(before, func(old api.Fault) bool { return sameFault(old, f) }) {
			continue
		}
		g.count(f)
		g.raise(f)
	}
	if action := g.recovery(now); action != g.action {
		g.action = action
		g.send(nvml.EventTypeGpuRecoveryAction, 0)
	}
}

// acting are those of faults that act now.
func acting(faults []api.Fault, now time.Time) []api.Fault {
	return slices.DeleteFunc(slices.Clone(faults), func(f api.Fault) bool { return !f.On(now) })
}

// hang has calls wait from now on, or lets those go that do. The caller holds
// mu.
func (g *board) hang() {
	_, hung := g.fault(api.FaultHang)
	switch {
	case hung && g.calm == nil:
		g.calm = make(chan struct{})
	case !hung:
		g.release()
	}
}

// release lets those go that wait for the GPU. The caller holds mu.
func (g *board) release() {
	if g.calm != nil {
		close(g.calm)
		g.calm = nil
	}
}

func sameFault(a, b api.Fault) bool { return a.ID == b.ID && a.Kind == b.Kind && a.Code == b.Code }

// count keeps the counters that a fault moves. The caller holds mu.
func (g *board) count(f api.Fault) {
	switch f.Kind {
	case api.FaultECCDouble:
		g.double++
	case api.FaultECCSingle:
		g.single++
	}
}

// raise tells the event sets of a fault. The caller holds mu.
func (g *board) raise(f api.Fault) {
	switch f.Kind {
	case api.FaultXID:
		g.send(nvml.EventTypeXidCriticalError, uint64(f.Code))
	case api.FaultECCDouble:
		g.send(nvml.EventTypeDoubleBitEccError, 0)
	case api.FaultECCSingle:
		g.send(nvml.EventTypeSingleBitEccError, 0)
	case api.FaultLost:
		// NVML then fails the wait, and does not say which GPU it was.
		for s := range g.sets {
			s.add(occurrence{ret: nvml.ERROR_GPU_IS_LOST})
		}
	}
}

// send tells the sets that want it of an event. The caller holds mu.
func (g *board) send(eventType, data uint64) {
	for s, mask := range g.sets {
		if mask&eventType != 0 {
			s.add(occurrence{ret: nvml.SUCCESS, data: nvml.EventData{
				Device: g, EventType: eventType, EventData: data,
				GpuInstanceId: wholeGPU, ComputeInstanceId: wholeGPU,
			}})
		}
	}
}

// expiry is when the next fault comes or goes by itself; zero if none does.
func (g *board) expiry(now time.Time) time.Time {
	g.mu.Lock()
	defer g.mu.Unlock()
	var next time.Time
	for _, f := range g.faults {
		if at := f.Next(now); !at.IsZero() && (next.IsZero() || at.Before(next)) {
			next = at
		}
	}
	return next
}

func (g *board) current() []api.Fault {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.faults
}
