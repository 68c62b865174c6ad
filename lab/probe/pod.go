package probe

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// probed returns the containers whose probes the kubelet runs: the ordinary
// ones, and init containers that are sidecars (prober_manager.go, AddPod).
func probed(pod *corev1.Pod) []corev1.Container {
	all := slices.Clone(pod.Spec.Containers)
	for _, c := range pod.Spec.InitContainers {
		if sidecar(c) {
			all = append(all, c)
		}
	}
	return all
}

// sidecar reports whether an init container goes on beside the others. An
// ordinary container with the same policy says yes, too.
func sidecar(c corev1.Container) bool {
	return c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways
}

// Probes returns the probes of a container, in the order in which they have a
// say.
func Probes(c corev1.Container) map[Kind]*corev1.Probe {
	found := map[Kind]*corev1.Probe{}
	for kind, p := range map[Kind]*corev1.Probe{Startup: c.StartupProbe, Readiness: c.ReadinessProbe, Liveness: c.LivenessProbe} {
		if p != nil {
			found[kind] = p
		}
	}
	return found
}

func statusOf(pod *corev1.Pod, container string) (corev1.ContainerStatus, bool) {
	for _, list := range [][]corev1.ContainerStatus{pod.Status.ContainerStatuses, pod.Status.InitContainerStatuses} {
		for _, s := range list {
			if s.Name == container {
				return s, true
			}
		}
	}
	return corev1.ContainerStatus{}, false
}

// containerOf is the container as a worker sees it, Started left out.
func containerOf(pod *corev1.Pod, c corev1.Container) Container {
	seen := Container{
		Deleting: pod.DeletionTimestamp != nil,
		PodEnded: pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded,
	}
	status, ok := statusOf(pod, c.Name)
	if !ok {
		return seen
	}
	seen.ID = status.ContainerID
	if running := status.State.Running; running != nil {
		seen.Running, seen.StartedAt = true, running.StartedAt.Time
	}
	if ended := status.State.Terminated; ended != nil {
		seen.Gone = !restarts(pod, c, ended.ExitCode)
	}
	return seen
}

// restarts reports whether a container that ended is started again: by a rule
// of its own, by its own policy, by that of its Pod (pkg/api/v1/pod,
// ContainerShouldRestart).
func restarts(pod *corev1.Pod, c corev1.Container, exitCode int32) bool {
	policy := string(pod.Spec.RestartPolicy)
	if c.RestartPolicy != nil {
		policy = string(*c.RestartPolicy)
		for _, rule := range c.RestartPolicyRules {
			if rule.ExitCodes == nil {
				continue
			}
			listed := slices.Contains(rule.ExitCodes.Values, exitCode)
			if listed == (rule.ExitCodes.Operator == corev1.ContainerRestartRuleOnExitCodesOpIn) {
				return true // whatever it restarts, this container is among it
			}
		}
	}
	switch corev1.RestartPolicy(policy) {
	case corev1.RestartPolicyNever:
		return false
	case corev1.RestartPolicyOnFailure:
		return exitCode != 0
	default:
		return true
	}
}

// idle says why a container does not run.
func idle(pod *corev1.Pod, container string) string {
	status, ok := statusOf(pod, container)
	switch {
	case !ok && pod.Spec.NodeName == "":
		return "the Pod has no node yet" + because(condition(pod, corev1.PodScheduled))
	case !ok:
		return "the kubelet says nothing about it"
	case status.State.Waiting != nil:
		return "it waits" + reason(status.State.Waiting.Reason, status.State.Waiting.Message)
	case status.State.Terminated != nil:
		t := status.State.Terminated
		return fmt.Sprintf("it ended with status %d", t.ExitCode) + reason(t.Reason, t.Message)
	default:
		return "it is not running"
	}
}

func because(c *corev1.PodCondition) string {
	if c == nil {
		return ""
	}
	return reason(c.Reason, c.Message)
}

func reason(reason, message string) string {
	var b strings.Builder
	for _, part := range []string{reason, message} {
		if part != "" {
			b.WriteString(": " + brief(part))
		}
	}
	return b.String()
}

func condition(pod *corev1.Pod, kind corev1.PodConditionType) *corev1.PodCondition {
	for i := range pod.Status.Conditions {
		if pod.Status.Conditions[i].Type == kind {
			return &pod.Status.Conditions[i]
		}
	}
	return nil
}

func isTrue(c *corev1.PodCondition) bool { return c != nil && c.Status == corev1.ConditionTrue }

// maxBrief bounds what is shown of an answer or a message, in bytes.
const maxBrief = 200

// brief makes one short line of a text.
func brief(text string) string {
	text = strings.Join(strings.Fields(strings.ToValidUTF8(text, "?")), " ")
	if len(text) <= maxBrief {
		return text
	}
	return strings.ToValidUTF8(text[:maxBrief], "") + "..."
}

// cause makes one short line of an error, whose cause is at its end.
func cause(err error) string {
	text := strings.Join(strings.Fields(strings.ToValidUTF8(err.Error(), "?")), " ")
	if len(text) <= maxBrief {
		return text
	}
	return "..." + strings.ToValidUTF8(text[len(text)-maxBrief:], "")
}
