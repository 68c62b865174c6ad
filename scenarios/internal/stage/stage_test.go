package stage

import (
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/dra-lab/dra-lab/lab/timeline"
)

func TestTheTrainersImageAndTheSharedVolumeAreFilledIn(t *testing.T) {
	s := &Stage{trainer: "dra-lab/trainer:abc", Namespace: "training-x"}
	spec := func() corev1.PodSpec {
		return corev1.PodSpec{
			Containers: []corev1.Container{{Image: placeholderImage}, {Image: "other"}},
			Volumes:    []corev1.Volume{{Name: "other"}, {Name: sharedVolume}},
		}
	}
	pod := &corev1.Pod{Spec: spec()}
	job := &batchv1.Job{Spec: batchv1.JobSpec{Template: corev1.PodTemplateSpec{Spec: spec()}}}
	for _, err := range []error{s.fillIn(pod), s.fillIn(job), s.fillIn(&corev1.Service{})} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for kind, got := range map[string]corev1.PodSpec{"Pod": pod.Spec, "Job": job.Spec.Template.Spec} {
		if c := got.Containers[0]; c.Image != "dra-lab/trainer:abc" || c.ImagePullPolicy != corev1.PullNever {
			t.Errorf("%s: image %q, pull policy %q", kind, c.Image, c.ImagePullPolicy)
		}
		if c := got.Containers[1]; c.Image != "other" || c.ImagePullPolicy != "" {
			t.Errorf("%s: the other container was changed: %+v", kind, c)
		}
		if got.Volumes[0].HostPath != nil {
			t.Errorf("%s: the other volume was changed", kind)
		}
		if h := got.Volumes[1].HostPath; h == nil || h.Path != "/var/lib/dra-lab/shared/training-x" {
			t.Errorf("%s: shared volume %+v", kind, h)
		}
	}
}

func TestMatches(t *testing.T) {
	e := timeline.Event{
		Kind: timeline.PodHealth, Pod: "train-1-x", Claim: "c", Node: "worker", Device: "gpu-1", Detail: "Unhealthy",
		Text: "XID 79", Time: time.Unix(10, 0),
	}
	for name, c := range map[string]struct {
		match Match
		want  bool
	}{
		"kind":               {Is(timeline.PodHealth), true},
		"other kind":         {Is(timeline.PodReady), false},
		"kind and the rest":  {Is(timeline.PodHealth, Pod("train-1-x"), Detail("Unhealthy"), Says("79")), true},
		"kind, not the rest": {Is(timeline.PodHealth, Pod("train-1-x"), Detail("Healthy")), false},
		"Pod by prefix":      {Pod("train-1-"), true},
		"Pod's whole name":   {Pod("train-1"), false},
		"claim":              {Claim("c"), true},
		"GPU":                {Device(GPU{Node: "worker", Name: "gpu-1"}), true},
		"GPU of other node":  {Device(GPU{Node: "worker2", Name: "gpu-1"}), false},
		"after":              {After(timeline.Event{Time: time.Unix(9, 0)}), true},
		"before":             {After(timeline.Event{Time: time.Unix(11, 0)}), false},
		"no workload":        {AtStep(0), false},
	} {
		if got := c.match(e); got != c.want {
			t.Errorf("%s: match is %v, want %v", name, got, c.want)
		}
	}
}

func TestParseTime(t *testing.T) {
	if got, err := parseTime("1796078462.000012345"); err != nil || !got.Equal(time.Unix(1796078462, 12345)) {
		t.Errorf("parseTime = %v, %v", got, err)
	}
	for _, text := range []string{"", "12", "12.5", "x.000000000", "12.00000000x"} {
		if _, err := parseTime(text); err == nil {
			t.Errorf("parseTime(%q) gave no error", text)
		}
	}
}
