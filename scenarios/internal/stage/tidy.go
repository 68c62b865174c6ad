package stage

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"

	"github.com/dra-lab/dra-lab/driver/api"
	"github.com/dra-lab/dra-lab/lab/fault"
)

// removeLeftovers removes what a run of this scenario that was killed left.
func (s *Stage) removeLeftovers(ctx context.Context) error {
	if err := s.clearFaults(ctx); err != nil {
		return err
	}
	list, err := s.Client.CoreV1().Namespaces().List(ctx, metav1.ListOptions{LabelSelector: labelScenario + "=" + s.scenario.Name})
	if err != nil {
		return fmt.Errorf("look for leftovers of scenario %q: %w", s.scenario.Name, err)
	}
	for _, ns := range list.Items {
		if err := s.removeNamespace(ctx, ns.Name); err != nil {
			return err
		}
	}
	return s.waitUntainted(ctx)
}

// faultID is the same for all faults of a scenario: that is how they are found
// again.
func (s *Stage) faultID() string { return "scenario-" + s.scenario.Name }

func (s *Stage) clearFaults(ctx context.Context) error {
	if s.lab == nil {
		return nil
	}
	_, err := fault.Clear(ctx, s.lab, fault.Filter{ID: s.faultID()})
	return err
}

// removeNamespace deletes a namespace and waits until it is gone.
func (s *Stage) removeNamespace(ctx context.Context, name string) error {
	namespaces := s.Client.CoreV1().Namespaces()
	if err := namespaces.Delete(ctx, name, metav1.DeleteOptions{}); apierrors.IsNotFound(err) {
		return nil
	} else if err != nil {
		return fmt.Errorf("delete namespace %q: %w", name, err)
	}
	selector := fields.OneTermEqualSelector(metav1.ObjectNameField, name).String()
	lw := listWatch(selector, namespaces.List, namespaces.Watch)
	gone := func(store cache.Store) (bool, error) { return len(store.List()) == 0, nil }
	isDeleted := func(e watch.Event) (bool, error) { return e.Type == watch.Deleted, nil }
	if _, err := watchtools.UntilWithSync(ctx, lw, &corev1.Namespace{}, gone, isDeleted); err != nil {
		return fmt.Errorf("wait until namespace %q is gone: %w", name, err)
	}
	return nil
}

// removeShared empties what the scenario's Pods left on the volume that all
// nodes share.
func (s *Stage) removeShared(ctx context.Context) error {
	if s.lab == nil {
		return nil
	}
	node, err := s.lab.ControlPlane(ctx)
	if err != nil {
		return err
	}
	_, err = node.Exec(ctx, nil, "rm", "-rf", "--", s.SharedDir())
	return err
}

// waitUntainted waits until no device of the driver has a taint: the next
// scenario needs them all.
func (s *Stage) waitUntainted(ctx context.Context) error {
	resourceSlices := s.Client.ResourceV1().ResourceSlices()
	selector := fields.OneTermEqualSelector(resourcev1.ResourceSliceSelectorDriver, api.DriverName).String()
	lw := listWatch(selector, resourceSlices.List, resourceSlices.Watch)
	tainted := map[string]string{}
	look := func(slice *resourcev1.ResourceSlice) {
		delete(tainted, slice.Name)
		for _, d := range slice.Spec.Devices {
			if len(d.Taints) > 0 {
				tainted[slice.Name] = fmt.Sprintf("%s of %s: %s", d.Name, slice.Spec.Pool.Name, d.Taints[0].Key)
			}
		}
	}
	_, err := watchtools.UntilWithSync(ctx, lw, &resourcev1.ResourceSlice{}, func(store cache.Store) (bool, error) {
		for _, object := range store.List() {
			if slice, ok := object.(*resourcev1.ResourceSlice); ok {
				look(slice)
			}
		}
		return len(tainted) == 0, nil
	}, func(e watch.Event) (bool, error) {
		slice, ok := e.Object.(*resourcev1.ResourceSlice)
		switch {
		case !ok:
		case e.Type == watch.Deleted:
			delete(tainted, slice.Name)
		default:
			look(slice)
		}
		return len(tainted) == 0, nil
	})
	if err != nil {
		return fmt.Errorf("wait until no GPU is tainted: %w (still tainted: %v)", err, tainted)
	}
	return nil
}

// listWatch is the objects that a field selector chooses.
func listWatch[L runtime.Object](selector string, list func(context.Context, metav1.ListOptions) (L, error), open func(context.Context, metav1.ListOptions) (watch.Interface, error)) *cache.ListWatch {
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.FieldSelector = selector
			return list(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.FieldSelector = selector
			return open(ctx, o)
		},
	}
}
