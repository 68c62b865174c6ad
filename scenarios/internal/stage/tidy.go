package stage

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
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
	mended, err := s.mendAll(ctx)
	if err != nil {
		return err
	}
	if err := s.waitUntainted(ctx, mended); err != nil {
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
	// Of all its namespaces, those included that went later than a run waited.
	return s.removeShared(ctx, s.scenario.Name+"-")
}

// faultPrefix begins the IDs of the faults that scenarios inject: that is how
// they are found again, and told from those of users.
const faultPrefix = "scenario-"

func (s *Stage) faultID() string { return faultPrefix + s.scenario.Name }

// mendAll clears the faults of scenarios, of drivers and nodes too, and returns
// the GPUs that have none left, those apart that a user has broken as well. A node that does not answer
// does not keep the others from being mended.
func (s *Stage) mendAll(ctx context.Context) (mended map[GPU]bool, err error) {
	if s.lab == nil {
		return nil, nil
	}
	faults, err := fault.List(ctx, s.lab)
	errs := []error{err}
	mended = map[GPU]bool{}
	for _, f := range faults {
		g := GPU{Node: f.Node, Name: f.Device}
		ours := strings.HasPrefix(f.ID, faultPrefix)
		if _, known := mended[g]; api.Target(f.Kind) == api.TargetGPU && (!known || !ours) {
			mended[g] = ours
		}
		if !ours {
			continue
		}
		_, err := fault.Clear(ctx, s.lab, fault.Filter{Node: f.Node, Device: f.Device, ID: f.ID})
		errs = append(errs, err)
	}
	return mended, errors.Join(errs...)
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

// removeShared removes what the Pods of the namespaces whose names begin with
// prefix left on the volume that all nodes share.
func (s *Stage) removeShared(ctx context.Context, prefix string) error {
	if s.lab == nil {
		return nil
	}
	node, err := s.lab.ControlPlane(ctx)
	if err != nil {
		return err
	}
	_, err = node.Exec(ctx, nil, "sh", "-c", `rm -rf -- "$1"*`, "sh", sharedDir(prefix))
	return err
}

// waitUntainted waits until the chosen GPUs are published without a taint.
func (s *Stage) waitUntainted(ctx context.Context, chosen map[GPU]bool) error {
	if len(tainted(nil, chosen)) == 0 {
		return nil // none is chosen
	}
	published := map[string]*resourcev1.ResourceSlice{}
	look := func(object any, deleted bool) {
		slice, ok := object.(*resourcev1.ResourceSlice)
		switch {
		case !ok:
		case deleted:
			delete(published, slice.Name)
		default:
			published[slice.Name] = slice
		}
	}
	resourceSlices := s.Client.ResourceV1().ResourceSlices()
	selector := fields.OneTermEqualSelector(resourcev1.ResourceSliceSelectorDriver, api.DriverName).String()
	_, err := watchtools.UntilWithSync(ctx, listWatch(selector, resourceSlices.List, resourceSlices.Watch), &resourcev1.ResourceSlice{},
		func(store cache.Store) (bool, error) {
			for _, object := range store.List() {
				look(object, false)
			}
			return len(tainted(published, chosen)) == 0, nil
		},
		func(e watch.Event) (bool, error) {
			look(e.Object, e.Type == watch.Deleted)
			return len(tainted(published, chosen)) == 0, nil
		})
	if err != nil {
		return fmt.Errorf("wait until no GPU is tainted: %w (still tainted: %v)", cmp.Or(context.Cause(ctx), err), tainted(published, chosen))
	}
	return nil
}

// tainted lists the chosen GPUs that have a taint, or are not published: slices
// that are wiped come back, under other names. Of a pool the newest generation
// counts.
func tainted(published map[string]*resourcev1.ResourceSlice, chosen map[GPU]bool) []GPU {
	newest := map[string]int64{}
	for _, slice := range published {
		pool := slice.Spec.Pool
		newest[pool.Name] = max(newest[pool.Name], pool.Generation)
	}
	rest := maps.Clone(chosen)
	maps.DeleteFunc(rest, func(_ GPU, wanted bool) bool { return !wanted })
	for _, slice := range published {
		if slice.Spec.Pool.Generation < newest[slice.Spec.Pool.Name] {
			continue
		}
		for _, d := range slice.Spec.Devices {
			if len(d.Taints) == 0 {
				delete(rest, GPU{Node: slice.Spec.Pool.Name, Name: d.Name})
			}
		}
	}
	return slices.Collect(maps.Keys(rest))
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
