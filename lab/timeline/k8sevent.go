package timeline

import (
	"cmp"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// eventChange says what a Kubernetes Event adds to the story: warnings. What
// goes well is seen in the objects themselves, and earlier.
func eventChange(old, now *corev1.Event, at time.Time) []Event {
	if now == nil || now.Type != corev1.EventTypeWarning || now.Reason == "FailedScheduling" {
		// Why a Pod is not scheduled is also in its status.
		return nil
	}
	if old != nil && old.Count == now.Count && old.Message == now.Message {
		return nil
	}
	e := Event{
		Time: at, Source: SourceEvent, Component: reporter(now), Kind: Warning, Node: now.Source.Host, Detail: now.Reason,
		Text: fmt.Sprintf("%s %s: warning %s: %s", now.InvolvedObject.Kind, now.InvolvedObject.Name, now.Reason, now.Message),
	}
	if !now.EventTime.IsZero() {
		e.Time = now.EventTime.Time
	}
	switch now.InvolvedObject.Kind {
	case "Pod":
		e.Pod = now.InvolvedObject.Name
	case "ResourceClaim":
		e.Claim = now.InvolvedObject.Name
	}
	return []Event{e}
}

// reporter is the component that wrote the Event.
func reporter(e *corev1.Event) Component {
	switch name := cmp.Or(e.ReportingController, e.Source.Component); name {
	case "kubelet":
		return Kubelet
	case "default-scheduler":
		return Scheduler
	case "":
		return APIServer
	default:
		// Controllers name themselves; all run in one process.
		return ControllerManager
	}
}
