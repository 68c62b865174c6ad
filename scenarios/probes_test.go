// Scenario probes: lab/probe comes to the same verdicts as the kubelet.
//
// Given containers with each kind of probe and of handler, each threshold and
// each way to fail, on a node for each version of the kubelet that the cluster
// has, when they start, then their Ready, Started and restarts, as the kubelet
// reports them, follow those of lab/probe, which runs the same probes beside it,
// and both are what the rules say.

package scenarios

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/e2e-framework/pkg/envconf"
	"sigs.k8s.io/e2e-framework/pkg/features"

	"github.com/dra-lab/dra-lab/lab/probe"
	"github.com/dra-lab/dra-lab/lab/probe/reach"
	"github.com/dra-lab/dra-lab/scenarios/internal/stage"
)

// probeCase is a container, and what becomes of it.
type probeCase struct {
	name string
	// plan is what its server does; see package target of the trainer.
	plan    string
	options []string
	probes  func(p ports) corev1.Container
	// ready is the course of Ready; a container begins with false. Nothing in it
	// waits for a time: sets has the plans that begin when both sides have seen so
	// much of the course.
	ready []bool
	sets  map[int]string
	// started is false if it never gets there.
	started bool
	// restarted says that it is restarted after that. Of more there is no course,
	// because the kubelet may report the end of one container and the beginning of
	// the next in one.
	restarted bool
	// byItself says that it ends by itself, and no probe asks for it.
	byItself bool
}

// ports are those of one container: all of a Pod share one network.
type ports struct{ http, https, tcp, grpc int }

func portsOf(i int) ports { return ports{8000 + i, 8100 + i, 8200 + i, 8300 + i} }

// Patient enough for a busy machine, where being slow is not what is tried.
const patient = 4

func httpProbe(p ports, path string) *corev1.Probe {
	return quick(corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Port: intstr.FromInt(p.http), Path: path}})
}

func tcpProbe(p ports) *corev1.Probe {
	return quick(corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt(p.tcp)}})
}

func grpcProbe(p ports, service string) *corev1.Probe {
	return quick(corev1.ProbeHandler{GRPC: &corev1.GRPCAction{Port: int32(p.grpc), Service: &service}})
}

func execProbe(command ...string) *corev1.Probe {
	p := quick(corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: command}})
	p.PeriodSeconds = 2 // a process each time, twice
	return p
}

func askProbe(p ports) *corev1.Probe {
	return execProbe("/trainer", "target", "-ask", fmt.Sprintf("http://127.0.0.1:%d/", p.http))
}

func quick(h corev1.ProbeHandler) *corev1.Probe {
	return &corev1.Probe{ProbeHandler: h, PeriodSeconds: 1, TimeoutSeconds: patient}
}

func impatient(p *corev1.Probe) *corev1.Probe { p.TimeoutSeconds = 1; return p }

func readiness(p *corev1.Probe) corev1.Container { return corev1.Container{ReadinessProbe: p} }

