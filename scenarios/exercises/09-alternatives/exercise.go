// Package alternatives is the exercise about requests with alternatives.
package alternatives

import (
	"embed"
	"fmt"
	"strings"

	"github.com/dra-lab/dra-lab/scenarios/exercises/lesson"
)

//go:embed *.md */*.yaml
var files embed.FS

// New reads the exercise.
func New() (lesson.Exercise, error) {
	return lesson.Read("09-alternatives", files, "there is no Pod flexible", check)
}

func check(s lesson.Snapshot) []lesson.Finding {
	var f lesson.Findings
	pod, there := s.Pod("flexible")
	f.That(there, "there is a Pod flexible", "there is no Pod flexible yet")
	alternatives, first, got := 0, "", ""
	for _, c := range s.ClaimsOf(pod) {
		for _, r := range c.Spec.Devices.Requests {
			if len(r.FirstAvailable) > alternatives {
				alternatives, first = len(r.FirstAvailable), r.Name+"/"+r.FirstAvailable[0].Name
			}
		}
		if c.Status.Allocation == nil {
			continue
		}
		for _, r := range c.Status.Allocation.Devices.Results {
			if strings.Contains(r.Request, "/") {
				got = r.Request
			}
		}
	}
	f.That(alternatives >= 2, fmt.Sprintf("its claim has a request with %d alternatives", alternatives), "its claim has no request with two alternatives yet")
	f.That(got != "" && got != first, fmt.Sprintf("it got the alternative %s", got), "it has not got another than the first alternative yet")
	f.That(lesson.Running(pod), "the Pod runs", fmt.Sprintf("the Pod does not run: it is %s", lesson.State(pod)))
	return f
}
