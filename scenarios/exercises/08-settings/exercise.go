// Package settings is the exercise about opaque configuration.
package settings

import (
	"embed"
	"fmt"

	resourcev1 "k8s.io/api/resource/v1"

	"github.com/dra-lab/dra-lab/driver/api"
	"github.com/dra-lab/dra-lab/driver/api/v1alpha1"
	"github.com/dra-lab/dra-lab/scenarios/exercises/lesson"
)

//go:embed *.md */*.yaml
var files embed.FS

// New reads the exercise.
func New() (lesson.Exercise, error) {
	return lesson.Read("08-settings", files, "there is no Pod alone", check)
}

func check(s lesson.Snapshot) []lesson.Finding {
	var f lesson.Findings
	pod, there := s.Pod("alone")
	f.That(there, "there is a Pod alone", "there is no Pod alone yet")
	var configs []resourcev1.DeviceAllocationConfiguration
	for _, c := range s.ClaimsOf(pod) {
		if c.Status.Allocation != nil {
			configs = append(configs, c.Status.Allocation.Devices.Config...)
		}
	}
	ours, exclusive := 0, false
	for _, c := range configs {
		if c.Opaque == nil || c.Opaque.Driver != api.DriverName {
			continue
		}
		ours++
		parsed, err := v1alpha1.Parse(c.Opaque.Parameters.Raw)
		exclusive = exclusive || err == nil && parsed.Sharing != nil && parsed.Sharing.Strategy == v1alpha1.Exclusive
	}
	f.That(ours > 0, "its claim is allocated with configuration for the driver", "its claim is not allocated with configuration for the driver yet")
	f.That(exclusive, "the strategy is Exclusive", "the strategy is not Exclusive yet")
	f.That(lesson.Running(pod), "the Pod runs", fmt.Sprintf("the Pod does not run: it is %s", lesson.State(pod)))
	return f
}