// probeCases are tried on every kubelet.
func probeCases() []probeCase {
	yes, never, late := []bool{true}, []bool(nil), map[int]string{0: "ok@0s"}
	thresholds := func(p *corev1.Probe, success, failure int32) *corev1.Probe {
		p.SuccessThreshold, p.FailureThreshold = success, failure
		return p
	}
	return []probeCase{
		{name: "none", plan: "ok@0s", ready: yes, started: true, probes: func(ports) corev1.Container { return corev1.Container{} }},
		{name: "http-late", plan: "fail@0s", sets: late, ready: yes, started: true, probes: func(p ports) corev1.Container { return readiness(httpProbe(p, "/")) }},
		{name: "http-named-port", plan: "ok@0s", ready: yes, started: true, probes: func(p ports) corev1.Container {
			c := readiness(httpProbe(p, "/?query"))
			c.Ports = []corev1.ContainerPort{{Name: "web", ContainerPort: int32(p.http)}}
			c.ReadinessProbe.HTTPGet.Port = intstr.FromString("web")
			return c
		}},
		{name: "http-slow", plan: "slow=10s@0s", ready: never, started: true, probes: func(p ports) corev1.Container { return readiness(impatient(httpProbe(p, "/"))) }},
		{name: "http-redirect", plan: "redirect=/ok@0s", ready: yes, started: true, probes: func(p ports) corev1.Container { return readiness(httpProbe(p, "/")) }},
		{name: "http-redirect-away", plan: "redirect=http://elsewhere.example/@0s", ready: yes, started: true,
			probes: func(p ports) corev1.Container { return readiness(httpProbe(p, "/")) }},
		{name: "http-large", plan: "large@0s", ready: yes, started: true, probes: func(p ports) corev1.Container { return readiness(httpProbe(p, "/")) }},
		{name: "https", plan: "fail@0s", sets: late, ready: yes, started: true, probes: func(p ports) corev1.Container {
			c := readiness(httpProbe(p, "/"))
			c.ReadinessProbe.HTTPGet.Port, c.ReadinessProbe.HTTPGet.Scheme = intstr.FromInt(p.https), corev1.URISchemeHTTPS
			return c
		}},
		{name: "tcp-late", plan: "fail@0s", sets: late, ready: yes, started: true, probes: func(p ports) corev1.Container { return readiness(tcpProbe(p)) }},
		{name: "tcp-refused", plan: "fail@0s", ready: never, started: true, probes: func(p ports) corev1.Container { return readiness(tcpProbe(p)) }},
		{name: "grpc-late", plan: "fail@0s", sets: late, ready: yes, started: true, probes: func(p ports) corev1.Container { return readiness(grpcProbe(p, "any")) }},
		{name: "grpc-unheard", plan: "ok@0s", ready: never, started: true, probes: func(p ports) corev1.Container { return readiness(grpcProbe(p, "unheard")) }},
		{name: "grpc-bare", plan: "ok@0s", options: []string{"-bare"}, ready: never, started: true, probes: func(p ports) corev1.Container { return readiness(grpcProbe(p, "")) }},
		{name: "exec-late", plan: "fail@0s", sets: late, ready: yes, started: true, probes: func(p ports) corev1.Container { return readiness(askProbe(p)) }},
		{name: "exec-slow", plan: "slow=10s@0s", ready: never, started: true, probes: func(p ports) corev1.Container { return readiness(impatient(askProbe(p))) }},
		// A command that cannot be run is no failure: never ready, never restarted.
		{name: "exec-missing", plan: "ok@0s", ready: never, started: true, probes: func(ports) corev1.Container {
			return corev1.Container{ReadinessProbe: execProbe("/missing"), LivenessProbe: thresholds(execProbe("/missing"), 1, 1)}
		}},
		{name: "thresholds", plan: "ok@0s", sets: map[int]string{1: "fail@0s", 2: "ok@0s"}, ready: []bool{true, false, true}, started: true,
			probes: func(p ports) corev1.Container { return readiness(thresholds(httpProbe(p, "/"), 2, 2)) }},
		{name: "threshold-not-reached", plan: "ok@0s", sets: map[int]string{1: "fail@0s,ok@2s"}, ready: yes, started: true,
			probes: func(p ports) corev1.Container { return readiness(thresholds(httpProbe(p, "/"), 1, 9)) }},
		{name: "startup-gate", plan: "fail@0s", sets: late, ready: yes, started: true, probes: func(p ports) corev1.Container {
			return corev1.Container{StartupProbe: thresholds(httpProbe(p, "/"), 1, 60), ReadinessProbe: httpProbe(p, "/ok"), LivenessProbe: thresholds(tcpProbe(p), 1, 3)}
		}},
		{name: "delay", plan: "ok@0s", ready: yes, started: true, probes: func(p ports) corev1.Container {
			c := readiness(httpProbe(p, "/"))
			c.ReadinessProbe.InitialDelaySeconds = 5
			return c
		}},
		{name: "startup-fails", plan: "fail@0s", ready: never, started: false, restarted: true, probes: func(p ports) corev1.Container {
			return corev1.Container{StartupProbe: thresholds(tcpProbe(p), 1, 3), ReadinessProbe: httpProbe(p, "/ok")}
		}},
		{name: "liveness-fails", plan: "ok@0s", sets: map[int]string{1: "fail@0s"}, ready: yes, started: true, restarted: true, probes: func(p ports) corev1.Container {
			return corev1.Container{LivenessProbe: thresholds(httpProbe(p, "/"), 1, 2)}
		}},
		{name: "ends-by-itself", plan: "ok@0s", sets: map[int]string{1: "ok@0s,exit=1@1s"}, ready: yes, started: true, restarted: true, byItself: true,
			probes: func(p ports) corev1.Container { return readiness(thresholds(httpProbe(p, "/"), 3, 3)) }},
	}
}

