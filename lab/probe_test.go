package main

import (
	"context"
	"errors"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/dra-lab/dra-lab/lab/probe"
	"github.com/dra-lab/dra-lab/lab/probe/reach"
)

// probedPod runs one container with a readiness probe, of which the kubelet says
// this.
func probedPod(ready bool) *corev1.Pod {
	status, started := corev1.ConditionFalse, true
	if ready {
		status = corev1.ConditionTrue
	}
	handler := corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"check"}}}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "pod", UID: "1"},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "app", ReadinessProbe: &corev1.Probe{ProbeHandler: handler, PeriodSeconds: 1}}}},
		Status: corev1.PodStatus{
			Conditions: []corev1.PodCondition{{Type: corev1.ContainersReady, Status: status}, {Type: corev1.PodReady, Status: status}},
			ContainerStatuses: []corev1.ContainerStatus{{
				Name: "app", ContainerID: "x://1", Ready: ready, Started: &started,
				State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.Now()}},
			}},
		},
	}
}

// settled runs settle on a Pod whose probe succeeds, and change meanwhile.
func settled(t *testing.T, ctx context.Context, pod *corev1.Pod, timeout time.Duration, change func(*fake.Clientset)) (probe.Verdict, error) {
	t.Helper()
	client := fake.NewClientset(pod)
	s, err := probe.NewSession(pod, probe.Config{
		Prober: probe.Handlers{Exec: func(context.Context, probe.Target, []string) ([]byte, error) { return nil, nil }},
		Emit: func(probe.Event) {
			if change != nil {
				change(client)
				change = nil
			}
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	return settle(ctx, s, &podAccess{client: client}, pod, timeout)
}

func TestProbingEndsWhenBothAgree(t *testing.T) {
	v, err := settled(t, t.Context(), probedPod(true), 0, nil)
	if err != nil || !v.Ready || !v.Settled || len(v.Differences) > 0 {
		t.Errorf("verdict %+v, error %v; want ready, settled, the same as the kubelet's", v, err)
	}
	// The kubelet comes to it later.
	v, err = settled(t, t.Context(), probedPod(false), 0, func(c *fake.Clientset) {
		if _, err := c.CoreV1().Pods("ns").Update(t.Context(), probedPod(true), metav1.UpdateOptions{}); err != nil {
			t.Error(err)
		}
	})
	if err != nil || !v.Ready || len(v.Differences) > 0 {
		t.Errorf("verdict %+v, error %v; want ready, the same as the kubelet's", v, err)
	}
}

func TestProbingEndsWithWhatDiffers(t *testing.T) {
	v, err := settled(t, t.Context(), probedPod(false), 1500*time.Millisecond, nil)
	if err != nil || !v.Ready || len(v.Differences) != 3 {
		t.Errorf("verdict %+v, error %v; want ready, and three differences: of the container and two conditions", v, err)
	}
}

func TestProbingThatIsInterruptedHasAVerdict(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	v, err := settled(t, ctx, probedPod(false), time.Minute, func(*fake.Clientset) { cancel(errInterrupted) })
	if err != nil || v.Pod != "pod" {
		t.Errorf("verdict %+v, error %v; want what is known", v, err)
	}
	other := errors.New("something else")
	ctx, cancel = context.WithCancelCause(t.Context())
	if _, err := settled(t, ctx, probedPod(false), time.Minute, func(*fake.Clientset) { cancel(other) }); !errors.Is(err, other) {
		t.Errorf("error %v, want %v", err, other)
	}
}

func TestProbingEndsWithThePod(t *testing.T) {
	_, err := settled(t, t.Context(), probedPod(false), time.Minute, func(c *fake.Clientset) {
		if err := c.CoreV1().Pods("ns").Delete(t.Context(), "pod", metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	if !errors.Is(err, reach.ErrPodGone) {
		t.Errorf("error %v, want %v", err, reach.ErrPodGone)
	}
}
