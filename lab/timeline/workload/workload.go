// Package workload is how a workload tells the timeline what it does: one JSON
// line per event on its standard output. The lab's trainer writes such lines;
// any program may.
//
// It is a leaf, the standard library only, so that a workload that uses it
// stays small.
package workload

import (
	"bytes"
	"encoding/json"
	"fmt"
	"time"
)

// Events that the trainer writes, in the order in which they come.
const (
	EventStarted     = "started"     // the devices of the claim are there; Devices has them
	EventWaiting     = "waiting"     // the rank waits for its peers; Detail says why
	EventJoined      = "joined"      // all ranks are there; Step is where they begin, 0 unless they resume
	EventResumed     = "resumed"     // as EventJoined, with the network of the checkpoint of Step
	EventStep        = "step"        // every so many steps; Step and Loss
	EventCheckpoint  = "checkpoint"  // a checkpoint of Step is on the volume
	EventInterrupted = "interrupted" // the group broke; Detail says why, Step is the last whole step
	EventLeaving     = "leaving"     // asked to end: Step is done and its checkpoint written
	EventDone        = "done"        // Step, Loss, FirstLoss, Accuracy, Weights
	EventFailed      = "failed"      // Detail says why
)

// maxLineBytes bounds a line.
const maxLineBytes = 16 << 10

// linePrefix begins every line, so that other output is told apart without
// decoding it.
const linePrefix = `{"workload":{`

// Line is one event of a workload. Fields that do not apply are zero and left
// out.
type Line struct {
	Time      time.Time `json:"time"`
	Event     string    `json:"event"`
	Rank      int       `json:"rank"`
	World     int       `json:"world,omitempty"`
	Step      int64     `json:"step,omitempty"`
	Loss      float64   `json:"loss,omitempty"`
	FirstLoss float64   `json:"firstLoss,omitempty"`
	Accuracy  float64   `json:"accuracy,omitempty"`
	Weights   string    `json:"weights,omitempty"` // SHA-256 of the parameters
	Devices   string    `json:"devices,omitempty"` // as in api.FormatDevices
	Detail    string    `json:"detail,omitempty"`
}

// Encode is l as one line with its newline, as Parse reads it.
func (l Line) Encode() ([]byte, error) {
	data, err := json.Marshal(struct {
		Workload Line `json:"workload"`
	}{l})
	if err != nil {
		return nil, fmt.Errorf("encode workload event %q: %w", l.Event, err)
	}
	if len(data) >= maxLineBytes {
		return nil, fmt.Errorf("encode workload event %q: %d bytes, at most %d allowed", l.Event, len(data), maxLineBytes)
	}
	return append(data, '\n'), nil
}

// Parse reads one line of a workload's output and says whether it is an event.
// Fields that it does not know are ignored.
func Parse(line []byte) (Line, bool) {
	line = bytes.TrimSpace(line)
	if len(line) > maxLineBytes || !bytes.HasPrefix(line, []byte(linePrefix)) {
		return Line{}, false
	}
	var outer struct {
		Workload Line `json:"workload"`
	}
	if err := json.Unmarshal(line, &outer); err != nil {
		return Line{}, false
	}
	if outer.Workload.Event == "" || outer.Workload.Time.IsZero() {
		return Line{}, false
	}
	return outer.Workload, true
}
