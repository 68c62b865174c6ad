package lesson

import (
	"context"
	"fmt"
	"slices"

	"golang.org/x/sync/errgroup"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"

	"github.com/dra-lab/dra-lab/driver/api"
)

// Snapshot is what a check looks at: all of the exercise's namespace that
// matters, and the devices of the lab's driver.
type Snapshot struct {
	Pods        []corev1.Pod
	Claims      []resourcev1.ResourceClaim
	Templates   []resourcev1.ResourceClaimTemplate
	Deployments []appsv1.Deployment
	ConfigMaps  []corev1.ConfigMap
	Events      []corev1.Event
	Slices      []resourcev1.ResourceSlice
}

// Take takes a snapshot.
func Take(ctx context.Context, client kubernetes.Interface, namespace string) (Snapshot, error) {
	var s Snapshot
	all := metav1.ListOptions{}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		return list(ctx, "Pods", &s.Pods, items(client.CoreV1().Pods(namespace).List, all, func(l *corev1.PodList) []corev1.Pod { return l.Items }))
	})
	group.Go(func() error {
		return list(ctx, "ResourceClaims", &s.Claims, items(client.ResourceV1().ResourceClaims(namespace).List, all, func(l *resourcev1.ResourceClaimList) []resourcev1.ResourceClaim { return l.Items }))
	})
	group.Go(func() error {
		return list(ctx, "ResourceClaimTemplates", &s.Templates, items(client.ResourceV1().ResourceClaimTemplates(namespace).List, all, func(l *resourcev1.ResourceClaimTemplateList) []resourcev1.ResourceClaimTemplate { return l.Items }))
	})
	group.Go(func() error {
		return list(ctx, "Deployments", &s.Deployments, items(client.AppsV1().Deployments(namespace).List, all, func(l *appsv1.DeploymentList) []appsv1.Deployment { return l.Items }))
	})
	group.Go(func() error {
		return list(ctx, "ConfigMaps", &s.ConfigMaps, items(client.CoreV1().ConfigMaps(namespace).List, all, func(l *corev1.ConfigMapList) []corev1.ConfigMap { return l.Items }))
	})
	group.Go(func() error {
		return list(ctx, "Events", &s.Events, items(client.CoreV1().Events(namespace).List, all, func(l *corev1.EventList) []corev1.Event { return l.Items }))
	})
	group.Go(func() error {
		ours := metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector(resourcev1.ResourceSliceSelectorDriver, api.DriverName).String()}
		return list(ctx, "ResourceSlices", &s.Slices, items(client.ResourceV1().ResourceSlices().List, ours, func(l *resourcev1.ResourceSliceList) []resourcev1.ResourceSlice { return l.Items }))
	})
	return s, group.Wait()
}

func items[L, T any](call func(context.Context, metav1.ListOptions) (L, error), o metav1.ListOptions, of func(L) []T) func(context.Context) ([]T, error) {
	return func(ctx context.Context) ([]T, error) {
		l, err := call(ctx, o)
		if err != nil {
			return nil, err
		}
		return of(l), nil
	}
}

func list[T any](ctx context.Context, what string, to *[]T, call func(context.Context) ([]T, error)) (err error) {
	if *to, err = call(ctx); err != nil {
		return fmt.Errorf("list %s: %w", what, err)
	}
	return nil
}

// Pod is the Pod of this name that is not being deleted.
func (s Snapshot) Pod(name string) (corev1.Pod, bool) {
	i := slices.IndexFunc(s.Pods, func(p corev1.Pod) bool { return p.Name == name && p.DeletionTimestamp == nil })
	if i < 0 {
		return corev1.Pod{}, false
	}
	return s.Pods[i], true
}

// Running reports whether the Pod's containers run, or have run to their end.
func Running(p corev1.Pod) bool {
	return p.Status.Phase == corev1.PodRunning || p.Status.Phase == corev1.PodSucceeded
}

