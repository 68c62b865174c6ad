package timeline

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/dra-lab/dra-lab/lab/timeline/workload"
)

const (
	maxFollowed   = 256
	maxLogLine    = 64 << 10
	reconnectTime = 300 * time.Millisecond
)

// follower reads the logs of containers, line by line, each run of a container
// once. Its methods are called by the watches' goroutines.
type follower struct {
	client kubernetes.Interface
	run    *errgroup.Group
	since  time.Time

	mu   sync.Mutex
	runs map[containerRun]*followed
}

// containerRun is one run of a container of a Pod: a restart is another.
type containerRun struct {
	pod       types.UID
	container string
	restarts  int32
}

// followed is what is known about a run.
type followed struct {
	mu    sync.Mutex
	ended bool
}

func (f *followed) set(ended bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ended = f.ended || ended
}

func (f *followed) isOver() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.ended
}

// follow reads the logs of all containers of pod that have started, from now
// on until they end. Call it at each change of the Pod.
func (f *follower) follow(ctx context.Context, pod *corev1.Pod, line func([]byte)) {
	for _, status := range pod.Status.ContainerStatuses {
		if status.State.Running == nil && status.State.Terminated == nil {
			continue
		}
		key := containerRun{pod.UID, status.Name, status.RestartCount}
		f.mu.Lock()
		if f.runs == nil {
			f.runs = map[containerRun]*followed{}
		}
		run, known := f.runs[key]
		if !known && len(f.runs) < maxFollowed {
			run = &followed{}
			f.runs[key] = run
			f.run.Go(func() error { f.read(ctx, pod.Namespace, pod.Name, key, run, line); return nil })
		}
		f.mu.Unlock()
		if run != nil {
			run.set(status.State.Terminated != nil)
		}
	}
}

// read streams one run's log, connecting anew while the container runs. A log
// that cannot be read any more, because the Pod is gone, is over.
func (f *follower) read(ctx context.Context, namespace, pod string, key containerRun, run *followed, line func([]byte)) {
	last := f.since
	for {
		// What was known before the stream ended decides: a stream of a
		// container that had ended by then is complete.
		over := run.isOver()
		newest, err := f.stream(ctx, namespace, pod, key.container, last, line)
		last = newest
		if ctx.Err() != nil || over || (err != nil && isGone(err)) {
			return
		}
		select {
		case <-time.After(reconnectTime):
		case <-ctx.Done():
			return
		}
	}
}

// stream reads the log after the time last and returns the time of the newest
// line it has seen.
func (f *follower) stream(ctx context.Context, namespace, pod, container string, last time.Time, line func([]byte)) (time.Time, error) {
	since := metav1.NewTime(last)
	stream, err := f.client.CoreV1().Pods(namespace).GetLogs(pod, &corev1.PodLogOptions{
		Container: container, Follow: true, Timestamps: true, SinceTime: &since,
	}).Stream(ctx)
	if err != nil {
		return last, fmt.Errorf("follow the log of Pod %s/%s: %w", namespace, pod, err)
	}
	defer stream.Close()
	return readLines(stream, last, line)
}

// readLines gives each line that is later than last to line, without the time
// that the kubelet put before it. Overlong lines are passed over.
func readLines(r io.Reader, last time.Time, line func([]byte)) (time.Time, error) {
	known := last
	reader := bufio.NewReaderSize(r, maxLogLine)
	for {
		data, long, err := reader.ReadLine()
		for long && err == nil {
			data = nil
			_, long, err = reader.ReadLine()
		}
		if err == io.EOF {
			return last, nil
		}
		if err != nil {
			return last, err
		}
		stamp, rest, ok := bytes.Cut(data, []byte(" "))
		at, err := time.Parse(time.RFC3339Nano, string(stamp))
		if !ok || err != nil || !at.After(known) {
			continue
		}
		last = at
		line(rest)
	}
}

// followWorkload reads what a workload says about itself.
func (r *Recorder) followWorkload(ctx context.Context, pod *corev1.Pod) {
	node, name := pod.Spec.NodeName, pod.Name
	r.logs.follow(ctx, pod, func(line []byte) {
		if l, ok := workload.Parse(line); ok && !l.Time.Before(r.start) {
			r.log.add(workloadLine(l, node, name))
		}
	})
}

// isGone says whether the Pod whose log was asked for is there no more.
func isGone(err error) bool { return apierrors.IsNotFound(err) }
