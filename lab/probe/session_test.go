package probe

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// script is a Prober that answers by the time since it was made.
type script struct {
	start  time.Time
	answer func(t Target, since time.Duration) Answer
	asked  []time.Duration
}

func (s *script) Probe(_ context.Context, t Target) Answer {
	since := time.Since(s.start)
	s.asked = append(s.asked, since)
	return s.answer(t, since)
}

// by answers a probe by the word that its command has; others succeed.
func by(answers map[string]func(time.Duration) Answer) func(Target, time.Duration) Answer {
	return func(t Target, since time.Duration) Answer {
		a := yes
		if answer := answers[t.Handler.Exec.Command[0]]; answer != nil {
			a = answer(since)
		}
		a.Handler = "exec " + t.Handler.Exec.Command[0]
		return a
	}
}

func from(second int) func(time.Duration) Answer {
	return func(since time.Duration) Answer {
		if since < time.Duration(second)*time.Second {
			return Answer{Result: Failure, Output: "not yet"}
		}
		return yes
	}
}

func never(time.Duration) Answer { return Answer{Result: Failure, Output: "no"} }

func execProbe(word string, change func(*corev1.Probe)) *corev1.Probe {
	p := &corev1.Probe{PeriodSeconds: 1, ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{word}}}}
	if change != nil {
		change(p)
	}
	return p
}

// aPod is a Pod whose containers run since now.
func aPod(containers ...corev1.Container) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "pod"}, Spec: corev1.PodSpec{Containers: containers, NodeName: "node"}}
	pod.Status.Phase = corev1.PodRunning
	for _, c := range containers {
		started := c.StartupProbe == nil
		pod.Status.ContainerStatuses = append(pod.Status.ContainerStatuses, corev1.ContainerStatus{
			Name: c.Name, ContainerID: "containerd://" + c.Name + "-1", Started: &started,
			State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.Now()}},
		})
	}
	return pod
}

// during runs a session for some time and calls f, within it.
func during(t *testing.T, pod *corev1.Pod, answer func(Target, time.Duration) Answer, d time.Duration, f func(*Session)) (*Session, *script) {
	t.Helper()
	prober := &script{start: time.Now(), answer: answer}
	s, err := NewSession(pod, Config{Prober: prober})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { s.Run(ctx); close(done) }()
	if f != nil {
		f(s)
	}
	time.Sleep(d) // of the bubble: no time passes
	synctest.Wait()
	cancel()
	<-done
	return s, prober
}

func TestVerdicts(t *testing.T) {
	for _, c := range []struct {
		name      string
		container corev1.Container
		answers   map[string]func(time.Duration) Answer
		after     time.Duration
		want      ContainerVerdict
	}{
		{
			name: "no readiness probe: ready when it runs (UpdatePodStatus)", container: corev1.Container{}, after: time.Second,
			want: ContainerVerdict{Started: true, Ready: true, Settled: true, Why: "it runs, and has no readiness probe"},
		},
		{
			name: "readiness succeeds", container: corev1.Container{ReadinessProbe: execProbe("ready", nil)}, after: 500 * time.Millisecond,
			want: ContainerVerdict{Started: true, Ready: true, Settled: true, Why: "readiness probe succeeds: success, 1 in a row of 1 needed"},
		},
		{
			name: "readiness fails, threshold not reached", container: corev1.Container{ReadinessProbe: execProbe("ready", func(p *corev1.Probe) { p.FailureThreshold = 9 })},
			answers: map[string]func(time.Duration) Answer{"ready": never}, after: 3500 * time.Millisecond,
			// Five: one more at once, because the first state is new to the kubelet.
			want: ContainerVerdict{Started: true, Why: "readiness probe has not decided: failure, 5 in a row of 9 needed: no"},
		},
		{
			name: "readiness fails", container: corev1.Container{ReadinessProbe: execProbe("ready", nil)},
			answers: map[string]func(time.Duration) Answer{"ready": never}, after: 1500 * time.Millisecond,
			want: ContainerVerdict{Started: true, Settled: true, Why: "readiness probe fails: failure, 3 in a row of 3 needed: no"},
		},
		{
			name:      "the startup probe keeps the others back",
			container: corev1.Container{StartupProbe: execProbe("start", func(p *corev1.Probe) { p.FailureThreshold = 30 }), ReadinessProbe: execProbe("ready", nil)},
			answers:   map[string]func(time.Duration) Answer{"start": from(5)}, after: 4500 * time.Millisecond,
			want: ContainerVerdict{Why: "not started: startup probe has not decided: failure, 5 in a row of 30 needed: not yet"},
		},
		{
			name:      "when it has succeeded, readiness runs at once",
			container: corev1.Container{StartupProbe: execProbe("start", func(p *corev1.Probe) { p.FailureThreshold = 30 }), ReadinessProbe: execProbe("ready", func(p *corev1.Probe) { p.PeriodSeconds = 60 })},
			answers:   map[string]func(time.Duration) Answer{"start": from(5)}, after: 5500 * time.Millisecond,
			want: ContainerVerdict{Started: true, Ready: true, Settled: true, Why: "readiness probe succeeds: success, 1 in a row of 1 needed"},
		},
		{
			name:      "a startup probe that fails asks for a restart",
			container: corev1.Container{StartupProbe: execProbe("start", func(p *corev1.Probe) { p.FailureThreshold = 2 })},
			answers:   map[string]func(time.Duration) Answer{"start": never}, after: 3 * time.Second,
			want: ContainerVerdict{Settled: true, Restart: true, Wanted: 1, Why: "not started: startup probe fails: failure, 2 in a row of 2 needed: no"},
		},
		{
			name:      "so does a liveness probe, once per container",
			container: corev1.Container{LivenessProbe: execProbe("live", nil)},
			answers:   map[string]func(time.Duration) Answer{"live": never}, after: 20 * time.Second,
			want: ContainerVerdict{Started: true, Ready: true, Settled: true, Restart: true, Wanted: 1,
				Why: "it runs, and has no readiness probe; and to be restarted: liveness probe fails: failure, 3 in a row of 3 needed: no"},
		},
		{
			name:      "a handler that cannot be run decides nothing",
			container: corev1.Container{ReadinessProbe: execProbe("ready", nil)},
			answers:   map[string]func(time.Duration) Answer{"ready": func(time.Duration) Answer { return fault }}, after: 10 * time.Second,
			want: ContainerVerdict{Started: true, Settled: true, Why: "readiness probe could not be run, which counts for nothing: cannot be run"},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c.container.Name = "app"
				s, _ := during(t, aPod(c.container), by(c.answers), c.after, nil)
				got := s.Verdict().Containers[0]
				got.Name, got.Kubelet = "", KubeletsStatus{}
				if diff := cmp.Diff(c.want, got); diff != "" {
					t.Errorf("verdict (-want +got):\n%s", diff)
				}
			})
		})
	}
}

