package install

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/dra-lab/dra-lab/driver/api"
	"github.com/dra-lab/dra-lab/lab/internal/ui"
)

func twoNodes() goal {
	return goal{nodes: []string{"one", "two"}, devices: 4, image: "new", generation: 2}
}

func driverPod(node, image string, ready bool) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: "driver-" + node + "-" + image, Namespace: api.Namespace,
			Labels: map[string]string{"app.kubernetes.io/name": api.AppLabel, appsv1.DefaultDaemonSetUniqueLabelKey: "hash-" + image},
		},
		Spec: corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "driver", Image: image}}},
		Status: corev1.PodStatus{
			Phase:      corev1.PodRunning,
			Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionFalse}},
			ContainerStatuses: []corev1.ContainerStatus{{
				Name: "driver", Ready: ready, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}},
			}},
		},
	}
	if ready {
		pod.Status.Conditions[0].Status = corev1.ConditionTrue
	}
	return pod
}

func crashing(node string, restarts int32) *corev1.Pod {
	pod := driverPod(node, "new", false)
	pod.Status.ContainerStatuses[0].RestartCount = restarts
	pod.Status.ContainerStatuses[0].State = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}}
	pod.Status.ContainerStatuses[0].LastTerminationState = corev1.ContainerState{
		Terminated: &corev1.ContainerStateTerminated{ExitCode: 1, Reason: "Error", Message: "starting\nno such directory\n"},
	}
	return pod
}

func waiting(node, reason, message string) *corev1.Pod {
	pod := driverPod(node, "new", false)
	pod.Status.ContainerStatuses[0].State = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}}
	return pod
}

func slice(node, name string, generation, count int64, devices ...string) *resourcev1.ResourceSlice {
	s := &resourcev1.ResourceSlice{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: resourcev1.ResourceSliceSpec{
			Driver: api.DriverName, NodeName: &node,
			Pool: resourcev1.ResourcePool{Name: node, Generation: generation, ResourceSliceCount: count},
		},
	}
	for _, d := range devices {
		s.Spec.Devices = append(s.Spec.Devices, resourcev1.Device{Name: d})
	}
	return s
}

func four(node string) *resourcev1.ResourceSlice {
	s := slice(node, node, 1, 1, "gpu-0", "gpu-1", "gpu-2", "gpu-3")
	s.Spec.Devices = append(s.Spec.Devices, part("gpu-3-mig-1g10gb-0", "gpu-3")) // which is not a fifth
	return s
}

func rolledOut() *appsv1.DaemonSet {
	return &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{
			Name: api.DaemonSetName, Namespace: api.Namespace,
			Labels: map[string]string{"app.kubernetes.io/name": api.AppLabel},
		},
		Status: appsv1.DaemonSetStatus{ObservedGeneration: 2, DesiredNumberScheduled: 2, UpdatedNumberScheduled: 2},
	}
}

// history has the revisions of an older and of the present DaemonSet.
func history() []*appsv1.ControllerRevision {
	revision := func(image string, number int64) *appsv1.ControllerRevision {
		return &appsv1.ControllerRevision{
			ObjectMeta: metav1.ObjectMeta{
				Name: "driver-" + image, Namespace: api.Namespace,
				Labels: map[string]string{"app.kubernetes.io/name": api.AppLabel, appsv1.DefaultDaemonSetUniqueLabelKey: "hash-" + image},
			},
			Revision: number,
		}
	}
	return []*appsv1.ControllerRevision{revision("new", 2), revision("old", 1)}
}

func TestVerdict(t *testing.T) {
	deleting := driverPod("two", "old", true)
	deleting.DeletionTimestamp = &metav1.Time{Time: time.Now()}
	behind := rolledOut()
	behind.Status.ObservedGeneration = 1
	halfway := rolledOut()
	halfway.Status.UpdatedNumberScheduled = 1
	one := driverPod("one", "new", true)
	two := driverPod("two", "new", true)
	bothSlices := []*resourcev1.ResourceSlice{four("one"), four("two")}

	for _, c := range []struct {
		name string
		s    scene
		want []string
	}{
		{"nothing there", scene{}, []string{"one: no driver Pod yet", "two: no driver Pod yet"}},
		{"all there", scene{rolledOut(), history(), []*corev1.Pod{one, two}, bothSlices}, nil},
		{"old Pod on its way out", scene{rolledOut(), history(), []*corev1.Pod{one, two, deleting}, bothSlices}, nil},
		{"old Pod alone", scene{rolledOut(), history(), []*corev1.Pod{one, driverPod("two", "old", true)}, bothSlices}, []string{"two: the old driver Pod is still there"}},
		{"old Pod beside the new one", scene{rolledOut(), history(), []*corev1.Pod{one, two, driverPod("two", "old", true)}, bothSlices}, []string{"two: the old driver Pod is still there"}},
		{"new Pod beside the old one not ready", scene{rolledOut(), history(), []*corev1.Pod{one, driverPod("two", "old", true), driverPod("two", "new", false)}, bothSlices}, []string{"two: container driver runs, not ready yet"}},
		{"Pod not ready", scene{rolledOut(), history(), []*corev1.Pod{one, driverPod("two", "new", false)}, bothSlices}, []string{"two: container driver runs, not ready yet"}},
		{"Pod waits", scene{rolledOut(), history(), []*corev1.Pod{one, waiting("two", "ContainerCreating", "")}, bothSlices}, []string{"two: container driver waits: ContainerCreating"}},
		{"first crash", scene{rolledOut(), history(), []*corev1.Pod{one, crashing("two", 1)}, bothSlices}, []string{"two: container driver ended with exit code 1 (Error): no such directory and was started 2 times"}},
		{"no slice", scene{rolledOut(), history(), []*corev1.Pod{one, two}, bothSlices[:1]}, []string{"two: no ResourceSlice yet"}},
		{"half a pool", scene{rolledOut(), history(), []*corev1.Pod{one, two}, []*resourcev1.ResourceSlice{four("one"), slice("two", "a", 1, 2, "gpu-0")}}, []string{"two: 1 of 2 ResourceSlices"}},
		{"old pool", scene{rolledOut(), history(), []*corev1.Pod{one, two}, []*resourcev1.ResourceSlice{four("one"), four("two"), slice("two", "b", 2, 1, "gpu-0")}}, []string{"two: 1 of 4 devices"}},
		{"pool of two slices", scene{rolledOut(), history(), []*corev1.Pod{one, two}, []*resourcev1.ResourceSlice{four("one"), slice("two", "a", 3, 2, "gpu-0", "gpu-1"), slice("two", "b", 3, 2, "gpu-2", "gpu-3")}}, nil},
		{"DaemonSet not looked at", scene{behind, history(), []*corev1.Pod{one, two}, bothSlices}, []string{"one: the old driver Pod is still there", "two: the old driver Pod is still there"}},
		{"DaemonSet half-way", scene{halfway, history(), []*corev1.Pod{one, two}, bothSlices}, []string{"1 of 2 driver Pods are new"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := twoNodes().verdict(c.s)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("missing (-want +got):\n%s", diff)
			}
		})
	}
}

