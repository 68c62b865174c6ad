package probe

import (
	"fmt"
	"io"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// A Verdict is what the answers add up to, beside what the kubelet says.
type Verdict struct {
	Namespace  string             `json:"namespace"`
	Pod        string             `json:"pod"`
	Ready      bool               `json:"ready"`
	Why        []string           `json:"why"`     // why not, or the one reason why it is
	Settled    bool               `json:"settled"` // more answers of the same kind would not change it
	Containers []ContainerVerdict `json:"containers"`
	// Kubelet has the Pod's conditions, as the API server has them.
	Kubelet KubeletVerdict `json:"kubelet"`
	// Differences are the statements of the kubelet that do not follow from the
	// answers.
	Differences []string `json:"differences"`
}

// KubeletVerdict is what the Pod's status says of the Pod.
type KubeletVerdict struct {
	ContainersReady bool `json:"containersReady"`
	Ready           bool `json:"ready"`
}

// A ContainerVerdict is the part about one container.
type ContainerVerdict struct {
	Name    string `json:"name"`
	Started bool   `json:"started"`
	Ready   bool   `json:"ready"`
	// Restart says that its startup or liveness probe asks for a new container.
	Restart bool   `json:"restart"`
	Why     string `json:"why"`
	Settled bool   `json:"settled"`
	// Wanted is how many restarts its probes have asked for in this session, and
	// Restarts how many there were.
	Wanted   int            `json:"wanted"`
	Restarts int            `json:"restarts"`
	Kubelet  KubeletsStatus `json:"kubelet"`
}

// KubeletsStatus is what the Pod's status says of a container.
type KubeletsStatus struct {
	Started  bool  `json:"started"`
	Ready    bool  `json:"ready"`
	Restarts int32 `json:"restarts"`
}

// Verdict returns the verdict so far.
func (s *Session) Verdict() Verdict {
	s.mu.Lock()
	defer s.mu.Unlock()
	v := Verdict{
		Namespace: s.pod.Namespace, Pod: s.pod.Name, Ready: true, Settled: true, Differences: []string{},
		Kubelet: KubeletVerdict{
			ContainersReady: isTrue(condition(s.pod, corev1.ContainersReady)),
			Ready:           isTrue(condition(s.pod, corev1.PodReady)),
		},
	}
	differ := func(format string, a ...any) { v.Differences = append(v.Differences, fmt.Sprintf(format, a...)) }
	for _, c := range probed(s.pod) {
		if s.config.Container != "" && c.Name != s.config.Container {
			continue
		}
		judged := s.judge(c)
		v.Containers = append(v.Containers, judged)
		v.Settled = v.Settled && judged.Settled
		if !judged.Ready {
			v.Ready = false
			v.Why = append(v.Why, fmt.Sprintf("container %s: %s", c.Name, judged.Why))
		}
		s.compare(judged, differ)
	}
	switch s.pod.Status.Phase {
	case corev1.PodSucceeded, corev1.PodFailed:
		v.Ready, v.Settled = false, true
		v.Why = []string{fmt.Sprintf("the Pod has ended: %s", s.pod.Status.Phase)}
	}
	if s.config.Container == "" {
		s.judgePod(&v, differ)
	}
	if v.Ready {
		v.Why = []string{"all containers are ready"}
		if len(s.pod.Spec.ReadinessGates) > 0 {
			v.Why[0] += " and all readiness gates are open"
		}
	}
	return v
}

// judgePod adds what is said of the Pod as a whole
// (pkg/kubelet/status/generate.go).
func (s *Session) judgePod(v *Verdict, differ func(string, ...any)) {
	if v.Ready != v.Kubelet.ContainersReady {
		differ("ContainersReady is %v for the kubelet, %v here", v.Kubelet.ContainersReady, v.Ready)
	}
	for _, gate := range s.pod.Spec.ReadinessGates {
		// Somebody else sets it; the kubelet only reads it.
		switch c := condition(s.pod, gate.ConditionType); {
		case c == nil:
			v.Ready = false
			v.Why = append(v.Why, fmt.Sprintf("readiness gate %s: the Pod has no such condition", gate.ConditionType))
		case !isTrue(c):
			v.Ready = false
			v.Why = append(v.Why, fmt.Sprintf("readiness gate %s is %s%s", gate.ConditionType, c.Status, because(c)))
		}
	}
	if v.Ready != v.Kubelet.Ready {
		differ("Ready is %v for the kubelet, %v here", v.Kubelet.Ready, v.Ready)
	}
}

func (s *Session) compare(c ContainerVerdict, differ func(string, ...any)) {
	if c.Started != c.Kubelet.Started {
		differ("container %s: started is %v for the kubelet, %v here", c.Name, c.Kubelet.Started, c.Started)
	}
	if c.Ready != c.Kubelet.Ready {
		differ("container %s: ready is %v for the kubelet, %v here: %s", c.Name, c.Kubelet.Ready, c.Ready, c.Why)
	}
	if c.Restart {
		differ("container %s: its probes ask for a restart, but it still runs", c.Name)
	}
}

// judge says how a container is, and why.
func (s *Session) judge(c corev1.Container) ContainerVerdict {
	seen := s.see(c)
	status, _ := statusOf(s.pod, c.Name)
	v := ContainerVerdict{
		Name: c.Name, Started: seen.Started, Wanted: s.wanted[c.Name], Restarts: int(status.RestartCount - s.restarts[c.Name]),
		Kubelet: KubeletsStatus{Started: status.Started != nil && *status.Started, Ready: status.Ready, Restarts: status.RestartCount},
		Restart: seen.Running && s.doomed[c.Name] == seen.ID,
	}
	startup, readiness, liveness := s.current(c.Name, Startup, seen), s.current(c.Name, Readiness, seen), s.current(c.Name, Liveness, seen)
	switch {
	case !seen.Running:
		v.Why, v.Settled = idle(s.pod, c.Name), seen.Gone
	case !seen.Started:
		v.Why, v.Settled = "not started: "+startup.why(), v.Restart
	case readiness == nil:
		v.Ready, v.Why = true, "it runs, and has no readiness probe"
		v.Settled = liveness == nil || liveness.stays()
	default:
		v.Ready = readiness.id == seen.ID && readiness.State() == Success
		v.Why = readiness.why()
		v.Settled = readiness.stays() && (liveness == nil || liveness.stays())
	}
	if v.Restart {
		v.Settled = true
		if liveness != nil && liveness.State() == Failure {
			v.Why += "; and to be restarted: " + liveness.why()
		}
	}
	return v
}

// current returns a worker if it has the present container; one that has not
// ticked since that is there counts as new.
func (s *Session) current(container string, kind Kind, seen Container) *Worker {
	w := s.worker(container, kind)
	if w != nil && w.id != seen.ID {
		return NewWorker(kind, &w.probe)
	}
	return w
}

// why says what a probe's state comes from.
func (w *Worker) why() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s probe ", w.kind)
	switch {
	case w.answers == 0:
		b.WriteString("has not run")
		return b.String()
	case w.answer.Err != nil:
		fmt.Fprintf(&b, "could not be run, which counts for nothing: %s", cause(w.answer.Err))
		return b.String()
	case w.settled && w.state == Success:
		b.WriteString("succeeds")
	case w.settled:
		b.WriteString("fails")
	default:
		b.WriteString("has not decided")
	}
	run := w.run
	threshold, noun := w.probe.SuccessThreshold, "success"
	if w.last == Failure {
		threshold, noun = w.probe.FailureThreshold, "failure"
	}
	if w.hold {
		run = int(threshold) // it was set back when it decided
	}
	fmt.Fprintf(&b, ": %s, %d in a row of %d needed", noun, run, threshold)
	if w.last == Failure && w.answer.Output != "" {
		b.WriteString(": " + brief(w.answer.Output))
	}
	return b.String()
}

