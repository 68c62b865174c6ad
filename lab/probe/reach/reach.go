package reach

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"

	"github.com/dra-lab/dra-lab/lab/probe"
)

// ErrPodGone is the end of Follow when the Pod is deleted.
var ErrPodGone = errors.New("the Pod was deleted")

// Follow calls update with the Pod as it is now and at each change, until ctx
// ends or the Pod is gone, and returns the cause or ErrPodGone. The first call
// is not for a Pod that does not exist. Another Pod of the same name is not this
// one.
func Follow(ctx context.Context, client kubernetes.Interface, pod *corev1.Pod, update func(*corev1.Pod)) error {
	pods := client.CoreV1().Pods(pod.Namespace)
	selector := fields.OneTermEqualSelector(metav1.ObjectNameField, pod.Name).String()
	lw := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.FieldSelector = selector
			return pods.List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.FieldSelector = selector
			return pods.Watch(ctx, o)
		},
	}
	look := func(object any) error {
		now, ok := object.(*corev1.Pod)
		if !ok || now.UID != pod.UID {
			return ErrPodGone
		}
		update(now)
		return nil
	}
	_, err := watchtools.UntilWithSync(ctx, cache.ToListWatcherWithWatchListSemantics(lw, client), &corev1.Pod{},
		func(store cache.Store) (bool, error) {
			for _, object := range store.List() {
				return false, look(object)
			}
			return false, ErrPodGone
		},
		func(e watch.Event) (bool, error) {
			if e.Type == watch.Deleted {
				return false, ErrPodGone
			}
			return false, look(e.Object)
		})
	if errors.Is(err, ErrPodGone) {
		return ErrPodGone
	}
	return fmt.Errorf("watch Pod %s/%s: %w", pod.Namespace, pod.Name, cmp.Or(context.Cause(ctx), err))
}

// UserAgent is what the kubelet of a node calls itself. If the node may not be
// read, it is taken for one of the API server's version.
func UserAgent(ctx context.Context, client kubernetes.Interface, node string) (string, error) {
	if n, err := client.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{}); err == nil {
		return probe.UserAgent(n.Status.NodeInfo.KubeletVersion), nil
	}
	version, err := client.Discovery().ServerVersion()
	if err != nil {
		return "", fmt.Errorf("read version of the API server: %w", err)
	}
	return probe.UserAgent(version.GitVersion), nil
}
