// Package report writes the driver's steps for the timeline, one JSON line
// each, and never makes the driver wait for whoever reads them.
package report

import (
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dra-lab/dra-lab/driver/api"
)

// queued is how many reports may wait for a slow reader before reports are
// dropped; maxText bounds the text in each.
const (
	queued  = 1024
	maxText = 2048
)

// Reporter takes reports from any goroutine. The nil Reporter drops them.
type Reporter struct {
	node  string
	lines chan []byte
	stop  chan struct{}
	done  chan struct{}

	dropped atomic.Int64
	close   sync.Once
}

// New starts a reporter that writes to w, in the name of node, until Close.
func New(w io.Writer, node string) *Reporter {
	r := &Reporter{node: node, lines: make(chan []byte, queued), stop: make(chan struct{}), done: make(chan struct{})}
	go r.run(w)
	return r
}

// Report adds time and node and queues the report. It never blocks: when the
// queue is full the report is dropped, and counted.
func (r *Reporter) Report(rep api.Report) {
	if r == nil {
		return
	}
	if rep.Time.IsZero() {
		rep.Time = time.Now()
	}
	rep.Node = r.node
	rep.Detail = shorten(rep.Detail)
	rep.Err = shorten(rep.Err)
	line, err := rep.Line()
	if err != nil {
		r.dropped.Add(1)
		return
	}
	select {
	case r.lines <- line:
	default:
		r.dropped.Add(1)
	}
}

// Dropped is the number of reports that were lost.
func (r *Reporter) Dropped() int64 { return r.dropped.Load() }

// closeWait is how long Close waits for a reader that takes nothing.
const closeWait = 2 * time.Second

// Close writes what is queued and stops, and gives up on a reader that takes
// nothing for a while. Later reports are lost. A second Close does no harm.
func (r *Reporter) Close() {
	r.close.Do(func() { close(r.stop) })
	select {
	case <-r.done:
	case <-time.After(closeWait):
	}
}

func (r *Reporter) run(w io.Writer) {
	defer close(r.done)
	write := func(line []byte) {
		if _, err := w.Write(line); err != nil {
			r.dropped.Add(1)
		}
	}
	for {
		select {
		case line := <-r.lines:
			write(line)
		case <-r.stop:
			for {
				select {
				case line := <-r.lines:
					write(line)
				default:
					return
				}
			}
		}
	}
}

func shorten(s string) string {
	if len(s) <= maxText {
		return s
	}
	return s[:maxText] + "..."
}