// Need returns how long it takes from now at most until the verdict is settled,
// if answers come as slowly as they may and the containers run. Without probes
// it is 0.
func (s *Session) Need(now time.Time) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	var most time.Duration
	for _, c := range probed(s.pod) {
		seen := s.see(c)
		var started, rest time.Duration
		for _, l := range s.loops {
			if l.container.Name != c.Name || seen.Started && l.worker.kind == Startup {
				continue
			}
			w := l.worker
			delay := time.Duration(w.probe.InitialDelaySeconds) * time.Second
			if seen.Running {
				delay = max(0, delay-now.Sub(seen.StartedAt))
			}
			need := delay + w.patience()
			if w.kind == Startup {
				started = need
			} else {
				rest = max(rest, need)
			}
		}
		most = max(most, started+rest)
	}
	return most
}

// Patience returns how long the kubelet may take to come to the same verdict
// after the session has: all its thresholds once more.
func (s *Session) Patience() time.Duration {
	var most time.Duration
	for _, l := range s.loops {
		most = max(most, l.worker.patience())
	}
	return most + 2*time.Second // until it has told the API server, on a busy machine
}

// patience is how long a threshold takes to be reached, either of them: a run
// that takes longer than a period delays the next one.
func (w *Worker) patience() time.Duration {
	runs := time.Duration(max(w.probe.SuccessThreshold, w.probe.FailureThreshold) + 1)
	return runs * max(w.Period(), maxTries*w.Timeout())
}

