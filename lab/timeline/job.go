package timeline

import (
	"fmt"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
)

// jobChange says what it means that a Job was old and is now. old is nil for a
// new Job, now is nil for one that is gone.
func jobChange(old, now *batchv1.Job, at time.Time) []Event {
	if now == nil {
		return nil
	}
	var events []Event
	add := func(component Component, kind Kind, format string, args ...any) {
		events = append(events, Event{
			Time: at, Source: SourceWatch, Component: component, Kind: kind,
			Text: "Job " + now.Name + ": " + fmt.Sprintf(format, args...),
		})
	}
	if old == nil {
		add(User, JobCreated, "created, %d ranks", jobSize(now))
		old = &batchv1.Job{}
	}
	if !jobIs(old, batchv1.JobComplete) && jobIs(now, batchv1.JobComplete) {
		add(ControllerManager, JobCompleted, "complete, %d ranks succeeded", now.Status.Succeeded)
	}
	if !jobIs(old, batchv1.JobFailed) && jobIs(now, batchv1.JobFailed) {
		add(ControllerManager, JobFailed, "failed: %s", jobMessage(now))
	}
	return events
}

func jobSize(job *batchv1.Job) int32 {
	if job.Spec.Completions != nil {
		return *job.Spec.Completions
	}
	return 1
}

func jobIs(job *batchv1.Job, kind batchv1.JobConditionType) bool {
	for _, c := range job.Status.Conditions {
		if c.Type == kind && c.Status == corev1.ConditionTrue {
			return true
		}
	}
	return false
}

func jobMessage(job *batchv1.Job) string {
	for _, c := range job.Status.Conditions {
		if c.Type == batchv1.JobFailed {
			return c.Message
		}
	}
	return ""
}
