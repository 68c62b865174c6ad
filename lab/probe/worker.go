package probe

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Kind is what a probe decides.
type Kind string

// The kinds of probes.
const (
	Startup   Kind = "startup"   // whether a container has started
	Readiness Kind = "readiness" // whether it is ready
	Liveness  Kind = "liveness"  // whether it has to be restarted
)

// Result is what one run of a handler says, or what many add up to.
type Result string

// The results. As the sum of many runs there are only Success, Failure and, for
// a startup probe that has not decided, Unknown.
const (
	Success Result = "success"
	Warning Result = "warning" // a success that the kubelet also makes an Event of
	Failure Result = "failure"
	Unknown Result = "unknown"
)

// A Container is what a worker has to know of its container at one moment.
type Container struct {
	ID        string    // of the runtime; "" before there is one
	Running   bool      //
	StartedAt time.Time // by the node's clock, whole seconds
	Started   bool      // it runs, and its startup probe, if any, has succeeded
	Gone      bool      // it has ended and will not be started again
	Deleting  bool      // its Pod is being deleted
	PodEnded  bool      // its Pod has succeeded or failed
}

// Action is what a worker does at a tick.
type Action int

// The actions.
const (
	Wait Action = iota // for the next tick
	Run                // the handler, now
	Stop               // for good
)

// A Step is an action and, unless it is Run, the reason.
type Step struct {
	Action Action
	Why    string
}

// A Count is what an answer did to a worker.
type Count struct {
	Result    Result `json:"result"`    // the answer, as it counts: success or failure
	Run       int    `json:"run"`       // how many of these in a row, this one included
	Threshold int    `json:"threshold"` // how many it takes
	Reached   bool   `json:"reached"`   // so State is now Result
	Changed   bool   `json:"changed"`   // and was not before
	Discarded bool   `json:"discarded"` // the handler could not be run: nothing is counted
	State     Result `json:"state"`     // of the probe after this answer
}

// A Worker counts the answers to one probe of one container, as the kubelet's
// worker does (pkg/kubelet/prober/worker.go). It has no clock, runs nothing, and
// is for one goroutine at a time. Its zero value is of no use.
type Worker struct {
	kind  Kind
	probe corev1.Probe

	id      string
	state   Result
	last    Result
	run     int
	hold    bool
	settled bool // a threshold was reached since the container is there
	answer  Answer
	answers int // for this container
	errors  int // in a row
}

// NewWorker returns the worker for a probe. Fields that are 0 have their
// defaults: period 10 s, timeout 1 s, 1 success, 3 failures.
func NewWorker(kind Kind, p *corev1.Probe) *Worker {
	return &Worker{kind: kind, probe: withDefaults(*p), state: initial(kind)}
}

// withDefaults fills in what the API server does
// (pkg/apis/core/v1/defaults.go, SetDefaults_Probe).
func withDefaults(p corev1.Probe) corev1.Probe {
	for field, standard := range map[*int32]int32{
		&p.TimeoutSeconds: 1, &p.PeriodSeconds: 10, &p.SuccessThreshold: 1, &p.FailureThreshold: 3,
	} {
		if *field == 0 {
			*field = standard
		}
	}
	return p
}

// initial is the state of a probe that has not decided: a container counts as
// alive until it fails, and as not ready until it succeeds (worker.go, newWorker).
func initial(kind Kind) Result {
	switch kind {
	case Readiness:
		return Failure
	case Liveness:
		return Success
	default:
		return Unknown
	}
}

// State returns what the answers for the present container add up to.
func (w *Worker) State() Result { return w.state }

// Period returns the time between two ticks.
func (w *Worker) Period() time.Duration { return time.Duration(w.probe.PeriodSeconds) * time.Second }

// Timeout returns how long a run of the handler may take.
func (w *Worker) Timeout() time.Duration { return time.Duration(w.probe.TimeoutSeconds) * time.Second }

// stays reports whether more answers of the same kind would not change the state:
// a threshold was reached, or the handler cannot be run.
func (w *Worker) stays() bool { return w.settled || w.errors >= maxTries }

// Tick decides what to do at a tick, in the order of the kubelet's doProbe.
func (w *Worker) Tick(now time.Time, c Container) Step {
	switch {
	case c.PodEnded:
		return Step{Stop, "the Pod has ended"}
	case c.ID == "":
		return Step{Wait, "there is no container yet"}
	}
	if c.ID != w.id {
		// A new container begins with the initial state and takes a worker off
		// its hold. The count of equal answers goes on: one success may be enough
		// for a container that was restarted, whatever the threshold is.
		w.id, w.state, w.hold = c.ID, initial(w.kind), false
		w.settled, w.answer, w.answers, w.errors = false, Answer{}, 0, 0
	}
	if w.hold {
		// After the failure of a liveness probe and after any decision of a
		// startup probe.
		return Step{Wait, "it has decided, and waits for a new container"}
	}
	if !c.Running {
		w.state = Failure
		if c.Gone {
			return Step{Stop, "the container has ended for good"}
		}
		return Step{Wait, "the container is not running"}
	}
	if c.Deleting && w.kind != Readiness {
		// Readiness goes on, so that a server can be taken out of service first.
		w.state = Success
		return Step{Stop, "the Pod is being deleted"}
	}
	delay := time.Duration(w.probe.InitialDelaySeconds) * time.Second
	// Whole seconds are compared, from the container's start and not from the
	// Pod's.
	if now.Sub(c.StartedAt).Truncate(time.Second) < delay {
		return Step{Wait, fmt.Sprintf("initial delay of %s", delay)}
	}
	switch {
	case c.Started && w.kind == Startup:
		return Step{Wait, "the container has started"}
	case !c.Started && w.kind != Startup:
		return Step{Wait, "the startup probe has not succeeded"}
	}
	return Step{Action: Run}
}

// Count counts an answer.
func (w *Worker) Count(a Answer) Count {
	w.answer = a
	w.answers++
	w.errors++
	if a.Err == nil {
		w.errors = 0
	}
	if a.Err != nil {
		// prober.go, probe: an error is an Event, and no result. So a probe that
		// cannot be run leaves a container as it is: never ready, never restarted.
		return Count{Discarded: true, State: w.state}
	}
	result := Failure // Unknown without an error counts as failure
	if a.Result == Success || a.Result == Warning {
		result = Success
	}
	if result == w.last {
		w.run++
	} else {
		w.last, w.run = result, 1
	}
	count := Count{Result: result, Run: w.run, Threshold: int(w.probe.SuccessThreshold)}
	if result == Failure {
		count.Threshold = int(w.probe.FailureThreshold)
	}
	if w.run >= count.Threshold {
		count.Reached, count.Changed = true, !w.settled || w.state != result
		w.state, w.settled = result, true
		if w.kind == Startup || w.kind == Liveness && result == Failure {
			w.hold, w.run = true, 0
		}
	}
	count.State = w.state
	return count
}
