package probe

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Config says how a session probes.
type Config struct {
	// Prober runs the handlers.
	Prober Prober
	// UserAgent is what HTTP and gRPC servers are told; see [UserAgent].
	UserAgent string
	// Container is the only one that is probed; "" means all of the Pod.
	Container string
	// Emit gets every event, one at a time and in order; nil: nobody does. It must
	// not call methods of the session.
	Emit func(Event)
}

// An Event is an attempt, or that a probe waits and for what.
type Event struct {
	Time      time.Time `json:"time"`
	Since     float64   `json:"since"` // seconds since the container started; 0 before that
	Container string    `json:"container"`
	Probe     Kind      `json:"probe"`
	// Waits is why the probe does not run, told once; else "", and the rest is set.
	Waits   string  `json:"waits,omitempty"`
	Handler string  `json:"handler,omitempty"`
	Answer  Result  `json:"answer,omitempty"`
	Output  string  `json:"output,omitempty"` // shortened to a line
	Error   string  `json:"error,omitempty"`  // why the handler could not be run
	Took    float64 `json:"took,omitempty"`   // seconds
	Count   *Count  `json:"count,omitempty"`
}

// A Session runs the probes of one Pod for some time. Its methods may be called
// by any goroutine.
type Session struct {
	config Config

	emit sync.Mutex // held to emit

	mu       sync.Mutex
	pod      *corev1.Pod
	loops    []*loop
	adopted  map[string]bool   // by ID: had started before the session
	wanted   map[string]int    // by container: restarts that its probes asked for
	doomed   map[string]string // by container: the ID for which they asked last
	restarts map[string]int32  // by container: the kubelet's count at first
	changed  chan struct{}
}

// loop is one worker on its way.
type loop struct {
	container corev1.Container
	worker    *Worker
	nudge     chan struct{}
	said      string // what it waits for, as told last
}

// NewSession returns a session for the Pod as it is now. It starts nothing. A
// container whose startup probe the kubelet has seen succeed counts as started:
// the kubelet does not run that probe again, either.
func NewSession(pod *corev1.Pod, config Config) (*Session, error) {
	s := &Session{
		config: config, pod: pod, adopted: map[string]bool{}, wanted: map[string]int{}, doomed: map[string]string{},
		restarts: map[string]int32{}, changed: make(chan struct{}, 1),
	}
	var names []string
	for _, c := range probed(pod) {
		names = append(names, c.Name)
		if config.Container != "" && c.Name != config.Container {
			continue
		}
		status, _ := statusOf(pod, c.Name)
		s.restarts[c.Name] = status.RestartCount
		if status.Started != nil && *status.Started {
			s.adopted[status.ContainerID] = true
		}
		probes := Probes(c)
		for _, kind := range []Kind{Startup, Readiness, Liveness} {
			if p := probes[kind]; p != nil {
				s.loops = append(s.loops, &loop{container: c, worker: NewWorker(kind, p), nudge: make(chan struct{}, 1)})
			}
		}
	}
	if config.Container != "" && !slices.Contains(names, config.Container) {
		return nil, fmt.Errorf("probe Pod %s/%s: it has no container %q with probes, has %s",
			pod.Namespace, pod.Name, config.Container, strings.Join(names, ", "))
	}
	return s, nil
}

// Update tells the session how the Pod is now.
func (s *Session) Update(pod *corev1.Pod) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pod = pod
	for _, c := range probed(pod) {
		s.nudgeReadiness(c.Name)
	}
	s.notify()
}

// Changed returns a channel that gets a value when the verdict may have changed
// since the last one was taken from it.
func (s *Session) Changed() <-chan struct{} { return s.changed }

