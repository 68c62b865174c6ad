// Package whypending is the exercise about a Pod that asks for more than there is.
package whypending

import (
	"embed"
	"fmt"

	"github.com/dra-lab/dra-lab/scenarios/exercises/lesson"
)

//go:embed *.md */*.yaml
var files embed.FS

// New reads the exercise.
func New() (lesson.Exercise, error) {
	return lesson.Read("04-why-pending", files, "no Pod of the Deployment has two GPUs", check)
}

const wanted = 2

func check(s lesson.Snapshot) []lesson.Finding {
	var f lesson.Findings
	deployed := false
	for _, d := range s.Deployments {
		deployed = deployed || d.Name == "big"
	}
	f.That(deployed, "the Deployment big is there", "there is no Deployment big: \"lab exercise reset\" brings it back")
	var best lesson.Findings
	waiting := ""
	for _, p := range s.Pods {
		if p.Labels["app"] != "big" || p.DeletionTimestamp != nil {
			continue
		}
		devices := s.DevicesOf(p)
		if len(devices) >= wanted {
			best = nil
			best.That(true, fmt.Sprintf("its Pod %s has %v", p.Name, devices), "")
			best.That(lesson.Running(p), "the Pod runs", fmt.Sprintf("the Pod does not run: it is %s", lesson.State(p)))
			if lesson.Running(p) {
				break
			}
		}
		waiting = fmt.Sprintf("; Pod %s is %s", p.Name, lesson.State(p))
	}
	if best == nil {
		best.That(false, "", "no Pod of the Deployment has two GPUs yet"+waiting)
		best.That(false, "", "no such Pod runs")
	}
	return append(f, best...)
}
