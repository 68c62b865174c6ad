package plugin_test

import (
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/dra-lab/dra-lab/driver/api"
	"github.com/dra-lab/dra-lab/driver/internal/gpu"
	"github.com/dra-lab/dra-lab/driver/internal/gpu/simulated"
	"github.com/dra-lab/dra-lab/driver/internal/plugin"
)

// library has one GPU that may not be opened.
type library struct {
	*simulated.Simulator
	closed int
	shut   atomic.Bool
}

func (l *library) DeviceGetHandleByIndex(index int) (nvml.Device, nvml.Return) {
	if index == l.closed && l.shut.Load() {
		return nil, nvml.ERROR_INSUFFICIENT_POWER
	}
	return l.Simulator.DeviceGetHandleByIndex(index)
}

// published is a device as the scheduler sees it.
func (m *machine) published(t *testing.T, name string) resourceapi.Device {
	t.Helper()
	list, err := m.client.ResourceV1().ResourceSlices().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range list.Items {
		if i := slices.IndexFunc(s.Spec.Devices, func(d resourceapi.Device) bool { return d.Name == name }); i >= 0 {
			return s.Spec.Devices[i]
		}
	}
	return resourceapi.Device{}
}

func TestGPUThatCannotBeOpened(t *testing.T) {
	m := newMachine(t)
	m.allocate(t, claim("a", "gpu-0"), claim("b", "gpu-1"))
	_, sim, err := m.hardware(nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { sim.Shutdown() })
	lib := &library{Simulator: sim, closed: 1}
	lib.shut.Store(true)
	gpus, err := gpu.Discover(lib, sim.Sysfs())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { gpus.Close() })
	d := m.start(t, func(c *plugin.Config) { c.Hardware, c.ProbeEvery = gpus, 20*time.Millisecond })
	k := m.register(t, "")

	// It is published as what is known, with the reason why nobody gets it,
	eventually(t, "published", func() bool { return d.reports.has(api.StepPublished, "4 devices") })
	same(t, "taints", []string{api.TaintUnreadable + "=" + api.UnreadableInventory + ":NoSchedule"}, m.taints(t, "gpu-1"))
	if dev := m.published(t, "gpu-1"); len(dev.Capacity) > 0 || dev.Attributes[api.AttributeUUID].StringValue != nil {
		t.Errorf("published as %v", dev)
	}
	status, err := d.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if dev := status.Devices[1]; dev.Health != api.HealthUnknown || !strings.Contains(dev.Message, nvml.ERROR_INSUFFICIENT_POWER.Error()) {
		t.Errorf("status is %+v", dev)
	}
	// refused by name, and in nobody's way,
	_, failed := k.prepare(t, "a", "b")
	if len(failed) != 1 || !strings.Contains(failed["b"], `device "gpu-1": it could not be read: open: `) {
		t.Errorf("prepare: %v", failed)
	}
	same(t, "checkpoint", []string{"a"}, d.claims(t))
	// until it can be opened.
	lib.shut.Store(false)
	eventually(t, "published whole", func() bool {
		return len(m.taints(t, "gpu-1")) == 0 && len(m.published(t, "gpu-1").Capacity) == 1
	})
	if _, failed := k.prepare(t, "b"); len(failed) > 0 {
		t.Error(failed)
	}
	k.unprepare(t, "a", "b")
	// Its events are heard, too.
	m.inject(t, "gpu-1", api.Fault{ID: "f", Kind: api.FaultXID, Code: 79})
	eventually(t, "event", func() bool { return d.reports.has(api.StepEvent, "gpu-1 XID 79, fatal") })
}

func TestGPUThatWasLostAtTheStartIsWholeAfterItsReturn(t *testing.T) {
	m := newMachine(t)
	first := m.start(t, nil)
	m.inject(t, "gpu-0", api.Fault{ID: "f", Kind: api.FaultLost})
	first.stop()
	m.start(t, func(c *plugin.Config) { c.ProbeEvery = 20 * time.Millisecond })
	lost := func() bool { return slices.Contains(m.taints(t, "gpu-0"), api.TaintLost+"=lost:NoExecute") }
	eventually(t, "tainted", func() bool { return lost() && len(m.published(t, "gpu-0").Capacity) == 0 })
	m.inject(t, "gpu-0")
	eventually(t, "whole", func() bool { return len(m.taints(t, "gpu-0")) == 0 && len(m.published(t, "gpu-0").Capacity) == 1 })
}
