// Package firstclaim is the exercise in which a Pod gets its first GPU.
package firstclaim

import (
	"embed"
	"fmt"

	"github.com/dra-lab/dra-lab/scenarios/exercises/lesson"
)

//go:embed *.md */*.yaml
var files embed.FS

// New reads the exercise.
func New() (lesson.Exercise, error) {
	return lesson.Read("01-first-claim", files, "there is no Pod hello", check)
}

func check(s lesson.Snapshot) []lesson.Finding {
	var f lesson.Findings
	pod, there := s.Pod("hello")
	f.That(there, "there is a Pod hello", "there is no Pod hello in this exercise's namespace yet")
	uses := len(pod.Spec.ResourceClaims) > 0
	f.That(uses, "the Pod uses a claim", "no Pod hello with an entry in spec.resourceClaims yet")
	claims := s.ClaimsOf(pod)
	f.That(len(claims) > 0, "the claim was made", claimMissing(uses))
	var devices []lesson.Device
	reserved := false
	for _, c := range claims {
		devices = append(devices, lesson.Devices(c)...)
		reserved = reserved || lesson.ReservedFor(c, pod)
	}
	f.That(len(devices) > 0, fmt.Sprintf("the claim is allocated: %v", devices), "no claim of the Pod has a device of the driver gpu.lab.example yet")
	f.That(reserved, "the claim is reserved for the Pod", "no claim is reserved for the Pod yet")
	f.That(lesson.Running(pod), "the Pod runs", fmt.Sprintf("the Pod does not run: it is %s", lesson.State(pod)))
	return f
}

func claimMissing(used bool) string {
	if used {
		return "the claim that the Pod names does not exist: is the name of the claim or template right?"
	}
	return "there is no claim that the Pod uses"
}
