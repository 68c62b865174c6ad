// Package selection is the exercise about CEL selectors.
package selection

import (
	"context"
	"embed"
	"fmt"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/dynamic-resource-allocation/cel"

	"github.com/dra-lab/dra-lab/driver/api"
	"github.com/dra-lab/dra-lab/scenarios/exercises/lesson"
)

//go:embed *.md */*.yaml
var files embed.FS

// New reads the exercise.
func New() (lesson.Exercise, error) {
	return lesson.Read("03-selection", files, "does not take a Hopper GPU with 80Gi", check)
}

// candidates are GPUs that the learner's selectors are tried on, whatever GPUs
// the lab has.
var candidates = []struct {
	name, architecture, memory string
	take                       bool
}{
	{"a Hopper GPU with 80Gi", "Hopper", "80Gi", true},
	{"a Turing GPU with 16Gi", "Turing", "16Gi", false},
	{"a Hopper GPU with 20Gi", "Hopper", "20Gi", false},
}

func check(s lesson.Snapshot) []lesson.Finding {
	var f lesson.Findings
	pod, there := s.Pod("picky")
	f.That(there, "there is a Pod picky", "there is no Pod picky")
	claims := s.ClaimsOf(pod)
	f.That(len(claims) == 1, "it has a claim", "it has no claim yet")
	var selectors []resourcev1.DeviceSelector
	if len(claims) > 0 {
		for _, r := range claims[0].Spec.Devices.Requests {
			if r.Exactly != nil {
				selectors = append(selectors, r.Exactly.Selectors...)
			}
			for _, sub := range r.FirstAvailable {
				selectors = append(selectors, sub.Selectors...)
			}
		}
	}
	f.That(len(selectors) > 0, "the claim has a selector", "the claim has no selector")
	for _, c := range candidates {
		takes, err := matches(selectors, c.architecture, c.memory)
		verb := map[bool]string{true: "takes", false: "does not take"}
		problem := ""
		if err != nil {
			problem = fmt.Sprintf(" (%v)", err)
		}
		f.That(len(selectors) > 0 && takes == c.take, fmt.Sprintf("the selector %s %s", verb[c.take], c.name),
			fmt.Sprintf("the selector %s %s%s", verb[!c.take], c.name, problem))
	}
	devices := s.DevicesOf(pod)
	f.That(len(devices) > 0, fmt.Sprintf("it was given %v", devices), "it was given no device yet")
	f.That(lesson.Running(pod), "the Pod runs", fmt.Sprintf("the Pod does not run: it is %s", lesson.State(pod)))
	return f
}

// matches tries selectors on a GPU as the scheduler does: all must be true, and
// one that fails on a device does not match it.
func matches(selectors []resourcev1.DeviceSelector, architecture, memory string) (bool, error) {
	gpu := cel.Device{
		Driver:     api.DriverName,
		Attributes: map[resourcev1.QualifiedName]resourcev1.DeviceAttribute{api.AttributeArchitecture: {StringValue: &architecture}},
		Capacity:   map[resourcev1.QualifiedName]resourcev1.DeviceCapacity{api.CapacityMemory: {Value: resource.MustParse(memory)}},
	}
	for _, s := range selectors {
		if s.CEL == nil {
			continue
		}
		compiled := cel.GetCompiler(cel.Features{}).CompileCELExpression(s.CEL.Expression, cel.Options{})
		if compiled.Error != nil {
			return false, compiled.Error
		}
		ok, _, err := compiled.DeviceMatches(context.Background(), gpu)
		if err != nil || !ok {
			return false, err
		}
	}
	return true, nil
}
