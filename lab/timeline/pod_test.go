package timeline

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// now is the time of all changes in these tests.
func now() time.Time { return time.Date(2026, 1, 2, 3, 4, 5, 6789, time.UTC) }

const claimUID = "0f0e7b6c-5e3a-4bfb-9a51-0d2f6c1f3a11"

// kinds are the kinds of events, with the component, for comparison.
func kinds(events []Event) []string {
	var all []string
	for _, e := range events {
		all = append(all, string(e.Component)+" "+string(e.Kind))
	}
	return all
}

func checkKinds(t *testing.T, got []Event, want ...string) {
	t.Helper()
	if diff := cmp.Diff(want, kinds(got)); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
}

// pod is a Pod after changes.
func pod(changes ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "train-0-x", Namespace: "ns", UID: "pod"}}
	for _, change := range changes {
		change(p)
	}
	return p
}

func onNode(p *corev1.Pod) { p.Spec.NodeName = "worker" }

func ofJob(p *corev1.Pod) {
	yes := true
	p.OwnerReferences = []metav1.OwnerReference{{Kind: "Job", Name: "train", Controller: &yes}}
}

func running(p *corev1.Pod) {
	p.Status.ContainerStatuses = []corev1.ContainerStatus{{
		Name: "trainer", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(now())}},
	}}
}

func exited(p *corev1.Pod) {
	p.Status.ContainerStatuses = []corev1.ContainerStatus{{
		Name: "trainer", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 143}},
	}}
}

func waiting(reason string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{
			Name: "trainer", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason}},
		}}
	}
}

func condition(kind corev1.PodConditionType, status corev1.ConditionStatus, reason string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: kind, Status: status, Reason: reason, Message: reason})
	}
}

func health(resource string, health corev1.ResourceHealthStatus, message string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		c := &p.Status.ContainerStatuses[0]
		c.AllocatedResourcesStatus = []corev1.ResourceStatus{{
			Name: "claim:gpu", Resources: []corev1.ResourceHealth{{ResourceID: corev1.ResourceID(resource), Health: health, Message: &message}},
		}}
	}
}

func deleted(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: now()} }

func phase(phase corev1.PodPhase) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Status.Phase = phase }
}

func TestPodChanges(t *testing.T) {
	const cdi = "k8s.gpu.lab.example/claim=" + claimUID + "-gpu-1"
	for name, c := range map[string]struct {
		old, now *corev1.Pod
		want     []string
	}{
		"created by a user":    {nil, pod(), []string{"user pod-created"}},
		"created by a Job":     {nil, pod(ofJob), []string{"controller-manager pod-created"}},
		"bound":                {pod(), pod(onNode), []string{"scheduler pod-scheduled"}},
		"created and bound":    {nil, pod(onNode), []string{"user pod-created", "scheduler pod-scheduled"}},
		"nothing new":          {pod(onNode, running), pod(onNode, running), nil},
		"unschedulable":        {pod(), pod(condition(corev1.PodScheduled, "False", "no GPU")), []string{"scheduler pod-unschedulable"}},
		"unschedulable, again": {pod(condition(corev1.PodScheduled, "False", "no GPU")), pod(condition(corev1.PodScheduled, "False", "no GPU")), nil},
		"sandbox":              {pod(), pod(condition(corev1.PodReadyToStartContainers, "True", "")), []string{"kubelet sandbox-ready"}},
		"normal start":         {pod(), pod(waiting("ContainerCreating")), nil},
		"start fails":          {pod(), pod(waiting("CreateContainerError")), []string{"kubelet container-waiting"}},
		"still fails":          {pod(waiting("CreateContainerError")), pod(waiting("CreateContainerError")), nil},
		"started and ready": {
			pod(waiting("ContainerCreating")), pod(running, condition(corev1.PodReady, "True", "")),
			[]string{"kubelet container-started", "kubelet pod-ready"},
		},
		"exits": {
			pod(running, condition(corev1.PodReady, "True", "")), pod(exited, phase(corev1.PodFailed)),
			[]string{"kubelet container-exited", "kubelet pod-not-ready", "kubelet pod-failed"},
		},
		"succeeds":        {pod(exited), pod(exited, phase(corev1.PodSucceeded)), []string{"kubelet pod-succeeded"}},
		"turns unhealthy": {pod(running, health(cdi, "Healthy", "")), pod(running, health(cdi, "Unhealthy", "XID 79")), []string{"kubelet pod-health"}},
		"other message":   {pod(running, health(cdi, "Unhealthy", "XID 48")), pod(running, health(cdi, "Unhealthy", "XID 79")), []string{"kubelet pod-health"}},
		"still healthy":   {pod(running, health(cdi, "Healthy", "")), pod(running, health(cdi, "Healthy", "")), nil},
		"marked for eviction": {
			pod(), pod(condition(corev1.DisruptionTarget, "True", TaintEviction)), []string{"controller-manager pod-disrupted"},
		},
		"evicted": {
			pod(condition(corev1.DisruptionTarget, "True", TaintEviction)), pod(condition(corev1.DisruptionTarget, "True", TaintEviction), deleted),
			[]string{"controller-manager pod-deleted"},
		},
		"deleted":       {pod(), pod(deleted), []string{"api-server pod-deleted"}},
		"still deleted": {pod(deleted), pod(deleted), nil},
		"gone":          {pod(deleted), nil, []string{"api-server pod-gone"}},
	} {
		t.Run(name, func(t *testing.T) {
			events := podChange(c.old, c.now, now())
			checkKinds(t, events, c.want...)
			for _, e := range events {
				if e.Pod != "train-0-x" || !e.Time.Equal(now()) || e.Source != SourceWatch || e.Text == "" {
					t.Errorf("event %+v lacks the Pod, the time, the source or the text", e)
				}
			}
		})
	}
}

func TestPodHealthNamesDeviceHealthAndMessage(t *testing.T) {
	for resource, device := range map[string]string{
		"k8s.gpu.lab.example/claim=" + claimUID + "-gpu-1": "gpu-1",
		"gpu.lab.example/worker/gpu-2":                     "gpu-2",
		"something else":                                   "something else",
		"vendor/class=short":                               "vendor/class=short",
	} {
		events := podChange(pod(running), pod(running, health(resource, "Unhealthy", "XID 79")), now())
		if len(events) != 1 {
			t.Fatalf("%d events, want 1: %v", len(events), events)
		}
		want := Event{
			Time: now(), Source: SourceWatch, Component: Kubelet, Kind: PodHealth, Pod: "train-0-x", Device: device, Detail: "Unhealthy",
			Text: `Pod train-0-x: status says that ` + device + ` is Unhealthy: "XID 79"`,
		}
		if diff := cmp.Diff(want, events[0]); diff != "" {
			t.Errorf("event (-want +got):\n%s", diff)
		}
	}
}