func (s *Session) notify() {
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// Run runs the probes until ctx ends, or until there is nothing left to probe,
// and returns when all goroutines have ended. It is to be called once.
func (s *Session) Run(ctx context.Context) {
	var running sync.WaitGroup
	for _, l := range s.loops {
		running.Go(func() { s.probe(ctx, l) })
	}
	running.Wait()
}

// probe is the loop of one worker (worker.go, run).
func (s *Session) probe(ctx context.Context, l *loop) {
	ticker := time.NewTicker(l.worker.Period())
	defer ticker.Stop()
	for s.tick(ctx, l) && s.wait(ctx, l, ticker) {
	}
}

// wait waits for the next attempt, and reports whether there is to be one.
func (s *Session) wait(ctx context.Context, l *loop, ticker *time.Ticker) bool {
	for {
		select {
		case <-ctx.Done():
			return false
		case <-ticker.C:
			return true
		case <-l.nudge:
			// The kubelet looks some milliseconds later than we do. If the attempt
			// of that time was enough, it has no more reason for another one.
			if s.unready(l) {
				ticker.Reset(l.worker.Period())
				return true
			}
		}
	}
}

// tick does what the worker says, and reports whether it goes on.
func (s *Session) tick(ctx context.Context, l *loop) bool {
	now := time.Now()
	step, target, started := s.decide(now, l)
	event := Event{Time: now, Container: l.container.Name, Probe: l.worker.kind}
	if !started.IsZero() {
		event.Since = now.Sub(started).Seconds()
	}
	if step.Action != Run {
		if l.said != step.Why {
			l.said, event.Waits = step.Why, step.Why
			s.tell(event)
		}
		return step.Action != Stop
	}
	l.said = ""
	answer := Try(ctx, s.config.Prober, target)
	if ctx.Err() != nil {
		return false // the answer is about that
	}
	count := s.count(l, answer)
	event.Handler, event.Answer, event.Output = answer.Handler, answer.Result, brief(answer.Output)
	event.Took, event.Count = answer.Took.Seconds(), &count
	if answer.Err != nil {
		event.Error = cause(answer.Err)
	}
	s.tell(event)
	return true
}

func (s *Session) tell(e Event) {
	if s.config.Emit != nil {
		s.emit.Lock()
		s.config.Emit(e)
		s.emit.Unlock()
	}
	s.notify()
}

func (s *Session) decide(now time.Time, l *loop) (Step, Target, time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	seen := s.see(l.container)
	before := l.worker.id
	step := l.worker.Tick(now, seen)
	if l.worker.id != before {
		// The kubelet looks after the Pod when the result of a probe is new, the
		// initial one included.
		s.nudgeReadiness(l.container.Name)
		s.notify()
	}
	return step, s.target(l.container, l.worker), seen.StartedAt
}

func (s *Session) target(c corev1.Container, w *Worker) Target {
	return Target{
		Namespace: s.pod.Namespace, Pod: s.pod.Name, PodIP: s.pod.Status.PodIP,
		Container: corev1.Container{Name: c.Name, Ports: c.Ports, Env: c.Env},
		Handler:   w.probe.ProbeHandler, Timeout: w.Timeout(), UserAgent: s.config.UserAgent,
		ContainerID: containerOf(s.pod, c).ID,
	}
}

func (s *Session) count(l *loop, a Answer) Count {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := l.worker.State()
	count := l.worker.Count(a)
	if count.Reached && count.Result == Failure && l.worker.kind != Readiness {
		s.wanted[l.container.Name]++
		s.doomed[l.container.Name] = l.worker.id
	}
	if count.State != before {
		s.nudgeReadiness(l.container.Name)
	}
	return count
}

// see is a container as its workers see it.
func (s *Session) see(c corev1.Container) Container {
	seen := containerOf(s.pod, c)
	startup := s.worker(c.Name, Startup)
	seen.Started = seen.Running &&
		(startup == nil || s.adopted[seen.ID] || startup.id == seen.ID && startup.State() == Success)
	return seen
}

func (s *Session) worker(container string, kind Kind) *Worker {
	for _, l := range s.loops {
		if l.container.Name == container && l.worker.kind == kind {
			return l.worker
		}
	}
	return nil
}

// nudgeReadiness has a readiness probe run at once, if the container has started
// and is not ready (prober_manager.go, UpdatePodStatus).
func (s *Session) nudgeReadiness(container string) {
	for _, l := range s.loops {
		if l.container.Name != container || l.worker.kind != Readiness {
			continue
		}
		if seen := s.see(l.container); !seen.Started || l.worker.id == seen.ID && l.worker.State() == Success {
			continue
		}
		select {
		case l.nudge <- struct{}{}:
		default:
		}
	}
}

func (s *Session) unready(l *loop) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return l.worker.id != s.see(l.container).ID || l.worker.State() != Success
}

// Once runs every probe once and now, whatever delays, thresholds and the
// startup probe say, and returns whether each container that has to be is
// answered for: no probe but liveness failed.
func (s *Session) Once(ctx context.Context) (ok bool) {
	ok = true
	for _, l := range s.loops {
		s.mu.Lock()
		seen, target := s.see(l.container), s.target(l.container, l.worker)
		s.mu.Unlock()
		now := time.Now()
		event := Event{Time: now, Container: l.container.Name, Probe: l.worker.kind}
		if !seen.Running {
			event.Waits, ok = "the container is not running", false
			s.tell(event)
			continue
		}
		event.Since = now.Sub(seen.StartedAt).Seconds()
		a := Try(ctx, s.config.Prober, target)
		event.Handler, event.Answer, event.Output, event.Took = a.Handler, a.Result, brief(a.Output), a.Took.Seconds()
		if a.Err != nil {
			event.Error = cause(a.Err)
		}
		if a.Result != Success && a.Result != Warning && l.worker.kind != Liveness {
			ok = false
		}
		s.tell(event)
	}
	return ok
}
