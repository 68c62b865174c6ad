package api

import (
	"bytes"
	"encoding/json"
	"fmt"
	"time"
)

// Steps that the driver reports, in the order in which a claim meets them.
const (
	StepStarted         = "started"         // the process runs; Detail has version and boot id
	StepPublished       = "published"       // ResourceSlices handed to the API server; Detail says how many devices
	StepRegistered      = "registered"      // the kubelet accepted the registration
	StepReady           = "ready"           // an empty prepare and a health report went through the socket
	StepPrepareStarted  = "prepare-started" // NodePrepareResources reached the claim
	StepPrepareStep     = "prepare-step"    // a part of prepare is done; Detail names it, Duration is that part's
	StepPrepared        = "prepared"        // the claim is prepared; Duration is the whole
	StepPrepareFailed   = "prepare-failed"  // Err says why; the kubelet tries again
	StepUnprepareStart  = "unprepare-started"
	StepUnprepareStep   = "unprepare-step"
	StepUnprepared      = "unprepared"
	StepUnprepareFailed = "unprepare-failed"
	StepEvent           = "gpu-event"    // the GPU said something; Detail has it
	StepHealth          = "health"       // the health of Device changed; Detail is "Healthy", "Unhealthy: ..." or "Unknown: ..."
	StepHealthWatch     = "health-watch" // somebody opened the health stream
	StepTainted         = "tainted"      // Detail is key=value:effect
	StepUntainted       = "untainted"    // Detail is key=value:effect
	StepLeftover        = "leftover"     // memory or a process is still there after unprepare
	StepCollected       = "collected"    // a claim that the API server no longer has was unprepared; Detail says why
	StepOperation       = "operation"    // what the controller ordered for Device was done, or Err says why not; Detail names it
	StepSwept           = "swept"        // something that belongs to no claim was removed at start
	StepFault           = "fault"        // a fault that a lab gave the driver acts; Detail is its kind
	StepError           = "error"        // a background error; Err has it
	StepStopped         = "stopped"      // the driver ends; Detail says why
)

// maxReportBytes bounds a line with a report.
const maxReportBytes = 16 << 10

// reportPrefix begins every line with a report, so that other lines are told
// apart without decoding them.
const reportPrefix = `{"report":{`

// Report is one step of the driver, as the timeline shows it. The driver
// writes each as one line on its standard output. Fields that do not apply are
// empty.
type Report struct {
	Time           time.Time     `json:"time"`
	Node           string        `json:"node,omitempty"`
	Step           string        `json:"step"`
	ClaimUID       string        `json:"claimUID,omitempty"`
	ClaimNamespace string        `json:"claimNamespace,omitempty"`
	ClaimName      string        `json:"claimName,omitempty"`
	Device         string        `json:"device,omitempty"` // several are joined by commas
	Detail         string        `json:"detail,omitempty"`
	Duration       time.Duration `json:"durationNanoseconds,omitempty"`
	Err            string        `json:"error,omitempty"`
}

// Line is r as one line with its newline, as ParseReport reads it.
func (r Report) Line() ([]byte, error) {
	data, err := json.Marshal(struct {
		Report Report `json:"report"`
	}{r})
	if err != nil {
		return nil, fmt.Errorf("encode report %q: %w", r.Step, err)
	}
	if len(data) >= maxReportBytes {
		return nil, fmt.Errorf("encode report %q: %d bytes, at most %d allowed", r.Step, len(data), maxReportBytes)
	}
	return append(data, '\n'), nil
}

// ParseReport reads one line of the driver's output and says whether it is a
// report. Fields that a newer driver adds are ignored.
func ParseReport(line []byte) (Report, bool) {
	line = bytes.TrimSpace(line)
	if len(line) > maxReportBytes || !bytes.HasPrefix(line, []byte(reportPrefix)) {
		return Report{}, false
	}
	var outer struct {
		Report Report `json:"report"`
	}
	if err := json.Unmarshal(line, &outer); err != nil {
		return Report{}, false
	}
	if outer.Report.Step == "" || outer.Report.Time.IsZero() {
		return Report{}, false
	}
	return outer.Report, true
}
