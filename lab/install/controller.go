package install

import (
	"cmp"
	"context"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"

	"github.com/dra-lab/dra-lab/driver/api"
	"github.com/dra-lab/dra-lab/lab/internal/ui"
)

// waitController watches until the controller is rolled out.
func (i installer) waitController(ctx context.Context, generation int64) (err error) {
	step := i.ui.Step("waiting for the controller")
	defer func() { step.Done(err) }()
	timeout := cmp.Or(i.options.Timeout, defaultTimeout)
	watching, stop := context.WithTimeoutCause(ctx, timeout, fmt.Errorf("not within %s", timeout))
	defer stop()
	last := "no Deployment yet"
	rolledOut := func(object any) bool {
		d, ok := object.(*appsv1.Deployment)
		if ok {
			last = rollout(d, generation)
		}
		return ok && last == ""
	}
	deployments := i.clients.kubernetes.AppsV1().Deployments(api.Namespace)
	named := func(o metav1.ListOptions) metav1.ListOptions {
		o.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, api.ControllerName).String()
		return o
	}
	_, err = watchtools.UntilWithSync(watching, &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return deployments.List(ctx, named(o))
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return deployments.Watch(ctx, named(o))
		},
	}, &appsv1.Deployment{}, func(store cache.Store) (bool, error) {
		for _, object := range store.List() {
			if rolledOut(object) {
				return true, nil
			}
		}
		return false, nil
	}, func(e watch.Event) (bool, error) { return e.Type != watch.Deleted && rolledOut(e.Object), nil })
	if err == nil {
		return nil
	}
	err = fmt.Errorf("wait for the controller: %w (last: %s)", cmp.Or(context.Cause(watching), err), last)
	return i.explainController(ctx, err)
}

// rollout says what is missing of a Deployment that is to run as it is now;
// empty means nothing.
func rollout(d *appsv1.Deployment, generation int64) string {
	want := int32(1)
	if d.Spec.Replicas != nil {
		want = *d.Spec.Replicas
	}
	s := d.Status
	switch {
	case s.ObservedGeneration < generation:
		return "the Deployment has not been looked at yet"
	case s.UpdatedReplicas < want:
		return fmt.Sprintf("%d of %d controller Pods are new", s.UpdatedReplicas, want)
	case s.AvailableReplicas < want:
		return fmt.Sprintf("%d of %d controller Pods are ready", s.AvailableReplicas, want)
	case s.Replicas > want:
		return "an old controller Pod is still there"
	}
	return ""
}

// explainController adds to err what the Pod says that is not ready.
func (i installer) explainController(ctx context.Context, err error) error {
	hint := func(err error) error {
		return ui.WithHint(err, "lab kubectl -n %s describe pods -l app.kubernetes.io/name=%s", api.Namespace, api.ControllerName)
	}
	if ctx.Err() != nil {
		return err
	}
	asking, cancel := context.WithTimeout(ctx, driverAnswer)
	defer cancel()
	list, listErr := i.clients.kubernetes.CoreV1().Pods(api.Namespace).List(asking, metav1.ListOptions{
		LabelSelector: "app.kubernetes.io/name=" + api.ControllerName,
	})
	if listErr != nil {
		return hint(err)
	}
	for n := range list.Items {
		pod := &list.Items[n]
		if podReady(pod) {
			continue
		}
		err = fmt.Errorf("%w: Pod %s: %s", err, pod.Name, describe(pod))
		if log := i.clients.log(ctx, pod); log != "" {
			err = ui.WithDetail(err, "log of controller Pod "+pod.Name, log)
		}
		break
	}
	return hint(err)
}
