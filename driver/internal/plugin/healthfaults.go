package plugin

import (
	"context"
	"slices"
	"time"

	"k8s.io/dynamic-resource-allocation/kubeletplugin"

	"github.com/dra-lab/dra-lab/driver/api"
	"github.com/dra-lab/dra-lab/driver/internal/fault"
)

// maxLate bounds the reports of one stream that wait because they are to be
// late; then the oldest go.
const maxLate = 1024

// healthFaults are what a lab does to one health stream. Without faults reports
// pass as they are.
type healthFaults struct {
	faults *fault.Faults
	// look has a value when it is time to look whether a fault has come, gone or
	// let a report through; nil without faults.
	look    <-chan time.Time
	stop    func()
	late    []lateReport
	stalled bool
}

type lateReport struct {
	due time.Time
	kubeletplugin.DeviceHealthReport
}

// newHealthFaults is for one stream. The caller has to call stop.
func newHealthFaults(f *fault.Faults) *healthFaults {
	h := &healthFaults{faults: f, stop: func() {}}
	if f != nil {
		ticker := time.NewTicker(fault.LookEvery)
		h.look, h.stop = ticker.C, ticker.Stop
	}
	return h
}

// pass takes a report, which may be empty, and gives those that are to be sent
// now, in their order. An error ends the stream.
func (h *healthFaults) pass(ctx context.Context, report kubeletplugin.DeviceHealthReport) ([]kubeletplugin.DeviceHealthReport, error) {
	if err := h.faults.Pass(ctx, fault.HealthStream); err != nil {
		return nil, err
	}
	if _, h.stalled = h.faults.Find(api.FaultHealthStalls); h.stalled {
		return nil, nil
	}
	now := time.Now()
	late, isLate := h.faults.Find(api.FaultHealthLate)
	if len(report.Devices) > 0 {
		jump, _ := h.faults.Find(api.FaultClockJump)
		for i := range report.Devices {
			report.Devices[i].LastUpdated = report.Devices[i].LastUpdated.Add(time.Duration(jump.Code) * time.Second)
		}
		h.late = append(h.late, lateReport{now.Add(time.Duration(late.Code) * time.Second), report})
		h.late = h.late[max(0, len(h.late)-maxLate):]
	}
	// When the fault is over, all that still wait go at once.
	waiting := slices.IndexFunc(h.late, func(r lateReport) bool { return isLate && r.due.After(now) })
	if waiting < 0 {
		waiting = len(h.late)
	}
	var due []kubeletplugin.DeviceHealthReport
	for _, r := range h.late[:waiting] {
		due = append(due, r.DeviceHealthReport)
	}
	h.late = slices.Delete(h.late, 0, waiting)
	return due, nil
}

// recovered says whether the stream was stalled and is not any more.
func (h *healthFaults) recovered() bool {
	if !h.stalled {
		return false
	}
	_, stalled := h.faults.Find(api.FaultHealthStalls)
	return !stalled
}
