// Package byresourcename is the exercise about extended resources.
package byresourcename

import (
	"embed"
	"fmt"
	"slices"

	resourcev1 "k8s.io/api/resource/v1"

	"github.com/dra-lab/dra-lab/scenarios/exercises/lesson"
)

//go:embed *.md */*.yaml
var files embed.FS

// New reads the exercise.
func New() (lesson.Exercise, error) {
	return lesson.Read("10-by-resource-name", files, "there is no Pod classic", check)
}

func check(s lesson.Snapshot) []lesson.Finding {
	var f lesson.Findings
	pod, there := s.Pod("classic")
	f.That(there, "there is a Pod classic", "there is no Pod classic yet")
	f.That(there && len(pod.Spec.ResourceClaims) == 0, "it names no claim", "it names a claim, or is not there")
	name := ""
	if pod.Status.ExtendedResourceClaimStatus != nil {
		name = pod.Status.ExtendedResourceClaimStatus.ResourceClaimName
	}
	i := slices.IndexFunc(s.Claims, func(c resourcev1.ResourceClaim) bool { return name != "" && c.Name == name })
	f.That(i >= 0, "the scheduler made the claim "+name+" for it", "the scheduler has made no claim for it yet")
	var devices []lesson.Device
	if i >= 0 {
		devices = lesson.Devices(s.Claims[i])
	}
	f.That(len(devices) == 1, fmt.Sprintf("it has %v", devices), "it does not have one GPU yet")
	f.That(lesson.Running(pod), "the Pod runs", fmt.Sprintf("the Pod does not run: it is %s", lesson.State(pod)))
	return f
}
