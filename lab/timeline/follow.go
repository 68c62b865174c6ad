package timeline

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/dra-lab/dra-lab/lab/timeline/workload"
)

const (
	maxFollowed   = 256 // at the same time
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
	open int // streams
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
// on until they end. Call it at each change of the Pod, and when it is gone. While
// maxFollowed others are read a run has to wait for the Pod's next change; it is
// then read from its beginning.
func (f *follower) follow(ctx context.Context, pod *corev1.Pod, gone bool, line func([]byte)) {
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
		if !known && !gone && f.open < maxFollowed {
			run = &followed{}
			f.runs[key] = run
			f.open++
			f.run.Go(func() error {
				f.read(ctx, pod.Namespace, pod.Name, key, run, line)
				f.mu.Lock()
				defer f.mu.Unlock()
				f.open--
				return nil
			})
		}
		f.mu.Unlock()
		if run != nil {
			run.set(gone || status.State.Terminated != nil)
		}
	}
}

// read streams one run's log, connecting anew while the container runs: that
// the log is not found can also mean that the kubelet has just restarted.
func (f *follower) read(ctx context.Context, namespace, pod string, key containerRun, run *followed, line func([]byte)) {
	last := f.since
	for {
		// What was known before the stream ended decides: a stream of a
		// container that had ended by then is complete.
		over := run.isOver()
		last = f.stream(ctx, namespace, pod, key.container, last, line)
		if ctx.Err() != nil || over {
			return
		}
		select {
		case <-time.After(reconnectTime):
		case <-ctx.Done():
			return
		}
	}
}

// stream reads the log after the time last, until it ends for whatever reason,
// and returns the time of the newest line it has seen.
func (f *follower) stream(ctx context.Context, namespace, pod, container string, last time.Time, line func([]byte)) time.Time {
	since := metav1.NewTime(last)
	stream, err := f.client.CoreV1().Pods(namespace).GetLogs(pod, &corev1.PodLogOptions{
		Container: container, Follow: true, Timestamps: true, SinceTime: &since,
	}).Stream(ctx)
	if err != nil {
		return last
	}
	defer stream.Close()
	return readLines(stream, last, line)
}

// readLines gives each line that is later than last to line, without the time
// that the kubelet put before it, and returns the time of the newest. Overlong
// lines are passed over, and so is the end of a line that broke off: it comes
// whole with the next stream.
func readLines(r io.Reader, last time.Time, line func([]byte)) time.Time {
	known, overlong := last, false
	reader := bufio.NewReaderSize(r, maxLogLine)
	for {
		data, err := reader.ReadSlice('\n')
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			overlong = true
			continue
		case err != nil:
			return last
		case overlong:
			overlong = false
			continue
		}
		stamp, rest, ok := bytes.Cut(bytes.TrimSuffix(data, []byte("\n")), []byte(" "))
		at, err := time.Parse(time.RFC3339Nano, string(stamp))
		if !ok || err != nil || !at.After(known) {
			continue
		}
		last = at
		line(rest)
	}
}

// followWorkload reads what a workload says about itself.
func (r *Recorder) followWorkload(ctx context.Context, pod *corev1.Pod, gone bool) {
	node, name := pod.Spec.NodeName, pod.Name
	r.logs.follow(ctx, pod, gone, func(line []byte) {
		if l, ok := workload.Parse(line); ok && !l.Time.Before(r.start) {
			r.log.add(workloadLine(l, node, name))
		}
	})
}
