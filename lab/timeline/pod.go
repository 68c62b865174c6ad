package timeline

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TaintEviction is the Detail of PodDisrupted and PodDeleted when a taint on
// the Pod's GPU is why: the reason of the condition that the device taint
// eviction controller sets before it deletes a Pod.
const TaintEviction = "DeletionByDeviceTaintManager"

// podChange says what it means that a Pod was old and is now. old is nil for a
// new Pod, now is nil for one that is gone.
func podChange(old, now *corev1.Pod, at time.Time) []Event {
	if now == nil {
		return []Event{{
			Time: at, Source: SourceWatch, Component: APIServer, Kind: PodGone, Node: old.Spec.NodeName, Pod: old.Name,
			Text: fmt.Sprintf("Pod %s is gone", old.Name),
		}}
	}
	p := podDiff{now: now, at: at}
	if old == nil {
		p.created()
		old = &corev1.Pod{}
	}
	p.scheduling(old)
	p.containers(old)
	p.health(old)
	p.phase(old)
	p.deletion(old)
	return p.events
}

type podDiff struct {
	now    *corev1.Pod
	at     time.Time
	events []Event
}

func (p *podDiff) add(e Event, format string, args ...any) {
	e.Time, e.Source, e.Pod, e.Node = p.at, SourceWatch, p.now.Name, p.now.Spec.NodeName
	e.Text = "Pod " + p.now.Name + ": " + fmt.Sprintf(format, args...)
	p.events = append(p.events, e)
}

func (p *podDiff) created() {
	if owner := metav1.GetControllerOf(p.now); owner != nil {
		p.add(Event{Component: ControllerManager, Kind: PodCreated}, "created for %s %s", owner.Kind, owner.Name)
		return
	}
	p.add(Event{Component: User, Kind: PodCreated}, "created")
}

func (p *podDiff) scheduling(old *corev1.Pod) {
	if old.Spec.NodeName == "" && p.now.Spec.NodeName != "" {
		p.add(Event{Component: Scheduler, Kind: PodScheduled}, "bound to node %s", p.now.Spec.NodeName)
	}
	before, after := podCondition(old, corev1.PodScheduled), podCondition(p.now, corev1.PodScheduled)
	if after.Status == corev1.ConditionFalse && after.Message != before.Message {
		p.add(Event{Component: Scheduler, Kind: PodUnschedulable, Detail: after.Reason}, "not schedulable: %s", after.Message)
	}
}

func (p *podDiff) containers(old *corev1.Pod) {
	ready := corev1.PodReadyToStartContainers
	if podCondition(old, ready).Status != corev1.ConditionTrue && podCondition(p.now, ready).Status == corev1.ConditionTrue {
		p.add(Event{Component: Kubelet, Kind: SandboxReady}, "sandbox and network are ready")
	}
	for _, now := range p.now.Status.ContainerStatuses {
		before := containerState(old, now.Name)
		switch state := now.State; {
		case state.Running != nil && (before.Running == nil || !before.Running.StartedAt.Equal(&state.Running.StartedAt)):
			p.add(Event{Component: Kubelet, Kind: ContainerStarted, Detail: now.Name}, "container %s started", now.Name)
		case state.Terminated != nil && before.Terminated == nil:
			p.add(Event{Component: Kubelet, Kind: ContainerExited, Detail: now.Name}, "container %s ended with status %d", now.Name, state.Terminated.ExitCode)
		case state.Waiting != nil && !startsNormally(state.Waiting.Reason) && (before.Waiting == nil || before.Waiting.Reason != state.Waiting.Reason):
			p.add(Event{Component: Kubelet, Kind: ContainerWaiting, Detail: state.Waiting.Reason}, "container %s waits: %s: %s", now.Name, state.Waiting.Reason, state.Waiting.Message)
		}
	}
	before, after := podCondition(old, corev1.PodReady).Status == corev1.ConditionTrue, podCondition(p.now, corev1.PodReady).Status == corev1.ConditionTrue
	switch {
	case after && !before:
		p.add(Event{Component: Kubelet, Kind: PodReady}, "Ready")
	case before && !after:
		p.add(Event{Component: Kubelet, Kind: PodNotReady}, "no longer Ready")
	}
}

