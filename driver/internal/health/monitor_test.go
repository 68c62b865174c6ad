package health_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dra-lab/dra-lab/driver/api"
	"github.com/dra-lab/dra-lab/driver/internal/device"
	"github.com/dra-lab/dra-lab/driver/internal/health"
)

// hardware is told what to report and answer.
type hardware struct {
	events chan device.Event

	mu       sync.Mutex
	nextErr  error
	losses   int // how often Next tells of a lost GPU, without waiting
	readings []device.Reading
	hangs    map[int]chan struct{}
	reads    map[int]int
}

func newHardware(n int) *hardware {
	h := &hardware{events: make(chan device.Event, 16), hangs: map[int]chan struct{}{}, reads: map[int]int{}}
	for range n {
		h.readings = append(h.readings, good())
	}
	return h
}

func (h *hardware) Next(wait time.Duration) (device.Event, bool, error) {
	h.mu.Lock()
	err, lost := h.nextErr, h.losses > 0
	if lost {
		h.losses--
	}
	h.mu.Unlock()
	if lost {
		return device.Event{Index: -1, Kind: device.EventUnavailable}, true, nil
	}
	if err != nil {
		return device.Event{}, false, err
	}
	select {
	case e := <-h.events:
		return e, true, nil
	case <-time.After(wait):
		return device.Event{}, false, nil
	}
}

func (h *hardware) Read(index int) device.Reading {
	h.mu.Lock()
	hang, r := h.hangs[index], h.readings[index]
	h.reads[index]++
	h.mu.Unlock()
	if hang != nil {
		<-hang
	}
	return r
}

func (h *hardware) set(index int, r device.Reading) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.readings[index] = r
}

func (h *hardware) fail(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.nextErr = err
}

func gpus(n int) []device.GPU {
	var all []device.GPU
	for i := range n {
		all = append(all, device.GPU{Index: i, Name: api.DeviceName(i), UUID: "GPU-" + api.DeviceName(i)})
	}
	return all
}

// monitored runs a monitor of n GPUs in a bubble of its own time.
func monitored(t *testing.T, n int, cfg health.Config, test func(*hardware, *health.Monitor)) {
	synctest.Test(t, func(t *testing.T) {
		h := newHardware(n)
		cfg.GPUs, cfg.Hardware = gpus(n), h
		m, err := health.New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { m.Run(ctx) })
		<-m.First()
		synctest.Wait()
		test(h, m)
		stop()
		running.Wait()
	})
}

func healths(m *health.Monitor) []string {
	var all []string
	for _, s := range m.Snapshot() {
		all = append(all, s.Health)
	}
	return all
}

func check(t *testing.T, m *health.Monitor, want ...string) {
	t.Helper()
	synctest.Wait()
	if diff := cmp.Diff(want, healths(m)); diff != "" {
		t.Errorf("health (-want +got):\n%s", diff)
	}
}

const (
	well = api.HealthHealthy
	ill  = api.HealthUnhealthy
)

func TestEventIsToldAtOnce(t *testing.T) {
	monitored(t, 2, health.Config{}, func(h *hardware, m *health.Monitor) {
		changed, cancel, err := m.Subscribe()
		if err != nil {
			t.Fatal(err)
		}
		defer cancel()
		start := time.Now()
		h.events <- device.Event{Index: 1, Kind: device.EventXID, Code: 79}
		h.set(1, wants(device.RecoveryNodeReboot))
		<-changed
		if took := time.Since(start); took != 0 {
			t.Errorf("a watcher was told after %s", took)
		}
		check(t, m, well, ill)
	})
}

func TestRecoveryIsFoundByAsking(t *testing.T) {
	monitored(t, 1, health.Config{}, func(h *hardware, m *health.Monitor) {
		h.set(0, wants(device.RecoveryGPUReset))
		h.events <- device.Event{Index: 0, Kind: device.EventXID, Code: 79}
		check(t, m, ill)
		time.Sleep(20 * time.Second)
		check(t, m, ill)
		// The GPU says that its action has changed: no need to wait until it is
		// asked again.
		h.set(0, good())
		h.events <- device.Event{Index: 0, Kind: device.EventRecovery}
		check(t, m, well)
	})
}