// ClaimsOf are the claims that a Pod uses, in the order in which it names them.
// Claims that are not there yet are left out.
func (s Snapshot) ClaimsOf(p corev1.Pod) []resourcev1.ResourceClaim {
	var found []resourcev1.ResourceClaim
	for _, used := range p.Spec.ResourceClaims {
		name := ""
		if used.ResourceClaimName != nil {
			name = *used.ResourceClaimName
		}
		for _, made := range p.Status.ResourceClaimStatuses {
			if made.Name == used.Name && made.ResourceClaimName != nil {
				name = *made.ResourceClaimName
			}
		}
		if i := slices.IndexFunc(s.Claims, func(c resourcev1.ResourceClaim) bool { return name != "" && c.Name == name }); i >= 0 {
			found = append(found, s.Claims[i])
		}
	}
	return found
}

// ReservedFor reports whether the Pod is among those that may use the claim now.
func ReservedFor(c resourcev1.ResourceClaim, p corev1.Pod) bool {
	return slices.ContainsFunc(c.Status.ReservedFor, func(r resourcev1.ResourceClaimConsumerReference) bool {
		return r.Resource == "pods" && r.Name == p.Name
	})
}

// Device is one allocated device.
type Device struct{ Node, Name string }

// Devices are the devices of the lab's driver that the claim has.
func Devices(c resourcev1.ResourceClaim) []Device {
	if c.Status.Allocation == nil {
		return nil
	}
	var found []Device
	for _, r := range c.Status.Allocation.Devices.Results {
		if r.Driver == api.DriverName {
			found = append(found, Device{Node: r.Pool, Name: r.Device})
		}
	}
	return found
}

// DevicesOf are the devices of all claims of a Pod.
func (s Snapshot) DevicesOf(p corev1.Pod) []Device {
	var found []Device
	for _, c := range s.ClaimsOf(p) {
		found = append(found, Devices(c)...)
	}
	return found
}

// Published is a device as it is in its ResourceSlice.
func (s Snapshot) Published(d Device) (resourcev1.Device, bool) {
	for _, slice := range s.Slices {
		if slice.Spec.Pool.Name != d.Node {
			continue
		}
		for _, published := range slice.Spec.Devices {
			if published.Name == d.Name {
				return published, true
			}
		}
	}
	return resourcev1.Device{}, false
}

// Tainted are the devices with a taint that keeps Pods away.
func (s Snapshot) Tainted() []Device {
	var found []Device
	for _, slice := range s.Slices {
		for _, published := range slice.Spec.Devices {
			if len(published.Taints) > 0 {
				found = append(found, Device{Node: slice.Spec.Pool.Name, Name: published.Name})
			}
		}
	}
	return found
}

// Answer is what the learner has written under a key of the ConfigMap answer, ""
// for nothing.
func (s Snapshot) Answer(key string) string {
	for _, c := range s.ConfigMaps {
		if c.Name == AnswerName {
			return c.Data[key]
		}
	}
	return ""
}

// AnswerName is the ConfigMap in which a learner answers questions.
const AnswerName = "answer"

// State is what a Pod is doing, for people: its phase, and why it waits. A Pod
// that does not exist is "not there".
func State(p corev1.Pod) string {
	if p.Name == "" {
		return "not there"
	}
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
			return fmt.Sprintf("%s, not scheduled: %s", p.Status.Phase, c.Message)
		}
	}
	for _, c := range p.Status.ContainerStatuses {
		switch {
		case c.State.Waiting != nil && c.State.Waiting.Reason != "":
			return fmt.Sprintf("%s, container %s waits: %s", p.Status.Phase, c.Name, c.State.Waiting.Reason)
		case c.State.Terminated != nil:
			return fmt.Sprintf("%s, container %s ended with status %d", p.Status.Phase, c.Name, c.State.Terminated.ExitCode)
		}
	}
	return string(p.Status.Phase)
}

// String is "gpu-0 of worker".
func (d Device) String() string { return d.Name + " of " + d.Node }
