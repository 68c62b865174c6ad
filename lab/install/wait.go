package install

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"

	"github.com/dra-lab/dra-lab/driver/api"
	"github.com/dra-lab/dra-lab/lab/internal/ui"
)

// wait watches until the driver serves as g says.
func (i installer) wait(ctx context.Context, g goal) (err error) {
	step := i.ui.Step("waiting for the driver on %s", plural(len(g.nodes), "node"))
	defer func() { step.Done(err) }()

	timeout := i.options.Timeout
	if timeout == 0 {
		timeout = defaultTimeout
	}
	watching, stop := context.WithTimeoutCause(ctx, timeout, fmt.Errorf("not within %s", timeout))
	defer stop()
	look, changed, shutdown, err := i.clients.watch(watching)
	if err != nil {
		return err
	}
	defer shutdown()
	defer stop() // before shutdown, which waits for the watches to end

	var last scene
	missing := []string{"nothing seen of it"}
	for {
		select {
		case <-watching.Done():
			err := fmt.Errorf("wait for the driver: %w (last: %s)", context.Cause(watching), strings.Join(missing, "; "))
			if ctx.Err() != nil {
				return err
			}
			return i.explain(ctx, err, g, last)
		case <-changed:
		}
		last = look()
		if missing, err = g.verdict(last); err != nil {
			return i.explain(ctx, err, g, last)
		}
		if len(missing) == 0 {
			return nil
		}
		step.Update(strings.Join(missing, "; "))
	}
}

// watch follows everything that a goal is about. look returns the current
// state; changed has a value whenever that may have become another one.
// shutdown waits until the watches have ended, which they do with ctx.
func (c clients) watch(ctx context.Context) (look func() scene, changed <-chan struct{}, shutdown func(), err error) {
	// One pending signal is enough: whoever takes it looks at everything.
	signal := make(chan struct{}, 1)
	notify := func() {
		select {
		case signal <- struct{}{}:
		default:
		}
	}
	handler := cache.ResourceEventHandlerFuncs{
		AddFunc:    func(any) { notify() },
		UpdateFunc: func(any, any) { notify() },
		DeleteFunc: func(any) { notify() },
	}
	named := func(o *metav1.ListOptions) { o.LabelSelector = "app.kubernetes.io/name=" + api.AppLabel }
	local := informers.NewSharedInformerFactoryWithOptions(c.kubernetes, 0,
		informers.WithNamespace(api.Namespace), informers.WithTweakListOptions(named))
	global := informers.NewSharedInformerFactoryWithOptions(c.kubernetes, 0,
		informers.WithTweakListOptions(func(o *metav1.ListOptions) {
			o.FieldSelector = resourcev1.ResourceSliceSelectorDriver + "=" + api.DriverName
		}))
	drivers := local.Apps().V1().DaemonSets().Informer()
	revisions := local.Apps().V1().ControllerRevisions().Informer()
	pods := local.Core().V1().Pods().Informer()
	slices := global.Resource().V1().ResourceSlices().Informer()
	for _, informer := range []cache.SharedIndexInformer{drivers, revisions, pods, slices} {
		if _, err := informer.AddEventHandler(handler); err != nil {
			return nil, nil, nil, fmt.Errorf("watch the driver: %w", err)
		}
	}
	local.StartWithContext(ctx)
	global.StartWithContext(ctx)
	look = func() scene {
		s := scene{
			revisions: typed[*appsv1.ControllerRevision](revisions.GetStore().List()),
			pods:      typed[*corev1.Pod](pods.GetStore().List()),
			slices:    typed[*resourcev1.ResourceSlice](slices.GetStore().List()),
		}
		if found := typed[*appsv1.DaemonSet](drivers.GetStore().List()); len(found) > 0 {
			s.driver = found[0]
		}
		return s
	}
	return look, signal, func() { local.Shutdown(); global.Shutdown() }, nil
}

func typed[T any](objects []any) []T {
	list := make([]T, 0, len(objects))
	for _, o := range objects {
		if t, ok := o.(T); ok {
			list = append(list, t)
		}
	}
	return list
}

// logLimit bounds what is quoted of a driver's log.
const logLimit = 64 << 10

// explain adds to err the log of the driver Pod that is in trouble, and how to
// look further.
func (i installer) explain(ctx context.Context, err error, g goal, s scene) error {
	pod := culprit(err, g, s)
	if pod == nil {
		return ui.WithHint(err, "lab kubectl -n %s get pods,resourceslices -o wide", api.Namespace)
	}
	if log := i.clients.log(ctx, pod); log != "" {
		err = ui.WithDetail(err, "log of driver Pod "+pod.Name, log)
	}
	return ui.WithHint(err, "lab kubectl -n %s describe pod %s", api.Namespace, pod.Name)
}

// culprit is the Pod that err is about, or the first that is not ready.
func culprit(err error, g goal, s scene) *corev1.Pod {
	var failed *podError
	if errors.As(err, &failed) {
		return failed.pod
	}
	for _, node := range g.nodes {
		for _, pod := range podsOn(node, s.pods) {
			if !podReady(pod) {
				return pod
			}
		}
	}
	return nil
}

// log returns the end of a Pod's log: of the run before if that has ended,
// else of this one; empty if there is none.
func (c clients) log(ctx context.Context, pod *corev1.Pod) string {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	lines, limit := int64(40), int64(logLimit)
	for _, previous := range []bool{true, false} {
		stream, err := c.kubernetes.CoreV1().Pods(pod.Namespace).GetLogs(pod.Name, &corev1.PodLogOptions{
			Previous: previous, TailLines: &lines, LimitBytes: &limit,
		}).Stream(ctx)
		if err != nil {
			continue
		}
		text, err := io.ReadAll(io.LimitReader(stream, logLimit))
		_ = stream.Close() // nothing was written
		if err == nil && len(text) > 0 {
			return string(text)
		}
	}
	return ""
}
