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
		e.Kind, e.Text = PrepareStep, claim+": "+r.Detail+took(r.Duration)
	case api.StepPrepared:
		e.Kind, e.Text = Prepared, claim+": prepared"+took(r.Duration)
	case api.StepPrepareFailed:
		e.Kind, e.Text = PrepareFailed, claim+": prepare failed: "+r.Err
	case api.StepUnprepareStart:
		e.Kind, e.Text = UnprepareStarted, claim+": unprepare asked for by the kubelet"
	case api.StepUnprepareStep:
		e.Kind, e.Text = UnprepareStep, claim+": "+r.Detail+took(r.Duration)
	case api.StepUnprepared:
		e.Kind, e.Text = Unprepared, claim+": unprepared"+took(r.Duration)
	case api.StepUnprepareFailed:
		e.Kind, e.Text = UnprepareFailed, claim+": unprepare failed: "+r.Err
	case api.StepEvent:
		e.Kind, e.Component, e.Text = GPUEvent, GPU, strings.TrimPrefix(r.Device+": ", ": ")+r.Detail
	case api.StepHealth:
		health, _, _ := strings.Cut(r.Detail, ":")
		e.Kind, e.Detail, e.Text = DeviceHealth, health, r.Device+": health reported to the kubelet: "+r.Detail
	case api.StepOperation:
		action, words, _ := strings.Cut(r.Detail, ": ")
		e.Kind, e.Detail, e.Text = DeviceOperation, action, r.Device+": "+strings.ToLower(action)+" ordered by the controller: "+words
		if r.Err != "" {
			e.Detail, e.Text = action+"Failed", e.Text+"failed: "+r.Err
		}
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
