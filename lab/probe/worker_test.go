package probe

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
)

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func running(id string) Container {
	return Container{ID: id, Running: true, StartedAt: epoch, Started: true}
}

var (
	yes   = Answer{Result: Success}
	warn  = Answer{Result: Warning}
	no    = Answer{Result: Failure}
	dunno = Answer{Result: Unknown}
	fault = Answer{Result: Unknown, Err: errors.New("cannot be run")}
)

// The rules of pkg/kubelet/prober/worker.go, doProbe, in its order.
func TestTickFollowsTheKubeletsOrder(t *testing.T) {
	delayed := &corev1.Probe{InitialDelaySeconds: 5}
	for _, c := range []struct {
		name  string
		kind  Kind
		probe *corev1.Probe
		after time.Duration // since the container started
		seen  func(*Container)
		want  Action
		why   string
		state Result
	}{
		{name: "status.Phase is Failed or Succeeded: return false", kind: Readiness, seen: func(c *Container) { c.PodEnded = true },
			want: Stop, why: "the Pod has ended", state: Failure},
		{name: "no container ID: return true", kind: Liveness, seen: func(c *Container) { c.ID = "" },
			want: Wait, why: "there is no container yet", state: Success},
		{name: "not running: result is Failure, of liveness as well", kind: Liveness, seen: func(c *Container) { c.Running = false },
			want: Wait, why: "the container is not running", state: Failure},
		{name: "not running and not to be restarted: return false", kind: Readiness, seen: func(c *Container) { c.Running, c.Gone = false, true },
			want: Stop, why: "the container has ended for good", state: Failure},
		{name: "Pod deleted, liveness: Success, return false", kind: Liveness, seen: func(c *Container) { c.Deleting = true },
			want: Stop, why: "the Pod is being deleted", state: Success},
		{name: "Pod deleted, startup: Success, return false", kind: Startup, seen: func(c *Container) { c.Deleting, c.Started = true, false },
			want: Stop, why: "the Pod is being deleted", state: Success},
		{name: "Pod deleted, readiness goes on", kind: Readiness, seen: func(c *Container) { c.Deleting = true }, want: Run, state: Failure},
		{name: "int32(seconds) < InitialDelaySeconds: too early", kind: Readiness, probe: delayed, after: 4999 * time.Millisecond,
			want: Wait, why: "initial delay of 5s", state: Failure},
		{name: "initial delay is over", kind: Readiness, probe: delayed, after: 5 * time.Second, want: Run, state: Failure},
		{name: "initial delay comes before the startup gate", kind: Liveness, probe: delayed, seen: func(c *Container) { c.Started = false },
			want: Wait, why: "initial delay of 5s", state: Success},
		{name: "started: no startup probe any more", kind: Startup, want: Wait, why: "the container has started", state: Unknown},
		{name: "not started: startup probe runs", kind: Startup, seen: func(c *Container) { c.Started = false }, want: Run, state: Unknown},
		{name: "not started: readiness is disabled", kind: Readiness, seen: func(c *Container) { c.Started = false },
			want: Wait, why: "the startup probe has not succeeded", state: Failure},
		{name: "not started: liveness is disabled", kind: Liveness, seen: func(c *Container) { c.Started = false },
			want: Wait, why: "the startup probe has not succeeded", state: Success},
		{name: "else the handler runs", kind: Liveness, want: Run, state: Success},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := c.probe
			if p == nil {
				p = &corev1.Probe{}
			}
			w := NewWorker(c.kind, p)
			seen := running("a")
			if c.seen != nil {
				c.seen(&seen)
			}
			if got, want := w.Tick(epoch.Add(c.after), seen), (Step{c.want, c.why}); got != want {
				t.Errorf("Tick = %+v, want %+v", got, want)
			}
			if w.State() != c.state {
				t.Errorf("state %s, want %s", w.State(), c.state)
			}
		})
	}
}