// The second article's probe: 20 s of delay, every 10 s, three successes.
func TestTheArticlesProbeIsNotReadyBefore40Seconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := corev1.Container{Name: "app", ReadinessProbe: execProbe("ready", func(p *corev1.Probe) {
			p.InitialDelaySeconds, p.PeriodSeconds, p.SuccessThreshold = 20, 10, 3
		})}
		var readyAt float64
		prober := &script{start: time.Now(), answer: by(nil)}
		s, err := NewSession(aPod(c), Config{Prober: prober, Emit: func(e Event) {
			if e.Count != nil && e.Count.Reached && readyAt == 0 {
				readyAt = e.Since
			}
		}})
		if err != nil {
			t.Fatal(err)
		}
		if need := s.Need(time.Now()); need < 50*time.Second || need > 70*time.Second {
			t.Errorf("it may need %s, want about a minute", need)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		s.Run(ctx)
		if readyAt != 40 {
			t.Errorf("ready after %.1f s, want 40", readyAt)
		}
		if got := prober.asked[0]; got != 20*time.Second {
			t.Errorf("first attempt after %s, want 20s", got)
		}
	})
}

func TestANewContainerBeginsAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pod := aPod(corev1.Container{
			Name: "app", StartupProbe: execProbe("start", nil), LivenessProbe: execProbe("live", func(p *corev1.Probe) { p.FailureThreshold = 1 }),
		})
		live := func(since time.Duration) Answer {
			if since > 2*time.Second && since < 4*time.Second {
				return no
			}
			return yes
		}
		s, _ := during(t, pod, by(map[string]func(time.Duration) Answer{"live": live}), 5*time.Second, func(s *Session) {
			time.Sleep(3500 * time.Millisecond)
			v := s.Verdict()
			if !v.Containers[0].Restart || !slices.ContainsFunc(v.Differences, func(d string) bool { return strings.Contains(d, "ask for a restart") }) {
				t.Errorf("after the failure: %+v, want that a restart is asked for and missed", v)
			}
			// As the kubelet does then.
			next := pod.DeepCopy()
			status := &next.Status.ContainerStatuses[0]
			status.ContainerID, status.RestartCount = "containerd://app-2", 1
			status.State.Running.StartedAt = metav1.Now()
			s.Update(next)
		})
		got := s.Verdict().Containers[0]
		if !got.Started || got.Restart || got.Wanted != 1 || got.Restarts != 1 {
			t.Errorf("after the restart: %+v, want started, and one restart that was asked for", got)
		}
	})
}

func TestAStartedContainerIsNotStartedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pod := aPod(corev1.Container{Name: "app", StartupProbe: execProbe("start", nil), ReadinessProbe: execProbe("ready", nil)})
		*pod.Status.ContainerStatuses[0].Started = true
		s, _ := during(t, pod, by(map[string]func(time.Duration) Answer{"start": never}), 10*time.Second, nil)
		if got := s.Verdict().Containers[0]; !got.Started || !got.Ready {
			t.Errorf("verdict %+v, want started and ready: the kubelet has seen the startup probe succeed", got)
		}
	})
}

func TestThePodsReadiness(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		always := corev1.ContainerRestartPolicyAlways
		pod := aPod(
			corev1.Container{Name: "good", ReadinessProbe: execProbe("good", nil)},
			corev1.Container{Name: "bad", ReadinessProbe: execProbe("bad", func(p *corev1.Probe) { p.FailureThreshold = 1 })},
		)
		pod.Spec.InitContainers = []corev1.Container{{Name: "once"}, {Name: "beside", RestartPolicy: &always, ReadinessProbe: execProbe("beside", nil)}}
		pod.Status.InitContainerStatuses = []corev1.ContainerStatus{{Name: "beside", ContainerID: "x", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff", Message: "back-off 10s"}}}}
		pod.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: "example/gate"}}
		pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
		pod.Status.ContainerStatuses[0].Ready = true
		s, _ := during(t, pod, by(map[string]func(time.Duration) Answer{"bad": never}), 2*time.Second, nil)
		v := s.Verdict()
		wantWhy := []string{
			"container bad: readiness probe fails: failure, 4 in a row of 1 needed: no",
			"container beside: it waits: CrashLoopBackOff: back-off 10s",
			"readiness gate example/gate: the Pod has no such condition",
		}
		if diff := cmp.Diff(wantWhy, v.Why); diff != "" || v.Ready || v.Settled {
			t.Errorf("ready %v, settled %v, reasons (-want +got):\n%s", v.Ready, v.Settled, diff)
		}
		if diff := cmp.Diff([]string{"Ready is true for the kubelet, false here"}, v.Differences); diff != "" {
			t.Errorf("differences (-want +got):\n%s", diff)
		}
		// Of one container only that counts.
		alone, err := NewSession(pod, Config{Container: "good"})
		if err != nil {
			t.Fatal(err)
		}
		if got := alone.Verdict(); len(got.Containers) != 1 || len(got.Why) != 1 || !strings.HasPrefix(got.Why[0], "container good") {
			t.Errorf("verdict on one container: %+v", got)
		}
		if _, err := NewSession(pod, Config{Container: "once"}); err == nil || !strings.Contains(err.Error(), "good, bad, beside") {
			t.Errorf("a container without probes: %v, want an error that lists the others", err)
		}
	})
}

func TestOnceRunsEverythingNow(t *testing.T) {
	pod := aPod(corev1.Container{
		Name: "app", StartupProbe: execProbe("start", nil), LivenessProbe: execProbe("live", nil),
		ReadinessProbe: execProbe("ready", func(p *corev1.Probe) { p.InitialDelaySeconds, p.SuccessThreshold = 600, 9 }),
	})
	for _, c := range []struct {
		answers map[string]func(time.Duration) Answer
		want    bool
	}{
		{nil, true},
		{map[string]func(time.Duration) Answer{"live": never}, true},
		{map[string]func(time.Duration) Answer{"ready": never}, false},
		{map[string]func(time.Duration) Answer{"start": func(time.Duration) Answer { return fault }}, false},
	} {
		var told []string
		s, err := NewSession(pod, Config{Prober: &script{start: time.Now(), answer: by(c.answers)}, Emit: func(e Event) { told = append(told, e.Handler) }})
		if err != nil {
			t.Fatal(err)
		}
		if got := s.Once(t.Context()); got != c.want {
			t.Errorf("Once = %v, want %v", got, c.want)
		}
		if diff := cmp.Diff([]string{"exec start", "exec ready", "exec live"}, told); diff != "" {
			t.Errorf("attempts (-want +got):\n%s", diff)
		}
	}
}

