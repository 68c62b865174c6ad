package install

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// patience is how often a driver may end before waiting for it makes no sense:
// once can be a race with a node that comes up, more is no accident.
const patience = 2

// podError is a driver Pod that does not start.
type podError struct {
	node string
	pod  *corev1.Pod
}

func (e *podError) Error() string {
	return fmt.Sprintf("start the driver on node %q: Pod %s: %s", e.node, e.pod.Name, describe(e.pod))
}

// hopeless says whether a Pod will not become ready by itself.
func hopeless(pod *corev1.Pod) bool {
	for _, c := range pod.Status.ContainerStatuses {
		if c.State.Waiting == nil {
			continue
		}
		switch c.State.Waiting.Reason {
		case "ErrImageNeverPull", "InvalidImageName":
			return true
		case "CrashLoopBackOff":
			if c.RestartCount >= patience {
				return true
			}
		}
	}
	return false
}

// describe says in one line what keeps a Pod from being ready.
func describe(pod *corev1.Pod) string {
	for _, c := range pod.Status.ContainerStatuses {
		switch {
		case c.State.Waiting != nil && c.LastTerminationState.Terminated != nil:
			return fmt.Sprintf("container %s %s and was started %d times", c.Name, ended(c.LastTerminationState.Terminated), c.RestartCount+1)
		case c.State.Waiting != nil:
			return join("container "+c.Name+" waits: "+c.State.Waiting.Reason, c.State.Waiting.Message)
		case c.State.Terminated != nil:
			return "container " + c.Name + " " + ended(c.State.Terminated)
		case c.State.Running != nil && !c.Ready:
			return "container " + c.Name + " runs, not ready yet"
		}
	}
	for _, c := range pod.Status.Conditions {
		if c.Status == corev1.ConditionFalse && c.Message != "" {
			return join(c.Reason, c.Message)
		}
	}
	return "Pod is " + strings.ToLower(string(pod.Status.Phase))
}

func ended(t *corev1.ContainerStateTerminated) string {
	// The message is the end of the log: its last line says what happened.
	message := strings.TrimSpace(t.Message)
	message = message[strings.LastIndex(message, "\n")+1:]
	return join(fmt.Sprintf("ended with exit code %d (%s)", t.ExitCode, t.Reason), message)
}

// join adds a message where there is one.
func join(text, message string) string {
	if message == "" {
		return text
	}
	return text + ": " + message
}
