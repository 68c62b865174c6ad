package timeline

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/dra-lab/dra-lab/driver/api"
)

// Config is what a recorder watches and where it writes. The zero value of each
// field but Namespace works.
type Config struct {
	// Title heads the timeline.
	Title string
	// Namespace is whose Pods, claims, Jobs and Events are recorded.
	Namespace string
	// Live gets a line per event as it happens, nil for none.
	Live io.Writer
}

// Recorder records what happens from its start on; what is there before is its
// background, not news. It is safe for concurrent use.
type Recorder struct {
	config Config
	log    *log
	client kubernetes.Interface
	start  time.Time

	cancel context.CancelCauseFunc
	tasks  *errgroup.Group
	logs   *follower
	live   chan error
}

// Start watches the cluster and returns when all watches stand: what the caller
// does then is recorded. ctx bounds that; the recorder goes on until Stop.
func Start(ctx context.Context, config *rest.Config, c Config) (*Recorder, error) {
	// Watches and log streams are long-lived; the client's own rate limit is
	// for programs that write.
	config = rest.CopyConfig(config)
	config.QPS = -1
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("record timeline: %w", err)
	}
	return start(ctx, client, c)
}

func start(ctx context.Context, client kubernetes.Interface, c Config) (*Recorder, error) {
	running, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	goOn := context.AfterFunc(ctx, func() { cancel(context.Cause(ctx)) })
	tasks, running := errgroup.WithContext(running)
	r := &Recorder{
		config: c, log: newLog(maxEvents), client: client, start: time.Now(),
		cancel: cancel, tasks: tasks, live: make(chan error, 1),
	}
	r.logs = &follower{client: client, run: tasks, since: r.start}
	if c.Live != nil {
		go func() { r.live <- show(r.log, c.Live) }()
	} else {
		r.live <- nil
	}
	err := r.watchAll(running)
	if !goOn() && err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("record timeline of namespace %q: %w", c.Namespace, err), r.end(err))
	}
	return r, nil
}

// watchAll starts the watches and waits until each has its first list.
func (r *Recorder) watchAll(ctx context.Context) error {
	ns, c := r.config.Namespace, r.client
	ours := fields.OneTermEqualSelector(resourcev1.ResourceSliceSelectorDriver, api.DriverName).String()
	synced := []cache.InformerSynced{
		watch(ctx, r, c.CoreV1().Pods(ns), "", podChange, r.followWorkload),
		watch(ctx, r, c.CoreV1().Events(ns), "", eventChange, nil),
		watch(ctx, r, c.BatchV1().Jobs(ns), "", jobChange, nil),
		watch(ctx, r, c.ResourceV1().ResourceClaims(ns), "", claimChange, nil),
		watch(ctx, r, c.ResourceV1().ResourceSlices(), ours, sliceChange, nil),
		watch(ctx, r, c.CoreV1().Pods(api.Namespace), "", nil, r.followDriver),
	}
	if !cache.WaitForCacheSync(ctx.Done(), synced...) {
		return fmt.Errorf("wait for the first lists: %w", context.Cause(ctx))
	}
	return nil
}

// lists is the part of a typed client that watch needs; L is a list of objects.
type lists[L runtime.Object] interface {
	List(ctx context.Context, options metav1.ListOptions) (L, error)
	Watch(ctx context.Context, options metav1.ListOptions) (apiwatch.Interface, error)
}

// watch records the changes of one kind of object; each object also goes to
// seen, as it was last known, with whether it is gone. selector is a field
// selector. The client-go reflector below lists anew when a watch breaks or is
// too old, so that no change of state is missed, only steps between.
func watch[L runtime.Object, T any, P interface {
	*T
	runtime.Object
}](ctx context.Context, r *Recorder, objects lists[L], selector string, change func(old, now P, at time.Time) []Event, seen func(ctx context.Context, object P, gone bool)) cache.InformerSynced {
	handle := func(old, now P) {
		if change != nil {
			r.log.add(change(old, now, time.Now())...)
		}
		switch {
		case seen == nil:
		case now != nil:
			seen(ctx, now, false)
		default:
			seen(ctx, old, true)
		}
	}
	_, controller := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
			ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
				options.FieldSelector = selector
				return objects.List(ctx, options)
			},
			WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (apiwatch.Interface, error) {
				options.FieldSelector = selector
				return objects.Watch(ctx, options)
			},
		}, r.client),
		ObjectType: P(new(T)),
		Handler: cache.ResourceEventHandlerDetailedFuncs{
			AddFunc: func(object any, background bool) {
				now, ok := object.(P)
				switch {
				case !ok:
				case !background:
					handle(nil, now)
				case seen != nil:
					seen(ctx, now, false)
				}
			},
			UpdateFunc: func(before, after any) {
				old, ok1 := before.(P)
				now, ok2 := after.(P)
				if ok1 && ok2 {
					handle(old, now)
				}
			},
			DeleteFunc: func(object any) {
				if unknown, ok := object.(cache.DeletedFinalStateUnknown); ok {
					object = unknown.Obj
				}
				if old, ok := object.(P); ok {
					handle(old, nil)
				}
			},
		},
	})
	r.tasks.Go(func() error { controller.RunWithContext(ctx); return nil })
	return controller.HasSynced
}

// followDriver reads the reports of a driver Pod.
func (r *Recorder) followDriver(ctx context.Context, pod *corev1.Pod, gone bool) {
	r.logs.follow(ctx, pod, gone, func(line []byte) {
		if report, ok := api.ParseReport(line); ok && !report.Time.Before(r.start) {
			r.log.add(driverReport(report, r.config.Namespace)...)
		}
	})
}

// Note records an event that the caller knows of. Without a time it is now.
func (r *Recorder) Note(e Event) {
	if e.Time.IsZero() {
		e.Time = time.Now()
	}
	if e.Source == "" {
		e.Source = SourceCaller
	}
	r.log.add(e)
}

// Wait returns the first event that matches, among those recorded and those to
// come. what names it in the error, which also has the last events seen.
func (r *Recorder) Wait(ctx context.Context, what string, match func(Event) bool) (Event, error) {
	return r.log.wait(ctx, what, match)
}

// Timeline is what has been recorded so far.
func (r *Recorder) Timeline() Timeline {
	events, _, _ := r.log.since(0)
	return newTimeline(r.config.Title, r.config.Namespace, events, r.log.lost())
}

// Stop ends the recording, waits until all is written, and returns the
// timeline. The error is that of writing to Live.
func (r *Recorder) Stop() (Timeline, error) {
	err := r.end(errStopped)
	return r.Timeline(), err
}

func (r *Recorder) end(cause error) error {
	r.cancel(cause)
	err := r.tasks.Wait()
	r.log.close()
	live := <-r.live
	r.live <- live // for another Stop
	return errors.Join(err, live)
}