func TestRestartPolicies(t *testing.T) {
	pod := func(p corev1.RestartPolicy) *corev1.Pod { return &corev1.Pod{Spec: corev1.PodSpec{RestartPolicy: p}} }
	own := func(p corev1.ContainerRestartPolicy, rules ...corev1.ContainerRestartRule) corev1.Container {
		return corev1.Container{RestartPolicy: &p, RestartPolicyRules: rules}
	}
	rule := corev1.ContainerRestartRule{Action: corev1.ContainerRestartRuleActionRestart, ExitCodes: &corev1.ContainerRestartRuleOnExitCodes{
		Operator: corev1.ContainerRestartRuleOnExitCodesOpIn, Values: []int32{42}}}
	for _, c := range []struct {
		pod       *corev1.Pod
		container corev1.Container
		code      int32
		want      bool
	}{
		{pod(corev1.RestartPolicyAlways), corev1.Container{}, 0, true},
		{pod(""), corev1.Container{}, 0, true},
		{pod(corev1.RestartPolicyOnFailure), corev1.Container{}, 0, false},
		{pod(corev1.RestartPolicyOnFailure), corev1.Container{}, 1, true},
		{pod(corev1.RestartPolicyNever), corev1.Container{}, 1, false},
		{pod(corev1.RestartPolicyNever), own(corev1.ContainerRestartPolicyAlways), 0, true},
		{pod(corev1.RestartPolicyAlways), own(corev1.ContainerRestartPolicyNever), 1, false},
		{pod(corev1.RestartPolicyAlways), own(corev1.ContainerRestartPolicyNever, rule), 42, true},
		{pod(corev1.RestartPolicyAlways), own(corev1.ContainerRestartPolicyNever, rule), 1, false},
	} {
		if got := restarts(c.pod, c.container, c.code); got != c.want {
			t.Errorf("%s, own %v, status %d: restarts %v, want %v", c.pod.Spec.RestartPolicy, c.container.RestartPolicy, c.code, got, c.want)
		}
	}
}

func TestText(t *testing.T) {
	var b bytes.Buffer
	for _, e := range []Event{
		{Container: "app", Probe: Readiness, Waits: "initial delay of 20s"},
		{Since: 20, Container: "app", Probe: Readiness, Handler: "TCP 10.0.0.1:80", Answer: Failure, Output: "connection refused", Took: 0.0012,
			Count: &Count{Result: Failure, Run: 1, Threshold: 3}},
		{Since: 30, Container: "app", Probe: Readiness, Handler: "TCP 10.0.0.1:80", Answer: Success, Took: 0.0012,
			Count: &Count{Result: Success, Run: 1, Threshold: 1, Reached: true, Changed: true}},
		{Since: 40, Container: "app", Probe: Readiness, Handler: "TCP 10.0.0.1:80", Answer: Success, Took: 0.0012,
			Count: &Count{Result: Success, Run: 2, Threshold: 1, Reached: true}},
		{Since: 31, Container: "app", Probe: Liveness, Handler: `exec ["x"]`, Answer: Unknown, Error: "no such file", Count: &Count{Discarded: true}},
	} {
		if err := e.WriteText(&b); err != nil {
			t.Fatal(err)
		}
	}
	want := `          -  app           readiness        -  -               waits: initial delay of 20s
     +20.0s  app           readiness      1ms  failure 1 of 3  TCP 10.0.0.1:80: failure: connection refused
     +30.0s  app           readiness      1ms  success 1 of 1  TCP 10.0.0.1:80: success (ready)
     +40.0s  app           readiness      1ms  success 2 > 1   TCP 10.0.0.1:80: success
     +31.0s  app           liveness       0ms  nothing         exec ["x"]: could not be run: no such file
`
	if diff := cmp.Diff(want, b.String()); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
	b.Reset()
	v := Verdict{Namespace: "ns", Pod: "pod", Why: []string{"container app: it is not running"}, Settled: true, Differences: []string{"Ready is true for the kubelet, false here"}}
	if err := v.WriteText(&b); err != nil {
		t.Fatal(err)
	}
	if want := "Pod ns/pod is not ready\n  container app: it is not running\ndiffers: Ready is true for the kubelet, false here\n"; b.String() != want {
		t.Errorf("verdict:\n%s\nwant:\n%s", b.String(), want)
	}
	if got := brief(strings.Repeat("ä\n", 300)); len(got) > maxBrief+3 || strings.Contains(got, "\n") {
		t.Errorf("brief of a long text: %q", got)
	}
}

// Verdict and Update may be called while the session runs.
func TestConcurrentUse(t *testing.T) {
	pod := aPod(corev1.Container{Name: "app", ReadinessProbe: execProbe("ready", nil), LivenessProbe: execProbe("live", nil)})
	s, err := NewSession(pod, Config{Prober: Handlers{Exec: func(context.Context, Target, []string) ([]byte, error) { return nil, errors.New("x") }}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { s.Run(ctx); close(done) }()
	for i := range 100 {
		next := pod.DeepCopy()
		next.Status.ContainerStatuses[0].ContainerID = fmt.Sprint(i)
		s.Update(next)
		s.Verdict()
		s.Need(time.Now())
	}
	cancel()
	<-done
}