func TestShortFaultIsOverWhenItHasSettled(t *testing.T) {
	monitored(t, 1, health.Config{}, func(h *hardware, m *health.Monitor) {
		h.events <- device.Event{Index: 0, Kind: device.EventXID, Code: 79}
		time.Sleep(1999 * time.Millisecond)
		check(t, m, ill)
		// Not at the next regular question, but as soon as it may be believed.
		time.Sleep(2 * time.Millisecond)
		check(t, m, well)
	})
}

func TestLostGPUIsFoundAmongOthers(t *testing.T) {
	monitored(t, 3, health.Config{}, func(h *hardware, m *health.Monitor) {
		h.set(1, device.Reading{Lost: true})
		h.events <- device.Event{Index: -1, Kind: device.EventUnavailable}
		check(t, m, well, ill, well)
	})
}

func TestGPUThatHangsIsNotVouchedForAndHoldsNobodyUp(t *testing.T) {
	monitored(t, 2, health.Config{}, func(h *hardware, m *health.Monitor) {
		hang := make(chan struct{})
		defer close(hang)
		h.mu.Lock()
		h.hangs[0] = hang
		h.mu.Unlock()
		time.Sleep(time.Minute)
		h.set(1, device.Reading{Lost: true})
		time.Sleep(6 * time.Second)
		all, now := m.Snapshot(), time.Now()
		if m.Fresh(all[0], now) {
			t.Error("a GPU that has not answered for a minute is vouched for")
		}
		if all[1].Health != ill || !m.Fresh(all[1], now) {
			t.Errorf("the other is %s, fresh %v", all[1].Health, m.Fresh(all[1], now))
		}
		h.mu.Lock()
		defer h.mu.Unlock()
		if h.reads[0] > 2 {
			t.Errorf("a GPU that hangs was asked %d times", h.reads[0])
		}
	})
}

func TestMonitorThatHearsNothingVouchesForNothing(t *testing.T) {
	var mu sync.Mutex
	var errs []error
	cfg := health.Config{OnError: func(err error) {
		mu.Lock()
		defer mu.Unlock()
		errs = append(errs, err)
	}}
	monitored(t, 1, cfg, func(h *hardware, m *health.Monitor) {
		h.fail(errors.New("uninitialized"))
		time.Sleep(30 * time.Second)
		if s := m.Snapshot()[0]; m.Fresh(s, time.Now()) {
			t.Error("health is vouched for although events are not heard")
		}
		mu.Lock()
		if n := len(errs); n < 2 || n > 15 {
			t.Errorf("%d errors in 30 s: no back-off", n)
		}
		mu.Unlock()
		// It goes on when the trouble is over.
		h.fail(nil)
		time.Sleep(10 * time.Second)
		if s := m.Snapshot()[0]; !m.Fresh(s, time.Now()) {
			t.Error("health is not vouched for although events are heard again")
		}
	})
}

func TestGPUsWithoutEventsAreAskedOnly(t *testing.T) {
	monitored(t, 1, health.Config{}, func(h *hardware, m *health.Monitor) {
		h.fail(health.ErrNoEvents)
		time.Sleep(time.Minute)
		if s := m.Snapshot()[0]; !m.Fresh(s, time.Now()) || s.Health != well {
			t.Errorf("got %s, fresh %v", s.Health, m.Fresh(s, time.Now()))
		}
	})
}

func TestSlowWatcherMissesStepsButNotTheLast(t *testing.T) {
	monitored(t, 1, health.Config{}, func(h *hardware, m *health.Monitor) {
		changed, cancel, err := m.Subscribe()
		if err != nil {
			t.Fatal(err)
		}
		defer cancel()
		for range 20 {
			h.set(0, device.Reading{Lost: true})
			m.Ask(0)
			synctest.Wait()
			h.set(0, good())
			m.Ask(0)
			synctest.Wait()
		}
		h.set(0, device.Reading{Lost: true})
		m.Ask(0)
		synctest.Wait()
		<-changed
		check(t, m, ill)
		select {
		case <-changed:
			t.Error("changes were queued")
		default:
		}
	})
}