// HeaderText is the line above those of WriteText, for a terminal.
func HeaderText() string { return line("SINCE START", "CONTAINER", "PROBE", "TOOK", "COUNT", "ANSWER") }

// WriteText writes an event as one line.
func (e Event) WriteText(w io.Writer) error {
	since := "-"
	if e.Since != 0 {
		since = fmt.Sprintf("%+.1fs", e.Since)
	}
	if e.Waits != "" {
		_, err := io.WriteString(w, line(since, e.Container, string(e.Probe), "-", "-", "waits: "+e.Waits))
		return err
	}
	count := "-"
	switch {
	case e.Error != "":
		count = "nothing"
	case e.Count != nil:
		of := "of"
		if e.Count.Run > e.Count.Threshold {
			of = ">"
		}
		count = fmt.Sprintf("%s %d %s %d", e.Count.Result, e.Count.Run, of, e.Count.Threshold)
	}
	text := fmt.Sprintf("%s: %s", e.Handler, e.Answer)
	switch {
	case e.Error != "":
		text = fmt.Sprintf("%s: could not be run: %s", e.Handler, e.Error)
	case e.Output != "":
		text += ": " + e.Output
	}
	if e.Count != nil && e.Count.Changed {
		text += fmt.Sprintf(" (%s)", consequence(e.Probe, e.Count.Result))
	}
	took := fmt.Sprintf("%.0fms", e.Took*1000)
	_, err := io.WriteString(w, line(since, e.Container, string(e.Probe), took, count, text))
	return err
}

func consequence(kind Kind, result Result) string {
	failed := result == Failure
	switch {
	case kind == Readiness && failed:
		return "not ready"
	case kind == Readiness:
		return "ready"
	case failed:
		return "to be restarted"
	case kind == Startup:
		return "started"
	default:
		return "alive"
	}
}

func line(since, container, kind, took, count, text string) string {
	return fmt.Sprintf("%11s  %-12s  %-9s  %7s  %-14s  %s\n", since, container, kind, took, count, text)
}

// WriteText writes the verdict.
func (v Verdict) WriteText(w io.Writer) error {
	var b strings.Builder
	is, sure := "is", ""
	if !v.Ready {
		is = "is not"
	}
	if !v.Settled {
		sure = " (so far: not all thresholds are reached)"
	}
	fmt.Fprintf(&b, "Pod %s/%s %s ready%s\n", v.Namespace, v.Pod, is, sure)
	for _, why := range v.Why {
		fmt.Fprintf(&b, "  %s\n", why)
	}
	for _, c := range v.Containers {
		if c.Restarts > 0 || c.Wanted > 0 {
			fmt.Fprintf(&b, "  container %s: restarted %d times meanwhile; its probes asked for %d\n", c.Name, c.Restarts, c.Wanted)
		}
	}
	if len(v.Differences) == 0 {
		b.WriteString("the kubelet says the same\n")
	}
	for _, d := range v.Differences {
		fmt.Fprintf(&b, "differs: %s\n", d)
	}
	_, err := io.WriteString(w, b.String())
	return err
}
