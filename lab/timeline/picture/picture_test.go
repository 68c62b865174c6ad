package picture

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dra-lab/dra-lab/lab/timeline"
	"github.com/dra-lab/dra-lab/lab/timeline/workload"
)

// training is a run in which a Pod of a Job loses its GPU and is replaced. The
// suffix is what generated names end with, and tainting how long the taint takes.
func training(suffix string, tainting time.Duration) timeline.Timeline {
	at := time.Unix(1000, 0).UTC()
	pod, claim := "train-1-"+suffix, "train-1-"+suffix+"-gpu-"+suffix
	t := timeline.Timeline{Version: 1, Title: "training", Namespace: "lab-training"}
	add := func(after time.Duration, e timeline.Event) {
		at = at.Add(after)
		e.Time, e.Sequence, e.Source = at, len(t.Events)+1, timeline.SourceWatch
		if e.Text == "" {
			e.Text = string(e.Kind)
		}
		t.Events = append(t.Events, e)
	}
	const ms = time.Millisecond
	add(0, timeline.Event{Kind: timeline.JobCreated, Component: timeline.User})
	add(20*ms, timeline.Event{Kind: timeline.PodCreated, Component: timeline.ControllerManager, Pod: pod})
	t.Origin = at
	add(30*ms, timeline.Event{Kind: timeline.ClaimCreated, Component: timeline.ControllerManager, Pod: pod, Claim: claim})
	add(40*ms, timeline.Event{Kind: timeline.ClaimAllocated, Component: timeline.Scheduler, Pod: pod, Claim: claim, Node: "w", Device: "gpu-0"})
	add(5*ms, timeline.Event{Kind: timeline.PodScheduled, Component: timeline.Scheduler, Pod: pod, Node: "w"})
	add(300*ms, timeline.Event{Kind: timeline.PrepareStarted, Component: timeline.Driver, Claim: claim, Node: "w"})
	add(4*ms, timeline.Event{Kind: timeline.Prepared, Component: timeline.Driver, Claim: claim, Node: "w", Duration: 4 * ms})
	add(500*ms, timeline.Event{Kind: timeline.ContainerStarted, Component: timeline.Kubelet, Pod: pod, Node: "w"})
	add(3*time.Second, timeline.Event{Kind: timeline.Workload("step"), Component: timeline.Container, Pod: pod, Node: "w", Workload: &workload.Line{Step: 100}})
	add(ms, timeline.Event{Kind: timeline.FaultAsked, Component: timeline.User, Node: "w", Device: "gpu-0", Detail: "xid 79"})
	add(2*ms, timeline.Event{Kind: timeline.FaultInjected, Component: timeline.GPU, Node: "w", Device: "gpu-0", Detail: "xid 79"})
	add(100*ms, timeline.Event{Kind: timeline.GPUEvent, Component: timeline.GPU, Node: "w", Device: "gpu-0"})
	add(tainting, timeline.Event{Kind: timeline.DeviceTainted, Component: timeline.APIServer, Node: "w", Device: "gpu-0", Detail: "a=b:NoExecute"})
	add(50*ms, timeline.Event{Kind: timeline.PodDisrupted, Component: timeline.ControllerManager, Pod: pod, Node: "w"})
	add(10*ms, timeline.Event{Kind: timeline.Remark, Component: timeline.Lab, Text: "note: a Job waits 10 s"})
	add(10*time.Second, timeline.Event{Kind: timeline.PodCreated, Component: timeline.ControllerManager, Pod: "train-1-next" + suffix[:1]})
	return t
}

func TestEachEventHasItsCause(t *testing.T) {
	run := training("aaaaa", 120*time.Millisecond)
	s := run.Subjects()
	for kind, want := range map[timeline.Kind]timeline.Kind{
		timeline.ClaimAllocated:   timeline.ClaimCreated,
		timeline.PodScheduled:     timeline.ClaimAllocated,
		timeline.PrepareStarted:   timeline.PodScheduled, // across claim and Pod
		timeline.Prepared:         timeline.PrepareStarted,
		timeline.ContainerStarted: "",
		timeline.GPUEvent:         timeline.FaultInjected,
		timeline.DeviceTainted:    timeline.GPUEvent,
		timeline.PodDisrupted:     timeline.DeviceTainted, // across Pod and device
		timeline.Remark:           "",
	} {
		i := slices.IndexFunc(run.Events, func(e timeline.Event) bool { return e.Kind == kind })
		if got, _ := cause(run.Events, s, i); got.Kind != want {
			t.Errorf("%s follows from %q, want %q", kind, got.Kind, want)
		}
	}
}

