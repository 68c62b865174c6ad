package plugin_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	healthv1 "k8s.io/kubelet/pkg/apis/dra-health/v1"

	"github.com/dra-lab/dra-lab/driver/api"
	"github.com/dra-lab/dra-lab/driver/internal/device"
	"github.com/dra-lab/dra-lab/driver/internal/health"
	"github.com/dra-lab/dra-lab/driver/internal/plugin"
)

// wedging is hardware of which one GPU can stop to answer, without an error.
type wedging struct {
	plugin.Hardware
	index int
	hang  chan struct{} // closed at the end
	wedge atomic.Bool
}

func (w *wedging) Read(index int) device.Reading {
	if index == w.index && w.wedge.Load() {
		<-w.hang
	}
	return w.Hardware.Read(index)
}

// A kubelet calls a device unknown that is not mentioned for its time, 30 s, or
// that is said to be.
func TestDeviceThatHangsIsNoLongerCalledHealthy(t *testing.T) {
	m := newMachine(t)
	w := &wedging{index: 1, hang: make(chan struct{})}
	t.Cleanup(func() { close(w.hang) })
	m.start(t, func(c *plugin.Config) {
		w.Hardware = c.Hardware
		c.Hardware, c.ProbeEvery, c.ResendEvery = w, 50*time.Millisecond, 20*time.Millisecond
	})
	next := stream(t, m.register(t, ""))
	// is waits for a report on these two; on a busy machine the monitor itself may
	// be late.
	is := func(others, wedged bool) func() bool {
		return func() bool {
			got := next()
			return (got["gpu-1"].GetHealth() == healthv1.HealthStatus_HEALTHY) == wedged && (got["gpu-0"].GetHealth() == healthv1.HealthStatus_HEALTHY) == others
		}
	}
	eventually(t, "both are healthy", is(true, true))
	w.wedge.Store(true)
	eventually(t, "only the other is healthy", is(true, false))
}

// metrics are those of a driver, as text.
func (r *running) metrics(t *testing.T) string {
	t.Helper()
	w := httptest.NewRecorder()
	r.Handler().ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, api.PathMetrics, nil))
	return w.Body.String()
}

// A watcher that reads nothing, and one that is gone, cost the driver no more
// than their place.
func TestWatchersThatAreSlowOrDeadHoldNobodyUp(t *testing.T) {
	m := newMachine(t)
	d := m.start(t, func(c *plugin.Config) { c.ResendEvery = time.Millisecond })
	k := m.register(t, "")
	watchers := func(n string) func() bool {
		return func() bool { return strings.Contains(d.metrics(t), "dra_lab_health_watchers "+n+"\n") }
	}
	eventually(t, "the driver's own is over", watchers("0"))
	slow, err := k.WatchHealth(t.Context()) // never reads
	if err != nil {
		t.Fatal(err)
	}
	defer slow.Close()
	dead, err := k.WatchHealth(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "both watch", watchers("2"))
	dead.Close()
	eventually(t, "the dead one is noticed", watchers("1"))
	// What happens is told to others as ever.
	m.inject(t, "gpu-0", api.Fault{ID: "f", Kind: api.FaultXID, Code: 79})
	next := stream(t, k)
	eventually(t, "told", func() bool { return next()["gpu-0"].GetHealth() == healthv1.HealthStatus_UNHEALTHY })
	eventually(t, "tainted", func() bool { return len(m.taints(t, "gpu-0")) == 1 })
}

func TestRulesOfTheUserHold(t *testing.T) {
	m := newMachine(t)
	rules := health.Rules{
		IgnoredXIDs: []uint64{79},
		Effects:     map[health.Condition]health.Effect{health.XID: health.NoSchedule, health.Lost: health.NoTaint},
	}
	d := m.start(t, func(c *plugin.Config) { c.Rules = rules })
	m.register(t, "")
	m.inject(t, "gpu-0", api.Fault{ID: "a", Kind: api.FaultXID, Code: 79})
	eventually(t, "heard", func() bool { return d.reports.has(api.StepEvent, "gpu-0 XID 79") })
	m.inject(t, "gpu-1", api.Fault{ID: "b", Kind: api.FaultXID, Code: 13})
	m.inject(t, "gpu-2", api.Fault{ID: "c", Kind: api.FaultLost})
	eventually(t, "tainted", func() bool { return len(m.taints(t, "gpu-1")) == 1 })
	eventually(t, "lost", func() bool { return d.reports.has(api.StepHealth, "gpu-2 Unhealthy") })
	same(t, "taints after another XID", []string{"gpu.lab.example/xid=13:NoSchedule"}, m.taints(t, "gpu-1"))
	if d.reports.has(api.StepTainted, "gpu-2") || d.reports.has(api.StepEvent, "gpu-0 XID 79, fatal") {
		t.Errorf("reports: %+v", d.reports.all())
	}
}
