package timeline

import (
	"fmt"

	"github.com/dra-lab/dra-lab/lab/timeline/workload"
)

// shownHash is how much of a hash is shown to people.
const shownHash = 12

// workloadLine says what a line of a workload means.
func workloadLine(l workload.Line, node, pod string) Event {
	return Event{
		Time: l.Time, Source: SourceWorkload, Component: Container, Kind: Workload(l.Event), Node: node, Pod: pod,
		Detail: workloadDetail(l), Workload: &l,
		Text: fmt.Sprintf("Pod %s: rank %d %s", pod, l.Rank, workloadWords(l)),
	}
}

// workloadDetail is the devices with which it started, or why it does something.
func workloadDetail(l workload.Line) string {
	if l.Devices != "" {
		return l.Devices
	}
	return l.Detail
}

func workloadWords(l workload.Line) string {
	switch l.Event {
	case workload.EventStarted:
		return "started with " + l.Devices
	case workload.EventWaiting:
		return "waits " + l.Detail
	case workload.EventJoined:
		return "begins: " + l.Detail
	case workload.EventResumed:
		return fmt.Sprintf("resumes at step %d %s", l.Step, l.Detail)
	case workload.EventStep:
		return fmt.Sprintf("at step %d, loss %.4f", l.Step, l.Loss)
	case workload.EventCheckpoint:
		return fmt.Sprintf("at step %d, loss %.4f, checkpoint written", l.Step, l.Loss)
	case workload.EventInterrupted:
		return fmt.Sprintf("stops after step %d: %s", l.Step, l.Detail)
	case workload.EventLeaving:
		return fmt.Sprintf("leaves after step %d: %s", l.Step, l.Detail)
	case workload.EventDone:
		return fmt.Sprintf("done after step %d: loss %.4f, at first %.4f; accuracy %.1f %%; weights %.*s",
			l.Step, l.Loss, l.FirstLoss, 100*l.Accuracy, shownHash, l.Weights)
	case workload.EventFailed:
		return "failed: " + l.Detail
	}
	return l.Event + " " + l.Detail
}
