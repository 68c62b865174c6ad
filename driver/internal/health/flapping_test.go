package health_test

import (
	"testing"
	"time"

	"github.com/dra-lab/dra-lab/driver/api"
	"github.com/dra-lab/dra-lab/driver/internal/device"
	"github.com/dra-lab/dra-lab/driver/internal/health"
)

const telemetryTaint = api.TaintTelemetry

func TestTelemetryThatIsOutOfBounds(t *testing.T) {
	for _, tc := range []struct {
		name, message, taint string
		bad                  func(*device.Reading)
		readings             int // until it is believed
	}{
		{
			name: "power", message: "the power supply slows the GPU down", taint: "brake", readings: 2,
			bad: func(r *device.Reading) { r.PowerBraked = device.Known(true) },
		},
		{
			name: "PCIe generation", message: "generation 1 of 5 under load", taint: "gen1", readings: 2,
			bad: func(r *device.Reading) {
				r.PCIeGeneration, r.PCIeGenerationMax = device.Known(1), device.Known(5)
			},
		},
		{
			name: "fabric", message: "not in the NVLink fabric: Unknown", taint: "fabric", readings: 1,
			bad: func(r *device.Reading) { r.FabricError = device.Known("Unknown") },
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h := begin(t).reads(good()).is(well, "")
			for range tc.readings - 1 {
				h.after(5*time.Second).reads(with(tc.bad)).is(well, "")
			}
			h.after(5*time.Second).reads(with(tc.bad)).is(ill, tc.message).
				tainted(telemetryTaint+"="+tc.taint+":NoSchedule").
				// The first good answer is believed.
				after(5*time.Second).reads(good()).is(well, "").tainted()
		})
	}
}

func TestGenerationOfAnIdleLinkIsNoFault(t *testing.T) {
	slow := with(func(r *device.Reading) { r.PCIeGeneration, r.PCIeGenerationMax = device.Known(1), device.Known(5) })
	begin(t).reads(slow).after(5*time.Second).reads(slow).is(ill, "generation").
		// Idle: nobody can tell any more.
		after(5*time.Second).reads(good()).is(well, "")
}

func TestProblemThatComesAndGoesIsHeld(t *testing.T) {
	hot := with(func(r *device.Reading) { r.Temperature = device.Known(101) })
	h := begin(t).reads(good())
	// One that comes once is over when it is over.
	h.after(5*time.Second).reads(hot).is(ill, "temperature").after(5*time.Second).reads(good()).is(well, "")
	// The second time it is not believed that it is over,
	h.after(5*time.Second).reads(hot).is(ill, "temperature")
	h.after(5*time.Second).reads(good()).is(ill, "it comes and goes").tainted(telemetryTaint + "=hot:NoSchedule")
	// nor the third time,
	h.after(5*time.Second).reads(hot).is(ill, "temperature")
	h.after(5*time.Second).reads(good()).is(ill, "it comes and goes")
	h.after(14*time.Second).reads(good()).is(ill, "it comes and goes")
	// until it has stayed away long enough.
	h.after(time.Second).reads(good()).is(well, "").tainted()
	// What comes again much later is no flapping.
	h.after(time.Minute).reads(hot).is(ill, "temperature").after(5*time.Second).reads(good()).is(well, "")
}

// What ends because somebody has repaired the GPU has not gone by itself.
func TestWhatIsRepairedDoesNotComeAndGo(t *testing.T) {
	hot := with(func(r *device.Reading) { r.Temperature = device.Known(101) })
	h := begin(t).reads(good())
	for range 3 {
		h.after(5*time.Second).reads(hot).is(ill, "temperature")
		h.machine.Repaired(h.now)
		h.after(5*time.Second).reads(good()).is(well, "").tainted()
	}
	// What was held before the repair is not held any more.
	for range 2 {
		h.after(5*time.Second).reads(hot).is(ill, "temperature").after(5 * time.Second).reads(good())
	}
	h.is(ill, "it comes and goes").machine.Repaired(h.now)
	h.is(well, "")
}

func TestXIDsThatComeAndGoEvictOnce(t *testing.T) {
	h := begin(t).reads(good())
	changes, last := 0, 0
	for range 10 { // comes and goes every 4 s
		h.after(2*time.Second).event(device.EventXID, 79)
		for range 2 {
			h.after(2 * time.Second).reads(good())
			if taints := len((health.Rules{}).Taints(h.machine.Status())); taints != last {
				last = taints
				changes++
			}
		}
	}
	// Away after the first time, there from the second on.
	first := h.machine.Status().Problems[0].Since
	if h.after(2*time.Second).event(device.EventXID, 79); !h.machine.Status().Problems[0].Since.Equal(first) {
		t.Error("a taint that stays is another each time")
	}
	if last != 1 || changes > 3 {
		t.Errorf("%d taints in the end, after %d changes", last, changes)
	}
	h.after(2*time.Second).reads(good()).after(20*time.Second).reads(good()).is(well, "")
}

func TestGPUThatHangsBecomesUnknownAndTheOthersAreAsked(t *testing.T) {
	const many = 12 // more than are asked at a time
	monitored(t, many, health.Config{}, func(h *hardware, m *health.Monitor) {
		changed, cancel, err := m.Subscribe()
		if err != nil {
			t.Fatal(err)
		}
		defer cancel()
		hang := make(chan struct{})
		h.mu.Lock()
		for i := range many - 1 {
			h.hangs[i] = hang
		}
		h.mu.Unlock()
		time.Sleep(14 * time.Second)
		want := make([]string, many)
		for i := range want {
			want[i] = well
		}
		check(t, m, want...)
		time.Sleep(16 * time.Second)
		for i := range want[:many-1] {
			want[i] = api.HealthUnknown
		}
		check(t, m, want...)
		<-changed
		if s := m.Snapshot()[many-1]; !m.Fresh(s, time.Now()) {
			t.Error("the GPU that answers is not asked any more")
		}
		// It is known again as soon as it answers.
		h.mu.Lock()
		clear(h.hangs)
		h.mu.Unlock()
		close(hang)
		for i := range want {
			want[i] = well
		}
		check(t, m, want...)
	})
}