// The rest of doProbe, and probe in prober.go: what answers add up to.
func TestCountsAsTheKubeletDoes(t *testing.T) {
	for _, c := range []struct {
		name    string
		kind    Kind
		probe   corev1.Probe
		answers []Answer
		want    []Result // the state after each
	}{
		{"a readiness probe is a failure until its first success", Readiness, corev1.Probe{}, []Answer{yes}, []Result{Success}},
		{"successThreshold counts successes in a row", Readiness, corev1.Probe{SuccessThreshold: 3},
			[]Answer{yes, yes, no, yes, yes, yes}, []Result{Failure, Failure, Failure, Failure, Failure, Success}},
		{"failureThreshold counts failures in a row", Readiness, corev1.Probe{FailureThreshold: 2},
			[]Answer{yes, no, yes, no, no}, []Result{Success, Success, Success, Success, Failure}},
		{"failureThreshold is 3 by default", Readiness, corev1.Probe{}, []Answer{yes, no, no, no}, []Result{Success, Success, Success, Failure}},
		{"a warning is a success", Readiness, corev1.Probe{}, []Answer{warn}, []Result{Success}},
		{"an unknown result without an error is a failure", Readiness, corev1.Probe{FailureThreshold: 1}, []Answer{yes, dunno}, []Result{Success, Failure}},
		{"an error counts for nothing, and interrupts no row", Readiness, corev1.Probe{FailureThreshold: 2},
			[]Answer{yes, no, fault, no}, []Result{Success, Success, Success, Failure}},
		{"a liveness probe whose handler cannot be run never fails", Liveness, corev1.Probe{FailureThreshold: 1},
			[]Answer{fault, fault, fault}, []Result{Success, Success, Success}},
		{"a startup probe is unknown until a threshold is reached", Startup, corev1.Probe{FailureThreshold: 3},
			[]Answer{no, no, yes}, []Result{Unknown, Unknown, Success}},
		{"a startup probe fails", Startup, corev1.Probe{FailureThreshold: 2}, []Answer{no, no}, []Result{Unknown, Failure}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := NewWorker(c.kind, &c.probe)
			seen := running("a")
			seen.Started = c.kind != Startup
			var got []Result
			for _, a := range c.answers {
				if step := w.Tick(epoch, seen); step.Action != Run {
					t.Fatalf("does not run: %s", step.Why)
				}
				got = append(got, w.Count(a).State)
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("states (-want +got):\n%s", diff)
			}
		})
	}
}

func TestHoldLastsUntilThereIsANewContainer(t *testing.T) {
	const held = "it has decided, and waits for a new container"
	for _, c := range []struct {
		kind   Kind
		answer Answer
		held   bool
	}{
		// worker.go: liveness on failure, startup on either; readiness never.
		{Liveness, no, true}, {Liveness, yes, false}, {Startup, no, true}, {Startup, yes, true}, {Readiness, no, false}, {Readiness, yes, false},
	} {
		w := NewWorker(c.kind, &corev1.Probe{FailureThreshold: 1})
		seen := running("a")
		seen.Started = c.kind != Startup
		w.Tick(epoch, seen)
		if count := w.Count(c.answer); !count.Reached {
			t.Fatalf("%s: threshold of 1 is not reached: %+v", c.kind, count)
		}
		if got := w.Tick(epoch, seen).Why == held; got != c.held {
			t.Errorf("%s after %s: hold is %v, want %v", c.kind, c.answer.Result, got, c.held)
		}
		seen.ID = "b"
		if step := w.Tick(epoch, seen); step.Action != Run {
			t.Errorf("%s of a new container: %+v, want it to run", c.kind, step)
		}
		if w.State() != initial(c.kind) {
			t.Errorf("%s of a new container: state %s, want %s", c.kind, w.State(), initial(c.kind))
		}
	}
}

// worker.go sets lastResult and resultRun back nowhere but at a hold.
func TestARowOfAnswersGoesOnInANewContainer(t *testing.T) {
	w := NewWorker(Readiness, &corev1.Probe{SuccessThreshold: 3})
	w.Tick(epoch, running("a"))
	for range 3 {
		w.Count(yes)
	}
	ended := running("a")
	ended.Running = false
	w.Tick(epoch, ended)
	if w.State() != Failure {
		t.Fatalf("state of a container that ended: %s, want failure", w.State())
	}
	w.Tick(epoch, running("b"))
	if w.State() != Failure {
		t.Fatalf("state of the new container: %s, want failure", w.State())
	}
	if count := w.Count(yes); count.State != Success || count.Run != 4 {
		t.Errorf("first success of the new container: %+v, want ready at once, with 4 in a row", count)
	}

	// A hold does set the row back, but not what it was a row of.
	l := NewWorker(Liveness, &corev1.Probe{FailureThreshold: 2})
	l.Tick(epoch, running("a"))
	l.Count(no)
	l.Count(no)
	l.Tick(epoch, running("b"))
	if count := l.Count(no); count.Reached || count.Run != 1 {
		t.Errorf("first failure after a hold: %+v, want 1 of 2", count)
	}
}

func TestDefaultsAreThoseOfTheAPIServer(t *testing.T) {
	got := withDefaults(corev1.Probe{})
	want := corev1.Probe{TimeoutSeconds: 1, PeriodSeconds: 10, SuccessThreshold: 1, FailureThreshold: 3}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("defaults (-want +got):\n%s", diff)
	}
}
