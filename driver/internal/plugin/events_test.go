package plugin_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/events"

	"github.com/dra-lab/dra-lab/driver/api"
	"github.com/dra-lab/dra-lab/driver/internal/plugin"
)

// recorder keeps what events are about; FakeRecorder keeps their text only.
type recorder struct {
	*events.FakeRecorder
	about chan runtime.Object
}

func newRecorder() recorder {
	return recorder{FakeRecorder: events.NewFakeRecorder(32), about: make(chan runtime.Object, 32)}
}

func (r recorder) Eventf(regarding, related runtime.Object, kind, reason, action, note string, args ...any) {
	r.about <- regarding
	r.FakeRecorder.Eventf(regarding, related, kind, reason, action, note, args...)
}

// next waits for an event.
func (r recorder) next(t *testing.T) string {
	t.Helper()
	select {
	case e := <-r.Events:
		return e
	case <-time.After(20 * time.Second):
		t.Fatal("no event")
		return ""
	}
}

func TestEventsTellOfHealth(t *testing.T) {
	m := newMachine(t)
	r := newRecorder()
	d := m.start(t, func(c *plugin.Config) { c.Events, c.ProbeEvery = r, 20*time.Millisecond })
	eventually(t, "published", func() bool { return d.reports.has(api.StepPublished, "4 devices") })
	// A start with GPUs that are well is no news. Then one event for each change,
	for _, step := range []struct {
		faults []api.Fault
		want   string
	}{
		{[]api.Fault{{ID: "a", Kind: api.FaultXID, Code: 79}}, "Warning GPUUnhealthy gpu-1: XID 79: GPU has fallen off the bus"},
		{nil, "Normal GPUHealthy gpu-1 is healthy again"},
		// an application's error is none,
		{[]api.Fault{{ID: "b", Kind: api.FaultXID, Code: 31}, {ID: "c", Kind: api.FaultLost}}, "Warning GPUUnhealthy gpu-1: GPU is lost"},
		{nil, "Normal GPUHealthy gpu-1 is healthy again"},
		// and silence is not illness.
		{[]api.Fault{{ID: "d", Kind: api.FaultUnreadable}}, "Warning GPUHealthUnknown gpu-1: the GPU answers no question"},
	} {
		m.inject(t, "gpu-1", step.faults...)
		if got := r.next(t); !strings.HasPrefix(got, step.want) {
			t.Fatalf("event %q, want %q", got, step.want)
		}
		// They are about the node, in the way that `kubectl describe node` finds.
		node, ok := (<-r.about).(*corev1.Node)
		if !ok || node.Name != nodeName || string(node.UID) != nodeName || node.Kind != "Node" {
			t.Errorf("the event is about %+v", node)
		}
	}
	d.stop()
	if n := len(r.Events); n > 0 {
		t.Errorf("%d events more, the first is %s", n, <-r.Events)
	}
}

func TestFaultFromBeforeTheStartIsToldToo(t *testing.T) {
	m := newMachine(t)
	m.start(t, nil).stop()
	m.inject(t, "gpu-2", api.Fault{ID: "a", Kind: api.FaultECCDouble})
	r := newRecorder()
	m.start(t, func(c *plugin.Config) { c.Events = r })
	if got, want := r.next(t), "Warning GPUUnhealthy gpu-2: "; !strings.HasPrefix(got, want) {
		t.Errorf("event %q, want %q", got, want)
	}
}

// The real recorder fills in what the API server wants to see.
func TestEventsReachTheAPIServer(t *testing.T) {
	m := newMachine(t)
	broadcaster := events.NewBroadcaster(&events.EventSinkImpl{Interface: m.client.EventsV1()})
	t.Cleanup(broadcaster.Shutdown)
	if err := broadcaster.StartRecordingToSinkWithContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	m.start(t, func(c *plugin.Config) { c.Events = broadcaster.NewRecorder(scheme.Scheme, api.DriverName) })
	m.register(t, "")
	m.inject(t, "gpu-0", api.Fault{ID: "a", Kind: api.FaultXID, Code: 48})
	eventually(t, "written", func() bool {
		list, err := m.client.EventsV1().Events("").List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return slices.ContainsFunc(list.Items, func(e eventsv1.Event) bool {
			return e.Reason == "GPUUnhealthy" && e.Action == "CheckHealth" && e.Regarding.Kind == "Node" && e.Regarding.Name == nodeName &&
				e.ReportingController == api.DriverName && strings.Contains(e.Note, "XID 48")
		})
	})
}
