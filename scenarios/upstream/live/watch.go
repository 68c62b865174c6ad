package live

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"
)

// wait says when what it waits for came, counted from since, or that it did not
// come within limit. An error means that it could not be waited for.
func wait(ctx context.Context, since time.Time, limit time.Duration, until func(context.Context) (time.Time, error)) (Wait, error) {
	limited, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	at, err := until(limited)
	switch {
	case err == nil:
		return Wait{Took: max(0, at.Sub(since)), Came: true}, nil
	case limited.Err() != nil && ctx.Err() == nil:
		return Wait{Took: time.Since(since)}, nil
	}
	return Wait{}, err
}

// poll asks about something in this process again and again.
func poll(ctx context.Context, is func() bool) (time.Time, error) {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !is() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return time.Time{}, context.Cause(ctx)
		}
	}
	return time.Now(), nil
}

// follow looks at what a watch shows, what is there already first, until is says
// yes. API servers end a watch after half an hour at the earliest, so one that
// ends is an error.
func follow[T any](ctx context.Context, w watch.Interface, is func(watch.EventType, T) bool) (time.Time, error) {
	for {
		select {
		case <-ctx.Done():
			return time.Time{}, context.Cause(ctx)
		case e, ok := <-w.ResultChan():
			switch {
			case ctx.Err() != nil:
				return time.Time{}, context.Cause(ctx)
			case !ok:
				return time.Time{}, errors.New("the API server ended the watch")
			case e.Type == watch.Error:
				return time.Time{}, apierrors.FromObject(e.Object)
			}
			if object, ok := e.Object.(T); ok && is(e.Type, object) {
				return time.Now(), nil
			}
		}
	}
}

// awaitPod waits until a Pod is as it should be; it is nil when it is deleted.
func (p *player) awaitPod(ctx context.Context, name, what string, is func(*corev1.Pod) bool) (time.Time, error) {
	w, err := p.side.Client.CoreV1().Pods(p.side.Namespace).Watch(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("metadata.name", name).String(),
	})
	if err != nil {
		return time.Time{}, fmt.Errorf("watch Pod %q: %w", name, err)
	}
	defer w.Stop()
	last := "no Pod"
	at, err := follow(ctx, w, func(event watch.EventType, pod *corev1.Pod) bool {
		if event == watch.Deleted {
			pod = nil
		} else {
			last = string(pod.Status.Phase)
		}
		return is(pod)
	})
	if err != nil {
		return at, fmt.Errorf("wait for Pod %q %s: %w (last: %s)", name, what, err, last)
	}
	return at, nil
}

func running(p *corev1.Pod) bool { return p != nil && p.Status.Phase == corev1.PodRunning }
func gone(p *corev1.Pod) bool    { return p == nil }

func is(want corev1.ResourceHealthStatus) func(*corev1.Pod) bool {
	return func(p *corev1.Pod) bool {
		if p == nil {
			return false
		}
		for _, c := range p.Status.ContainerStatuses {
			for _, a := range c.AllocatedResourcesStatus {
				for _, r := range a.Resources {
					return r.Health == want // each Pod has one device
				}
			}
		}
		return false
	}
}

// awaitFailedPrepare waits until the kubelet reports that it could not prepare a
// Pod's claims, and returns what it says.
func (p *player) awaitFailedPrepare(ctx context.Context, pod string) (message string, at time.Time, err error) {
	w, err := p.side.Client.CoreV1().Events(p.side.Namespace).Watch(ctx, metav1.ListOptions{
		FieldSelector: fields.Set{"involvedObject.name": pod, "reason": "FailedPrepareDynamicResources"}.String(),
	})
	if err != nil {
		return "", at, fmt.Errorf("watch events: %w", err)
	}
	defer w.Stop()
	at, err = follow(ctx, w, func(_ watch.EventType, e *corev1.Event) bool { message = e.Message; return true })
	if err != nil {
		return "", at, fmt.Errorf("wait for a failed prepare of Pod %q: %w", pod, err)
	}
	return message, at, nil
}

// slices is a watch of what the driver has published on the node.
type slices struct{ watch.Interface }

func (p *player) watchSlices(ctx context.Context) (slices, error) {
	w, err := p.side.Client.ResourceV1().ResourceSlices().Watch(ctx, metav1.ListOptions{FieldSelector: p.driver.slices()})
	if err != nil {
		return slices{}, fmt.Errorf("watch ResourceSlices: %w", err)
	}
	return slices{w}, nil
}

// await waits for the next event of a kind.
func (s slices) await(ctx context.Context, want watch.EventType) (time.Time, error) {
	return follow(ctx, s, func(event watch.EventType, _ *resourcev1.ResourceSlice) bool { return event == want })
}

// had says whether there was an event of a kind among those that have arrived.
func (s slices) had(want watch.EventType) bool {
	for {
		select {
		case e, ok := <-s.ResultChan():
			if !ok || e.Type == want {
				return ok
			}
		default:
			return false
		}
	}
}