func TestWhatWasWaitedFor(t *testing.T) {
	at := time.Unix(0, 0)
	event := func(kind timeline.Kind, after time.Duration) timeline.Event {
		return timeline.Event{Kind: kind, Component: timeline.ControllerManager, Time: at.Add(after), Text: "note: because"}
	}
	for _, c := range []struct {
		before, next timeline.Event
		want         string
	}{
		{event(timeline.PodFailed, 0), event(timeline.PodGone, time.Second/2), ""},
		{event(timeline.PodFailed, 0), event(timeline.PodCreated, time.Minute), "controller waits"},
		{event(timeline.Remark, 0), event(timeline.PodCreated, time.Minute), "because"},
		{event(timeline.PodReady, 0), event(timeline.Workload("step"), time.Minute), "computes"},
		{event(timeline.DeviceHealth, 0), event(timeline.PodHealth, time.Minute), "60 to 90 s"},
	} {
		if got := waited(c.before, c.next); (c.want == "") != (got == "") || !strings.Contains(got, c.want) {
			t.Errorf("%s to %s: %q, want %q", c.before.Kind, c.next.Kind, got, c.want)
		}
	}
}

func draw(t *testing.T, runs ...timeline.Timeline) string {
	t.Helper()
	var b strings.Builder
	if err := Write(&b, runs...); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestPictureOfARun(t *testing.T) {
	run := training("aaaaa", 120*time.Millisecond)
	run.Events[0].Text = `Job <b>train</b> & "more"`
	got := draw(t, run)
	for what, want := range map[string]string{
		"a lane":                      `text-anchor="middle">controller-manager</text>`,
		"an arrow between two lanes":  `<polygon class="tip"`,
		"when and after what":         `<td class="time">&#43;0.075 s</td><td class="after" title="after claim allocated">5.0 ms</td>`,
		"who did it, to be read":      `<span class="who">kubelet <span aria-hidden="true">→</span><span class="read"> to </span> driver</span>`,
		"why nothing happened":        "10.0 s later",
		"and the remark that says so": "waited: a Job waits 10 s",
		"faults":                      `class="event fault"`,
		"no markup from outside":      `Job &lt;b&gt;train&lt;/b&gt; &amp; &#34;more&#34;`,
	} {
		if !strings.Contains(got, want) {
			t.Errorf("%s: no %q", what, want)
		}
	}
	// Nothing outside of the file.
	for _, outside := range []string{"http:", "https:", "src=", "url(", "<link"} {
		if strings.Contains(got, outside) {
			t.Errorf("it needs something outside: %q", outside)
		}
	}
}

func TestPictureOfTwoRuns(t *testing.T) {
	// Given the same run twice, with other generated names, a taint that took
	// longer, and an event that only the second has,
	a, b := training("aaaaa", 120*time.Millisecond), training("bbbbb", 900*time.Millisecond)
	b.Events = slices.Insert(b.Events, 8, timeline.Event{
		Kind: timeline.Warning, Component: timeline.Kubelet, Detail: "FailedMount", Time: b.Events[7].Time, Text: "FailedMount",
	})
	p, err := newPage([]timeline.Timeline{a, b})
	if err != nil {
		t.Fatal(err)
	}
	marks := map[string]string{}
	for _, r := range p.Rows {
		if r.Mark != "" {
			marks[r.Text] = r.Mark
		}
	}
	// then just these are marked.
	want := map[string]string{"device-tainted": "slower in B", "FailedMount": "only in B"}
	if fmt.Sprint(marks) != fmt.Sprint(want) {
		t.Errorf("marks %v, want %v", marks, want)
	}
}

func TestPictureOfNothing(t *testing.T) {
	var b strings.Builder
	run := training("aaaaa", 0)
	for _, runs := range [][]timeline.Timeline{nil, {{}}, {run, {}}, {run, run, run}} {
		if err := Write(&b, runs...); err == nil {
			t.Errorf("%d runs: no error", len(runs))
		}
	}
}

// A run with thousands of events is drawn in a moment, and compared in some.
func TestManyEvents(t *testing.T) {
	run := training("aaaaa", 0)
	for i := len(run.Events); i < maxAligned+100; i++ {
		e := run.Events[i%16]
		e.Time = run.Events[i-1].Time.Add(time.Millisecond)
		run.Events = append(run.Events, e)
	}
	if got := draw(t, run, run); !strings.Contains(got, "200 events are not shown") {
		t.Error("it is not said that events are missing")
	}
}

func TestDuration(t *testing.T) {
	for d, want := range map[time.Duration]string{
		-time.Second: "0", 42 * time.Microsecond: "42 µs", 1234 * time.Microsecond: "1.2 ms",
		340 * time.Millisecond: "340 ms", 1234 * time.Millisecond: "1.23 s", 95*time.Second + time.Millisecond: "95.0 s",
	} {
		if got := duration(d); got != want {
			t.Errorf("%s: %q, want %q", d, got, want)
		}
	}
}
