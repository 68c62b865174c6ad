// Package failinggpu is the exercise in which a GPU fails under a running Pod.
package failinggpu

import (
	"embed"
	"fmt"
	"slices"
	"strings"

	"github.com/dra-lab/dra-lab/scenarios/exercises/lesson"
)

//go:embed *.md */*.yaml
var files embed.FS

// New reads the exercise.
func New() (lesson.Exercise, error) {
	e, err := lesson.Read("06-failing-gpu", files, "no Pod was evicted", check)
	e.Breaks = true
	return e, err
}

func check(s lesson.Snapshot) []lesson.Finding {
	var f lesson.Findings
	evicted := ""
	for _, e := range s.Events {
		if e.InvolvedObject.Kind == "Pod" && strings.Contains(strings.ToLower(e.Reason), "taint") {
			evicted = e.InvolvedObject.Name
		}
	}
	f.That(evicted != "", fmt.Sprintf("Pod %s was evicted because of a taint", evicted), "no Pod was evicted because of a taint yet")
	tainted := s.Tainted()
	running, good, state := false, false, "there is no Pod of the Deployment"
	var on []lesson.Device
	for _, p := range s.Pods {
		if p.Labels["app"] != "service" || p.DeletionTimestamp != nil {
			continue
		}
		on, state = s.DevicesOf(p), "it is "+lesson.State(p)
		running = lesson.Running(p)
		good = len(on) > 0 && !slices.ContainsFunc(on, func(d lesson.Device) bool { return slices.Contains(tainted, d) })
	}
	f.That(running, "the Deployment's Pod runs", "the Deployment's Pod does not run: "+state)
	f.That(good, fmt.Sprintf("its GPU has no taint: %v", on), fmt.Sprintf("its GPU has a taint, or it has none: %v", on))
	return f
}