// health compares what the kubelet says about the Pod's GPUs.
func (p *podDiff) health(old *corev1.Pod) {
	before := resourceHealth(old)
	for _, now := range resourceHealth(p.now) {
		i := slices.IndexFunc(before, func(h healthOf) bool { return h.resource == now.resource })
		if i >= 0 && before[i] == now {
			continue
		}
		device := deviceOf(now.resource)
		text := fmt.Sprintf("status says that %s is %s", device, now.health)
		if now.message != "" {
			text += fmt.Sprintf(": %q", now.message)
		}
		p.add(Event{Component: Kubelet, Kind: PodHealth, Device: device, Detail: now.health}, "%s", text)
	}
}

func (p *podDiff) phase(old *corev1.Pod) {
	if old.Status.Phase == p.now.Status.Phase {
		return
	}
	switch p.now.Status.Phase {
	case corev1.PodSucceeded:
		p.add(Event{Component: Kubelet, Kind: PodSucceeded}, "succeeded")
	case corev1.PodFailed:
		p.add(Event{Component: Kubelet, Kind: PodFailed, Detail: p.now.Status.Reason}, "failed")
	}
}

func (p *podDiff) deletion(old *corev1.Pod) {
	before, after := podCondition(old, corev1.DisruptionTarget), podCondition(p.now, corev1.DisruptionTarget)
	if before.Status != corev1.ConditionTrue && after.Status == corev1.ConditionTrue {
		p.add(Event{Component: ControllerManager, Kind: PodDisrupted, Detail: after.Reason}, "marked for eviction: %s", strings.TrimSpace(after.Message))
	}
	if old.DeletionTimestamp != nil || p.now.DeletionTimestamp == nil {
		return
	}
	if after.Status == corev1.ConditionTrue && after.Reason == TaintEviction {
		p.add(Event{Component: ControllerManager, Kind: PodDeleted, Detail: after.Reason}, "deleted because of the taint on its GPU")
		return
	}
	p.add(Event{Component: APIServer, Kind: PodDeleted}, "deletion asked for")
}

func podCondition(pod *corev1.Pod, kind corev1.PodConditionType) corev1.PodCondition {
	for _, c := range pod.Status.Conditions {
		if c.Type == kind {
			return c
		}
	}
	return corev1.PodCondition{}
}

func containerState(pod *corev1.Pod, name string) corev1.ContainerState {
	for _, c := range pod.Status.ContainerStatuses {
		if c.Name == name {
			return c.State
		}
	}
	return corev1.ContainerState{}
}

// startsNormally says whether a reason to wait is part of every start.
func startsNormally(reason string) bool { return reason == "" || reason == "ContainerCreating" }

// healthOf is what a Pod's status says about one of its devices.
type healthOf struct {
	resource, health, message string
}

// resourceHealth lists the devices in the status of the Pod's containers, each
// once.
func resourceHealth(pod *corev1.Pod) []healthOf {
	var all []healthOf
	for _, container := range pod.Status.ContainerStatuses {
		for _, status := range container.AllocatedResourcesStatus {
			for _, r := range status.Resources {
				h := healthOf{resource: string(r.ResourceID), health: string(r.Health)}
				if r.Message != nil {
					h.message = *r.Message
				}
				if !slices.Contains(all, h) {
					all = append(all, h)
				}
			}
		}
	}
	return all
}

// uidLength is the length of a claim's UID in a CDI id.
const uidLength = 36

// deviceOf finds the device's name in what the kubelet calls it: its CDI id,
// "vendor/class=<claim UID>-<device>", or "driver/pool/device". What it does not
// know it leaves.
func deviceOf(resource string) string {
	if _, id, ok := strings.Cut(resource, "="); ok && len(id) > uidLength+1 && id[uidLength] == '-' {
		return id[uidLength+1:]
	}
	if parts := strings.Split(resource, "/"); len(parts) == 3 {
		return parts[2]
	}
	return resource
}