// chosenCases are all, or a few of each kind where time is short.
func chosenCases(short bool) []probeCase {
	few := []string{"http-late", "http-redirect-away", "tcp-late", "grpc-late", "exec-late", "exec-missing", "startup-gate", "liveness-fails"}
	return slices.DeleteFunc(probeCases(), func(c probeCase) bool { return short && !slices.Contains(few, c.name) })
}

const (
	// observed is how long nothing else may happen at the end: what is to fail has
	// failed then, and what is to stay has stayed.
	observed = 6 * time.Second
	// seen is how long the answers go on that a plan begins with.
	seen = 2 * time.Second
	// verdictsTime bounds the wait for all of them. It takes less than half of it
	// on a machine that is not busy.
	verdictsTime = 2 * time.Minute
	// perPod is how many containers a Pod has: the kubelet starts them one by one,
	// and reports none before the last.
	perPod = 6
)

type probes struct {
	*stage.Stage
	kubelets []stage.Kubelet
	watched  []*watched
}

func TestProbes(t *testing.T) {
	s := &probes{Stage: stage.New(t, "probes")}
	s.Play(t, features.New("probes").
		Setup(s.Begin).
		Setup(s.find).
		Assess("lab/probe and the kubelet see the same", s.compare))
}

func (s *probes) find(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
	var err error
	if s.kubelets, err = s.Kubelets(ctx); err != nil {
		t.Fatal(err)
	}
	return ctx
}

func (s *probes) compare(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	for _, k := range s.kubelets {
		prober, end, err := s.Prober(ctx, k.Node)
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := end(); err != nil {
				t.Error(err)
			}
		}()
		for cases := range slices.Chunk(chosenCases(testing.Short()), perPod) {
			w, err := s.watch(ctx, k, prober, fmt.Sprintf("probes-%d", len(s.watched)), cases, &running)
			if err != nil {
				t.Fatal(err)
			}
			s.watched = append(s.watched, w)
		}
	}
	deadline := time.After(verdictsTime)
	look := time.NewTicker(100 * time.Millisecond)
	defer look.Stop()
	for {
		var missing []string
		for _, w := range s.watched {
			if err := w.advance(ctx); err != nil {
				t.Fatal(err)
			}
			missing = append(missing, w.missing()...)
		}
		if len(missing) == 0 {
			break
		}
		select {
		case <-look.C:
			continue
		case <-ctx.Done():
			t.Fatal(context.Cause(ctx))
		case <-deadline:
		}
		t.Fatalf("not within %s:\n%s", verdictsTime, strings.Join(missing, "\n"))
	}
	for _, w := range s.watched {
		w.report(t)
	}
	return ctx
}

// watched is a Pod on one kubelet, with what was seen of it from both sides.
type watched struct {
	kubelet stage.Kubelet
	cases   []probeCase
	session *probe.Session
	prober  probe.Prober
	set     map[string]int       // by container: how many plans were set
	setAt   map[string]time.Time // and when the last one was

	mu    sync.Mutex
	podIP string
	seen  map[string]*course // the kubelet's, by container
	mine  map[string]*course // the session's
	began map[string]time.Time
	ended error // of the watch
}

// course is what became of one container.
type course struct {
	ready    []bool
	at       []time.Time
	started  bool
	restarts int
	wanted   int           // only the session's
	second   time.Duration // from the start of the second container until it was ready; 0: it was not
}

// note adds the state at a time. A container begins as not ready.
func (c *course) note(now time.Time, ready bool) {
	last := len(c.ready) > 0 && c.ready[len(c.ready)-1]
	if ready != last {
		c.ready, c.at = append(c.ready, ready), append(c.at, now)
	}
}

