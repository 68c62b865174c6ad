package lesson

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"

	"github.com/dra-lab/dra-lab/driver/api"
)

const (
	fieldManager = "dra-lab-exercise"
	// labelExercise marks the namespaces of exercises, so that no other of the
	// same name is ever removed.
	labelExercise = api.DriverName + "/exercise"
	// removal bounds how long a namespace takes to go: Pods end within their grace
	// period, and their claims are unprepared.
	removal = 2 * time.Minute
	// settling is how often a check is made anew while it is waited for.
	settling = 500 * time.Millisecond
)

// Room is a cluster in which exercises play. It is safe for concurrent use.
type Room struct {
	Client kubernetes.Interface

	dynamic dynamic.Interface
	mapper  meta.RESTMapper
	image   string
}

// Enter connects to a cluster that has the lab's driver.
func Enter(ctx context.Context, config *rest.Config) (*Room, error) {
	config = rest.CopyConfig(config)
	config.QPS = -1
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("connect to the cluster: %w", err)
	}
	untyped, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("connect to the cluster: %w", err)
	}
	// The lab says which images it has brought.
	installed, err := client.CoreV1().ConfigMaps(api.Namespace).Get(ctx, "lab", metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("look for the lab's driver: %w", err)
	}
	image := installed.Data["trainerImage"]
	if image == "" {
		return nil, errors.New("look for the lab's driver: ConfigMap lab has no trainerImage")
	}
	return &Room{
		Client: client, dynamic: untyped, image: image,
		mapper: restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(client.Discovery())),
	}, nil
}

// Fill completes a manifest: "image: trainer" becomes the image that the nodes
// have.
func (r *Room) Fill(manifest string) string {
	return strings.ReplaceAll(manifest, "image: trainer\n", "image: "+r.image+"\n")
}

// Begin makes the exercise's namespace and puts its start there. What is there
// already stays.
func (r *Room) Begin(ctx context.Context, e Exercise) error {
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: e.Namespace(), Labels: map[string]string{labelExercise: e.Name}}}
	_, err := r.Client.CoreV1().Namespaces().Create(ctx, ns, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create namespace %q: %w", ns.Name, err)
	}
	if err := r.ours(ctx, e); err != nil {
		return err
	}
	return r.Apply(ctx, e, e.Start)
}

// ours makes sure that the namespace belongs to the exercise.
func (r *Room) ours(ctx context.Context, e Exercise) error {
	ns, err := r.Client.CoreV1().Namespaces().Get(ctx, e.Namespace(), metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("read namespace %q: %w", e.Namespace(), err)
	}
	if ns.Labels[labelExercise] != e.Name {
		return fmt.Errorf("use namespace %q: it was not made for the exercise", e.Namespace())
	}
	if ns.DeletionTimestamp != nil {
		return fmt.Errorf("use namespace %q: %w", e.Namespace(), errGoing)
	}
	return nil
}

// errGoing is the state of a namespace that somebody has begun to remove.
var errGoing = errors.New("it is being removed")

// Apply applies manifests in the exercise's namespace, in the order of their
// files' names.
func (r *Room) Apply(ctx context.Context, e Exercise, files map[string]string) error {
	for _, name := range slices.Sorted(maps.Keys(files)) {
		decoder := yaml.NewYAMLOrJSONDecoder(strings.NewReader(r.Fill(files[name])), 4096)
		for {
			object := &unstructured.Unstructured{}
			if err := decoder.Decode(&object.Object); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				return fmt.Errorf("read %s: %w", name, err)
			}
			if len(object.Object) == 0 {
				continue
			}
			if err := r.apply(ctx, e.Namespace(), object); err != nil {
				return fmt.Errorf("apply %s: %w", name, err)
			}
		}
	}
	return nil
}

func (r *Room) apply(ctx context.Context, namespace string, object *unstructured.Unstructured) error {
	kind := object.GroupVersionKind()
	mapping, err := r.mapper.RESTMapping(kind.GroupKind(), kind.Version)
	if err != nil {
		return fmt.Errorf("find the resource of kind %s: %w", kind.Kind, err)
	}
	if mapping.Scope.Name() != meta.RESTScopeNameNamespace {
		return fmt.Errorf("%s %q: exercises stay in their namespace", kind.Kind, object.GetName())
	}
	object.SetNamespace(namespace)
	_, err = r.dynamic.Resource(mapping.Resource).Namespace(namespace).
		Apply(ctx, object.GetName(), object, metav1.ApplyOptions{FieldManager: fieldManager, Force: true})
	if err != nil {
		return fmt.Errorf("%s %q: %w", kind.Kind, object.GetName(), err)
	}
	return nil
}

// Clear removes the exercise's namespace and returns when it is gone. None is no
// error.
func (r *Room) Clear(ctx context.Context, e Exercise) error {
	namespaces := r.Client.CoreV1().Namespaces()
	if err := r.ours(ctx, e); apierrors.IsNotFound(err) {
		return nil
	} else if err != nil && !errors.Is(err, errGoing) {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, removal, fmt.Errorf("not within %s", removal))
	defer cancel()
	// Its Pods first: a namespace removes its content in no order, and a Pod whose
	// claim has gone before it is unprepared later.
	if err := r.Client.CoreV1().Pods(e.Namespace()).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		return fmt.Errorf("remove Pods of %q: %w", e.Namespace(), err)
	}
	if err := namespaces.Delete(ctx, e.Namespace(), metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("remove namespace %q: %w", e.Namespace(), err)
	}
	only := metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", e.Namespace()).String()}
	list, err := namespaces.List(ctx, only)
	if err != nil {
		return fmt.Errorf("wait until namespace %q is gone: %w", e.Namespace(), err)
	}
	if len(list.Items) == 0 {
		return nil
	}
	watcher := &cache.ListWatch{WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
		o.FieldSelector = only.FieldSelector
		return namespaces.Watch(ctx, o)
	}}
	_, err = watchtools.Until(ctx, list.ResourceVersion, watcher, func(ev watch.Event) (bool, error) {
		return ev.Type == watch.Deleted, nil
	})
	if err != nil {
		return fmt.Errorf("wait until namespace %q is gone: %w", e.Namespace(), errors.Join(err, context.Cause(ctx)))
	}
	return nil
}

// Check looks at the cluster once and says what holds.
func (r *Room) Check(ctx context.Context, e Exercise) ([]Finding, error) {
	if err := r.ours(ctx, e); err != nil {
		return nil, err
	}
	s, err := Take(ctx, r.Client, e.Namespace())
	if err != nil {
		return nil, err
	}
	return e.Check(s), nil
}

// Await checks until is says yes of what was found, or ctx ends: then the error
// has what was found last. What a check looks at are objects of many kinds, so it
// is made anew twice a second rather than on watches of them all.
func (r *Room) Await(ctx context.Context, e Exercise, is func([]Finding) bool) ([]Finding, error) {
	tick := time.NewTicker(settling)
	defer tick.Stop()
	var last []Finding
	for {
		found, err := r.Check(ctx, e)
		if err == nil && is(found) {
			return found, nil
		}
		if err == nil {
			last = found
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return last, fmt.Errorf("check exercise %q: %w (last: %v)", e.Name, context.Cause(ctx), last)
		}
	}
}
