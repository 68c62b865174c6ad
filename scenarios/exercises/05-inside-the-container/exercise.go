// Package inside is the exercise about what CDI puts into a container.
package inside

import (
	"context"
	"embed"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/dra-lab/dra-lab/driver/api"
	"github.com/dra-lab/dra-lab/scenarios/exercises/lesson"
)

//go:embed *.md */*.yaml
var files embed.FS

// New reads the exercise.
func New() (lesson.Exercise, error) {
	e, err := lesson.Read("05-inside-the-container", files, "answer has no node", check)
	e.Solve = func(ctx context.Context, room *lesson.Room) error { return solve(ctx, room, e) }
	return e, err
}

// solve answers with what the cluster has, once the Pod has its device.
func solve(ctx context.Context, room *lesson.Room, e lesson.Exercise) error {
	if _, err := room.Await(ctx, e, func(f []lesson.Finding) bool { return f[0].Holds }); err != nil {
		return err
	}
	s, err := lesson.Take(ctx, room.Client, e.Namespace())
	if err != nil {
		return err
	}
	answer := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: lesson.AnswerName}, Data: answers(s)}
	if _, err := room.Client.CoreV1().ConfigMaps(e.Namespace()).Create(ctx, answer, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("answer: %w", err)
	}
	return nil
}

// answers are the right ones, "" where there is none yet.
func answers(s lesson.Snapshot) map[string]string {
	pod, _ := s.Pod("inside")
	right := map[string]string{"cdi": api.CDIKind}
	if devices := s.DevicesOf(pod); len(devices) > 0 {
		right["node"], right["device"] = devices[0].Node, devices[0].Name
		published, _ := s.Published(devices[0])
		if a, ok := published.Attributes[api.AttributeUUID]; ok && a.StringValue != nil {
			right["uuid"] = *a.StringValue
		}
	}
	return right
}

func check(s lesson.Snapshot) []lesson.Finding {
	var f lesson.Findings
	pod, _ := s.Pod("inside")
	devices := s.DevicesOf(pod)
	f.That(len(devices) == 1 && lesson.Running(pod), "the Pod inside runs with a GPU", "the Pod inside does not run with a GPU: it is "+lesson.State(pod))
	right := answers(s)
	for _, key := range []string{"node", "device", "uuid", "cdi"} {
		got := s.Answer(key)
		no := fmt.Sprintf("the ConfigMap answer has no %s yet", key)
		if got != "" {
			no = fmt.Sprintf("%s %q is not right", key, got)
		}
		f.That(got != "" && got == right[key], fmt.Sprintf("%s is %s", key, right[key]), no)
	}
	return f
}