// watch creates the Pod for a kubelet, and follows it from both sides.
func (s *probes) watch(ctx context.Context, k stage.Kubelet, prober probe.Prober, name string, cases []probeCase, running *sync.WaitGroup) (*watched, error) {
	w := &watched{kubelet: k, cases: cases, prober: prober, set: map[string]int{}, setAt: map[string]time.Time{},
		seen: map[string]*course{}, mine: map[string]*course{}, began: map[string]time.Time{}}
	pod := &corev1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Name: name},
	}
	pod.Spec.NodeName = k.Node
	grace, no := int64(1), false
	pod.Spec.TerminationGracePeriodSeconds, pod.Spec.AutomountServiceAccountToken, pod.Spec.EnableServiceLinks = &grace, &no, &no
	for i, c := range w.cases {
		p := portsOf(i)
		container := c.probes(p)
		container.Name, container.Image = c.name, "trainer"
		container.Args = append([]string{"target", "-plan", c.plan, "-http", fmt.Sprintf(":%d", p.http), "-https", fmt.Sprintf(":%d", p.https),
			"-tcp", fmt.Sprintf(":%d", p.tcp), "-grpc", fmt.Sprintf(":%d", p.grpc)}, c.options...)
		pod.Spec.Containers = append(pod.Spec.Containers, container)
		w.seen[c.name], w.mine[c.name] = &course{}, &course{}
	}
	data, err := json.Marshal(pod)
	if err != nil {
		return nil, err
	}
	if err := s.Create(ctx, data); err != nil {
		return nil, err
	}
	created, err := s.Client.CoreV1().Pods(s.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	w.session, err = probe.NewSession(created, probe.Config{Prober: prober, UserAgent: probe.UserAgent(k.Version)})
	if err != nil {
		return nil, err
	}
	running.Go(func() { w.session.Run(ctx) })
	running.Go(func() {
		err := reach.Follow(ctx, s.Client, created, func(now *corev1.Pod) {
			w.session.Update(now)
			w.noteKubelets(now)
		})
		w.mu.Lock()
		defer w.mu.Unlock()
		if ctx.Err() == nil {
			w.ended = err
		}
	})
	running.Go(func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-w.session.Changed():
				w.noteMine(w.session.Verdict())
			}
		}
	})
	return w, nil
}

func (w *watched) noteKubelets(pod *corev1.Pod) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	w.podIP = pod.Status.PodIP
	for _, status := range pod.Status.ContainerStatuses {
		c := w.seen[status.Name]
		c.note(now, status.Ready)
		c.started, c.restarts = status.Started != nil && *status.Started, int(status.RestartCount)
		if running := status.State.Running; running != nil {
			w.began[status.Name] = running.StartedAt.Time
			c.noteSecond(now, status.Ready, c.restarts, running.StartedAt.Time)
		}
	}
}

func (w *watched) noteMine(v probe.Verdict) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	for _, judged := range v.Containers {
		c := w.mine[judged.Name]
		c.note(now, judged.Ready)
		c.started, c.restarts, c.wanted = judged.Started, judged.Restarts, judged.Wanted
		c.noteSecond(now, judged.Ready, judged.Restarts, w.began[judged.Name])
	}
}

func (c *course) noteSecond(now time.Time, ready bool, restarts int, started time.Time) {
	if ready && restarts == 1 && c.second == 0 {
		c.second = now.Sub(started)
	}
}

// advance begins the next plan of each container whose course both sides have
// seen so far.
func (w *watched) advance(ctx context.Context) error {
	for i, c := range w.cases {
		plan, target, due := w.due(i, c)
		if !due {
			continue
		}
		target.Handler = corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{
			Port: intstr.FromInt(portsOf(i).http), Path: "/set?" + url.Values{"plan": {plan}}.Encode(),
		}}
		if a := probe.Try(ctx, w.prober, target); a.Err != nil || a.Result != probe.Success {
			return fmt.Errorf("set plan %s of container %s: %s %s: %w", plan, c.name, a.Result, a.Output, a.Err)
		}
		w.set[c.name]++
		w.setAt[c.name] = time.Now()
	}
	return nil
}