func TestVerdictGivesUpOnPodsThatWillNotStart(t *testing.T) {
	for name, c := range map[string]struct {
		pod  *corev1.Pod
		want string
	}{
		"image gone":     {waiting("two", "ErrImageNeverPull", "image x is not present"), `start the driver on node "two": Pod driver-two-new: container driver waits: ErrImageNeverPull: image x is not present`},
		"crashing again": {crashing("two", 2), `container driver ended with exit code 1 (Error): no such directory and was started 3 times`},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := twoNodes().verdict(scene{driver: rolledOut(), revisions: history(), pods: []*corev1.Pod{c.pod}})
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want one with %q", err, c.want)
			}
		})
	}
}

func TestVerdictForgivesWhatTheOldRevisionDid(t *testing.T) {
	// A driver that crashed is being replaced by one with the same image and
	// other settings.
	old := crashing("two", 7)
	old.Labels[appsv1.DefaultDaemonSetUniqueLabelKey] = "hash-old"
	g := goal{nodes: []string{"two"}, devices: 4, image: "new", generation: 2}
	missing, err := g.verdict(scene{driver: rolledOut(), revisions: history(), pods: []*corev1.Pod{old}})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"two: the old driver Pod is still there"}, missing); diff != "" {
		t.Errorf("missing (-want +got):\n%s", diff)
	}
}

func TestWaitEndsWhenTheDriverServes(t *testing.T) {
	ctx := t.Context()
	// Given a cluster on which the driver is half there,
	client := fake.NewClientset(rolledOut(), history()[0], driverPod("one", "new", true), four("one"))
	i := installer{clients: clients{kubernetes: client}, ui: quiet()}
	result := make(chan error, 1)
	go func() { result <- i.wait(ctx, twoNodes()) }()

	// when the rest comes,
	if _, err := client.CoreV1().Pods(api.Namespace).Create(ctx, driverPod("two", "new", true), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-result:
		t.Fatalf("wait ended with %v before the slices were there", err)
	default:
	}
	if _, err := client.ResourceV1().ResourceSlices().Create(ctx, four("two"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}

	// then the wait ends.
	if err := <-result; err != nil {
		t.Fatal(err)
	}
}

func TestWaitQuotesTheLogOfADriverThatDoesNotStart(t *testing.T) {
	client := fake.NewClientset(rolledOut(), history()[0], driverPod("one", "new", true), crashing("two", 2))
	err := installer{clients: clients{kubernetes: client}, ui: quiet()}.wait(t.Context(), twoNodes())
	if err == nil || !strings.Contains(err.Error(), `on node "two"`) {
		t.Fatalf("error %v, want one that names node two", err)
	}
	if got := ui.Detail(err); got != "fake logs" {
		t.Errorf("detail %q, want the Pod's log", got)
	}
	if got, want := ui.Hint(err), "lab kubectl -n dra-lab describe pod driver-two-new"; got != want {
		t.Errorf("hint %q, want %q", got, want)
	}
}

func TestWaitThatTakesTooLongSaysWhatWasMissing(t *testing.T) {
	client := fake.NewClientset(rolledOut(), history()[0], driverPod("one", "new", true), four("one"), driverPod("two", "new", false))
	i := installer{clients: clients{kubernetes: client}, ui: quiet(), options: Options{Timeout: 500 * time.Millisecond}}
	err := i.wait(t.Context(), twoNodes())
	if err == nil || !strings.Contains(err.Error(), "not within 500ms (last: two: container driver runs, not ready yet)") {
		t.Errorf("error %v, want one with the last state", err)
	}
	if got := ui.Detail(err); got != "fake logs" {
		t.Errorf("detail %q, want the log of the Pod that is not ready", got)
	}
}

func TestWaitIsInterruptible(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	interrupted := errors.New("interrupted")
	cancel(interrupted)
	err := installer{clients: clients{kubernetes: fake.NewClientset()}, ui: quiet()}.wait(ctx, twoNodes())
	if !errors.Is(err, interrupted) {
		t.Errorf("error %v, want %v", err, interrupted)
	}
}
