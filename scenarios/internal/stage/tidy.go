package stage

import (
	"context"
	"fmt"
	"strings"

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

// removeLeftovers removes what runs that were killed left: faults of any
// scenario, because they take GPUs from this one, and this scenario's
// namespaces.
func (s *Stage) removeLeftovers(ctx context.Context) error {
	if err := s.mendAll(ctx); err != nil {
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
		if err := s.removeShared(ctx, ns.Name); err != nil {
			return err
		}
	}
	return nil
}

// faultPrefix begins the IDs of the faults that scenarios inject: that is how
// they are found again, and told from those of users.
const faultPrefix = "scenario-"

func (s *Stage) faultID() string { return faultPrefix + s.scenario.Name }

// mendAll clears the faults of scenarios and waits until the GPUs that had them
// are untainted, those apart that a user has broken as well.
func (s *Stage) mendAll(ctx context.Context) error {
	if s.lab == nil {
		return nil
	}
	faults, err := fault.List(ctx, s.lab)
	if err != nil {
		return err
	}
	mended := map[GPU]bool{}
	for _, f := range faults {
		g := GPU{Node: f.Node, Name: f.Device}
		if !strings.HasPrefix(f.ID, faultPrefix) {
			mended[g] = false
			continue
		}
		if _, known := mended[g]; !known {
			mended[g] = true
		}
		if _, err := fault.Clear(ctx, s.lab, fault.Filter{ID: f.ID}); err != nil {
			return err
		}
	}
	return s.waitUntainted(ctx, func(g GPU) bool { return mended[g] })
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

// removeShared removes what the Pods of a namespace left on the volume that all
// nodes share.
func (s *Stage) removeShared(ctx context.Context, namespace string) error {
	if s.lab == nil {
		return nil
	}
	node, err := s.lab.ControlPlane(ctx)
	if err != nil {
		return err
	}
	_, err = node.Exec(ctx, nil, "rm", "-rf", "--", sharedDir(namespace))
	return err
}

// waitUntainted waits until none of the chosen GPUs has a taint.
func (s *Stage) waitUntainted(ctx context.Context, chosen func(GPU) bool) error {
	tainted := map[string]GPU{}
	look := func(object any) {
		slice, ok := object.(*resourcev1.ResourceSlice)
		if !ok {
			return
		}
		delete(tainted, slice.Name)
		for _, d := range slice.Spec.Devices {
			if g := (GPU{Node: slice.Spec.Pool.Name, Name: d.Name}); len(d.Taints) > 0 && chosen(g) {
				tainted[slice.Name] = g
			}
		}
	}
	resourceSlices := s.Client.ResourceV1().ResourceSlices()
	selector := fields.OneTermEqualSelector(resourcev1.ResourceSliceSelectorDriver, api.DriverName).String()
	_, err := watchtools.UntilWithSync(ctx, listWatch(selector, resourceSlices.List, resourceSlices.Watch), &resourcev1.ResourceSlice{},
		func(store cache.Store) (bool, error) {
			for _, object := range store.List() {
				look(object)
			}
			return len(tainted) == 0, nil
		},
		func(e watch.Event) (bool, error) {
			// One that is deleted comes back; what it said stands until then.
			if e.Type != watch.Deleted {
				look(e.Object)
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