// due is the plan that is to begin, if one is.
func (w *watched) due(i int, c probeCase) (plan string, target probe.Target, due bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	began := w.began[c.name]
	// Plans are set in the order of their places in the course.
	places := slices.Sorted(maps.Keys(c.sets))
	if began.IsZero() || w.set[c.name] == len(places) {
		return "", target, false
	}
	place := places[w.set[c.name]]
	so := c.ready[:place]
	if !slices.Equal(w.seen[c.name].ready, so) || !slices.Equal(w.mine[c.name].ready, so) || time.Since(w.changed(c.name)) < seen {
		return "", target, false
	}
	return c.sets[place], probe.Target{PodIP: w.podIP, Timeout: patient * time.Second, Container: corev1.Container{Name: c.name}}, true
}

// changed is when something began that has an effect: the container, or a plan.
func (w *watched) changed(container string) time.Time {
	if at, ok := w.setAt[container]; ok {
		return at
	}
	return w.began[container]
}

// missing says what has not been seen yet of what is to be seen, by container.
func (w *watched) missing() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ended != nil {
		return []string{fmt.Sprintf("kubelet %s: %v", w.kubelet.Version, w.ended)}
	}
	var all []string
	for _, c := range w.cases {
		kubelets, mine := w.seen[c.name], w.mine[c.name]
		miss := func(format string, a ...any) {
			all = append(all, fmt.Sprintf("kubelet %s, %s: %s", w.kubelet.Version, c.name, fmt.Sprintf(format, a...)))
		}
		if w.began[c.name].IsZero() {
			miss("it does not run")
			continue
		}
		if n := len(c.sets) - w.set[c.name]; n > 0 {
			miss("%d plans are to begin; course of ready: %v for the kubelet, %v for lab/probe", n, kubelets.ready, mine.ready)
			continue
		}
		first := func(course []bool) []bool { return course[:min(len(course), len(c.ready))] }
		switch {
		case c.restarted:
			if kubelets.restarts == 0 || (mine.wanted == 0) != c.byItself {
				miss("%d restarts, %d that lab/probe asked for", kubelets.restarts, mine.wanted)
			}
			if !slices.Equal(first(kubelets.ready), c.ready) || !slices.Equal(first(mine.ready), c.ready) {
				miss("course of ready: %v for the kubelet, %v for lab/probe; want it to begin with %v", kubelets.ready, mine.ready, c.ready)
			}
			if c.byItself && (kubelets.second == 0 || mine.second == 0) {
				miss("its second container is not ready (kubelet: %s, lab/probe: %s)", kubelets.second, mine.second)
			}
		default:
			if since := time.Since(w.changed(c.name)); since < observed {
				miss("observed for %s only", since.Round(time.Second))
			}
			if !slices.Equal(kubelets.ready, c.ready) || !slices.Equal(mine.ready, c.ready) {
				miss("course of ready: %v for the kubelet, %v for lab/probe; want %v", kubelets.ready, mine.ready, c.ready)
			}
			if kubelets.started != c.started || mine.started != c.started {
				miss("started: %v for the kubelet, %v for lab/probe; want %v", kubelets.started, mine.started, c.started)
			}
			if kubelets.restarts != 0 || mine.wanted != 0 {
				miss("%d restarts, %d that lab/probe asked for; want none", kubelets.restarts, mine.wanted)
			}
		}
	}
	return all
}

// report shows the courses, with by how much lab/probe was later than the
// kubelet: they tick at different times, so within a threshold, longer on a busy
// machine.
func (w *watched) report(t *testing.T) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.cases {
		kubelets, mine := w.seen[c.name], w.mine[c.name]
		var text []string
		for i, ready := range c.ready {
			text = append(text, fmt.Sprintf("%v (%+.1f s)", ready, mine.at[i].Sub(kubelets.at[i]).Seconds()))
		}
		if len(text) == 0 {
			text = []string{"never"}
		}
		if c.restarted {
			text = append(text, fmt.Sprintf("restarted %d times, lab/probe asked for %d", kubelets.restarts, mine.wanted))
		}
		if c.byItself {
			text = append(text, fmt.Sprintf("ready again %.1f s after its start, for lab/probe after %.1f s", kubelets.second.Seconds(), mine.second.Seconds()))
		}
		t.Logf("kubelet %s, %s: ready: %s", w.kubelet.Version, c.name, strings.Join(text, ", "))
	}
}