func TestWatchersAreBounded(t *testing.T) {
	monitored(t, 1, health.Config{}, func(_ *hardware, m *health.Monitor) {
		var cancels []func()
		for {
			_, cancel, err := m.Subscribe()
			if err != nil {
				break
			}
			if cancels = append(cancels, cancel); len(cancels) > 1000 {
				t.Fatal("no bound")
			}
		}
		cancels[0]()
		if _, _, err := m.Subscribe(); err != nil {
			t.Errorf("a place that became free cannot be taken: %v", err)
		}
	})
}

func TestLatchedProblemsAreSaved(t *testing.T) {
	var mu sync.Mutex
	var saved []map[string][]health.Problem
	cfg := health.Config{Save: func(p map[string][]health.Problem) {
		mu.Lock()
		defer mu.Unlock()
		saved = append(saved, p)
	}}
	monitored(t, 2, cfg, func(h *hardware, m *health.Monitor) {
		h.set(1, wants(device.RecoveryGPUReset))
		h.events <- device.Event{Index: 1, Kind: device.EventXID, Code: 79}
		check(t, m, well, ill)
		h.set(1, good())
		time.Sleep(6 * time.Second)
		check(t, m, well, well)
	})
	var counts []int
	for _, s := range saved {
		counts = append(counts, len(s["GPU-gpu-1"]))
	}
	if !slices.Equal(counts, []int{1, 0}) {
		t.Errorf("saved %v problems of gpu-1, want 1 and then 0", counts)
	}

	// And taken over by the next driver.
	monitored(t, 2, health.Config{Latched: saved[0]}, func(h *hardware, m *health.Monitor) {
		h.set(1, wants(device.RecoveryGPUReset))
		if s := m.Snapshot()[1]; s.Health != ill || s.Problems[0].Value != "79" {
			t.Errorf("got %+v", s)
		}
	})
}

func TestStateOfNoGPUs(t *testing.T) {
	monitored(t, 0, health.Config{}, func(_ *hardware, m *health.Monitor) { check(t, m) })

}

func TestEventOfTheLastMomentIsSaved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHardware(1)
		saved := make(chan map[string][]health.Problem, 8)
		m, err := health.New(health.Config{
			GPUs: gpus(1), Hardware: h,
			Save: func(p map[string][]health.Problem) { saved <- p },
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { m.Run(ctx) })
		<-m.First()
		// When an event comes after the stop, while the last wait for one is
		// not over,
		synctest.Wait() // that wait has begun
		stop()
		synctest.Wait()
		h.events <- device.Event{Index: 0, Kind: device.EventXID, Code: 79}
		running.Wait()
		// then the next driver is going to know of it.
		select {
		case p := <-saved:
			if len(p["GPU-gpu-0"]) != 1 {
				t.Errorf("saved %v", p)
			}
		default:
			t.Error("nothing was saved")
		}
	})
}

func TestLossThatIsRepeatedWithoutEndKeepsNobodyBusy(t *testing.T) {
	var mu sync.Mutex
	heard := 0
	cfg := health.Config{OnEvent: func(device.Event, bool) {
		mu.Lock()
		defer mu.Unlock()
		heard++
	}}
	monitored(t, 1, cfg, func(h *hardware, m *health.Monitor) {
		h.mu.Lock()
		h.losses = 1000
		h.mu.Unlock()
		h.set(0, device.Reading{Lost: true})
		time.Sleep(30 * time.Second)
		mu.Lock()
		defer mu.Unlock()
		if heard < 2 || heard > 15 {
			t.Errorf("heard %d times in 30 s", heard)
		}
		if s := m.Snapshot()[0]; s.Health != ill || !m.Fresh(s, time.Now()) {
			t.Errorf("got %s, fresh %v", s.Health, m.Fresh(s, time.Now()))
		}
		h.mu.Lock()
		defer h.mu.Unlock()
		h.losses = 0
	})
}
