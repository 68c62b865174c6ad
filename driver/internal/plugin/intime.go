package plugin

import (
	"fmt"
	"sync"
	"time"

	"github.com/dra-lab/dra-lab/driver/internal/device"
)

// timed bounds how long a claim waits for a GPU. A call of the GPU's library
// that hangs cannot be ended, so it is left behind: one for each GPU, however
// many claims come meanwhile.
type timed struct {
	Hardware
	wait time.Duration

	mu      sync.Mutex
	pending map[int]*question // by index of the GPU
}

// question is one that has been put and was not answered in time.
type question struct {
	since    time.Time
	answered chan struct{} // closed when the answer is there
	usage    device.Usage
	err      error
}

// inTime is h with a bound for Usage. Its other methods are called by the
// monitor only, which has its own.
func inTime(h Hardware, wait time.Duration) Hardware {
	return &timed{Hardware: h, wait: wait, pending: map[int]*question{}}
}

// Usage is that of the hardware, or an error when it takes too long. While one
// question hangs no other is put: who asks then waits for the answer to that
// one, as long as it still has, and asks again when it has come.
func (t *timed) Usage(index int) (device.Usage, error) {
	for {
		q, own := t.ask(index)
		limit := time.NewTimer(time.Until(q.since.Add(t.wait)))
		select {
		case <-q.answered:
			limit.Stop()
			if own {
				return q.usage, q.err
			}
			// An answer to an older question may be out of date.
		case <-limit.C:
			return device.Usage{}, fmt.Errorf("GPU %d has not answered since %s", index, q.since.UTC().Format(time.TimeOnly))
		}
	}
}

// ask puts the question, unless one is under way; own says that it did.
func (t *timed) ask(index int) (q *question, own bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if q := t.pending[index]; q != nil {
		return q, false
	}
	q = &question{since: time.Now(), answered: make(chan struct{})}
	t.pending[index] = q
	go func() {
		q.usage, q.err = t.Hardware.Usage(index)
		t.mu.Lock()
		delete(t.pending, index)
		t.mu.Unlock()
		close(q.answered)
	}()
	return q, true
}
