package plugin_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dra-lab/dra-lab/driver/api"
	"github.com/dra-lab/dra-lab/driver/internal/figure"
)

const (
	// eventLimit is the longest from an event of the hardware to the report of
	// it on the kubelet's side of the socket.
	eventLimit = 50 * time.Millisecond
	// eventRounds is how many events are measured; the median counts.
	eventRounds = 11
)

// A GPU fails, and whoever watches knows of it right away: hardware, event set,
// rules, stream and socket together.
func TestEventReachesItsWatcherInTime(t *testing.T) {
	if raceDetector {
		t.Skip("everything else is tested at the same time, and this measures time")
	}
	m := newMachine(t)
	m.inventory(t, eventRounds)
	m.start(t, nil)
	next := stream(t, m.register(t, ""))
	next() // how all are
	var took []time.Duration
	for i := range eventRounds {
		device := api.DeviceName(i)
		began := time.Now()
		m.inject(t, device, api.Fault{ID: "f", Kind: api.FaultXID, Code: 79})
		for !strings.Contains(next()[device].GetMessage(), "XID 79") {
		}
		took = append(took, time.Since(began))
	}
	slices.Sort(took)
	t.Logf("event to report: %s to %s", took[0], took[len(took)-1])
	figure.AtMost(t, "event of a GPU to its report on the health stream, median", float64(took[len(took)/2].Microseconds())/1000,
		float64(eventLimit.Milliseconds()), "ms")
}
