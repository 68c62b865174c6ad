// Package tolerate is the exercise about a claim that tolerates the taint of a
// device.
package tolerate

import (
	"embed"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"

	"github.com/dra-lab/dra-lab/scenarios/exercises/lesson"
)

//go:embed *.md */*.yaml
var files embed.FS

// New reads the exercise.
func New() (lesson.Exercise, error) {
	e, err := lesson.Read("07-tolerate", files, "does not run", check)
	e.Breaks = true
	return e, err
}

func check(s lesson.Snapshot) []lesson.Finding {
	var f lesson.Findings
	pod, _ := s.Pod("stubborn")
	f.That(lesson.Running(pod), "the Pod stubborn runs", "the Pod stubborn does not run: it is "+lesson.State(pod))
	tolerates := false
	for _, c := range s.ClaimsOf(pod) {
		for _, r := range c.Spec.Devices.Requests {
			tolerates = tolerates || r.Exactly != nil && len(r.Exactly.Tolerations) > 0 ||
				slices.ContainsFunc(r.FirstAvailable, func(sub resourcev1.DeviceSubRequest) bool { return len(sub.Tolerations) > 0 })
		}
	}
	f.That(tolerates, "its claim has a toleration", "its claim has no toleration")
	var tainted []lesson.Device
	for _, d := range s.DevicesOf(pod) {
		if slices.Contains(s.Tainted(), d) {
			tainted = append(tainted, d)
		}
	}
	f.That(len(tainted) > 0, fmt.Sprintf("its GPU has a taint: %v", tainted), "its GPU has no taint yet")
	f.That(unhealthy(pod), "the Pod's status says that the GPU is Unhealthy", "the Pod's status does not say that its GPU is Unhealthy")
	return f
}

func unhealthy(p corev1.Pod) bool {
	for _, c := range p.Status.ContainerStatuses {
		for _, a := range c.AllocatedResourcesStatus {
			for _, r := range a.Resources {
				if r.Health == corev1.ResourceHealthStatusUnhealthy {
					return true
				}
			}
		}
	}
	return false
}
