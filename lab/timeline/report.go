package timeline

import (
	"fmt"
	"strings"
	"time"

	"github.com/dra-lab/dra-lab/driver/api"
)

// driverReport says what a report of the driver means. Steps of claims in other
// namespaces than the recorded one mean nothing here.
func driverReport(r api.Report, namespace string) []Event {
	if r.ClaimNamespace != "" && r.ClaimNamespace != namespace {
		return nil
	}
	e := Event{
		Time: r.Time, Source: SourceReport, Component: Driver, Node: r.Node,
		Claim: r.ClaimName, Device: r.Device, Detail: r.Detail, Duration: r.Duration,
	}
	claim := "claim " + r.ClaimName
	switch r.Step {
	case api.StepPrepareStarted:
		e.Kind, e.Text = PrepareStarted, claim+": prepare asked for by the kubelet"
	case api.StepPrepareStep:
		e.Kind, e.Text = PrepareStep, claim+": "+stepWords(r.Detail, prepareWords)+took(r.Duration)
	case api.StepPrepared:
		e.Kind, e.Text = Prepared, claim+": prepared"+took(r.Duration)
	case api.StepPrepareFailed:
		e.Kind, e.Text = PrepareFailed, claim+": prepare failed: "+r.Err
	case api.StepUnprepareStart:
		e.Kind, e.Text = UnprepareStarted, claim+": unprepare asked for by the kubelet"
	case api.StepUnprepareStep:
		e.Kind, e.Text = UnprepareStep, claim+": "+stepWords(r.Detail, unprepareWords)+took(r.Duration)
	case api.StepUnprepared:
		e.Kind, e.Text = Unprepared, claim+": unprepared"+took(r.Duration)
	case api.StepUnprepareFailed:
		e.Kind, e.Text = UnprepareFailed, claim+": unprepare failed: "+r.Err
	case api.StepEvent:
		e.Kind, e.Component, e.Text = GPUEvent, GPU, strings.TrimPrefix(r.Device+": ", ": ")+r.Detail
	case api.StepHealth:
		health, _, _ := strings.Cut(r.Detail, ":")
		e.Kind, e.Detail, e.Text = DeviceHealth, health, r.Device+": health reported to the kubelet: "+r.Detail
	case api.StepTainted:
		e.Kind, e.Detail, e.Text = DriverStep, r.Step, r.Device+": taint to be published: "+r.Detail
	case api.StepUntainted:
		e.Kind, e.Detail, e.Text = DriverStep, r.Step, r.Device+": taint to be taken back: "+r.Detail
	default:
		e.Kind, e.Detail, e.Text = DriverStep, r.Step, driverStep(r)
	}
	return []Event{e}
}

// driverStep is the text of a step that needs no words of its own.
func driverStep(r api.Report) string {
	words := strings.ReplaceAll(r.Step, "-", " ")
	if r.ClaimName != "" {
		words = "claim " + r.ClaimName + ": " + words
	} else if r.Device != "" {
		words = r.Device + ": " + words
	}
	for _, more := range []string{r.Detail, r.Err} {
		if more != "" {
			words += ": " + more
		}
	}
	return words + took(r.Duration)
}

func took(d time.Duration) string {
	if d <= 0 {
		return ""
	}
	return fmt.Sprintf(" (%s)", d.Round(100*time.Microsecond))
}

// stepWords puts a step, "name" or "name: more", into words. A name that has
// none stays as it is.
func stepWords(detail string, words func(name, more string) string) string {
	name, more, _ := strings.Cut(detail, ": ")
	if text := words(name, more); text != "" {
		return text
	}
	return detail
}

// prepareWords are the driver's points on the way through prepare.
func prepareWords(name, more string) string {
	switch name {
	case "resolved":
		return "found " + more
	case "started":
		return strings.TrimSuffix("entered in the checkpoint, "+more, ", ")
	case "bound":
		return "GPU made ready"
	case "described":
		return "CDI spec written"
	case "completed":
		return "complete in the checkpoint"
	}
	return ""
}

// unprepareWords are the driver's points on the way through unprepare.
func unprepareWords(name, more string) string {
	switch name {
	case "found":
		return "looked up in the checkpoint: " + more
	case "hidden":
		return "CDI spec removed"
	case "unbound":
		return "GPU given back"
	case "verified":
		if more != "" {
			return "left behind: " + more
		}
		return "memory of the GPU is back to its baseline"
	case "forgotten":
		return "checkpoint entry removed"
	}
	return ""
}
