package simulated

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/dra-lab/dra-lab/driver/api"
)

// pollEvery is how often faults are looked for on a host that has no inotify
// instance to spare, for up to pollBatch GPUs; with more, less often.
const (
	pollEvery = 20 * time.Millisecond
	pollBatch = 64
)

// watch follows the faults files of all GPUs.
type watch struct {
	notify *fsnotify.Watcher // nil when files are polled
	gpus   map[string]*board // by directory
	seen   map[*board]fs.FileInfo
	fail   func(error)
	stopped,
	done chan struct{}
}

// startWatch reads all faults and follows them from then on. Where inotify
// cannot be had, which hosts with many clusters run into, it looks at the files
// at intervals and says so.
func startWatch(gpus []*board, fail func(error)) *watch {
	w := &watch{
		gpus: make(map[string]*board, len(gpus)), seen: map[*board]fs.FileInfo{}, fail: fail,
		stopped: make(chan struct{}), done: make(chan struct{}),
	}
	var err error
	// The directories, not the files: those are replaced as a whole. Watch
	// first, read then, so that nothing falls in between.
	if w.notify, err = notifier(gpus); err != nil {
		fail(fmt.Errorf("watch faults: %w; looking every %s instead", err, w.interval(len(gpus))))
	}
	for _, g := range gpus {
		w.gpus[g.dir] = g
		w.seen[g] = g.faultsFile()
		faults, err := g.load()
		if err != nil {
			fail(err)
		}
		g.begin(faults)
	}
	go w.run()
	return w
}

func notifier(gpus []*board) (*fsnotify.Watcher, error) {
	notify, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, fmt.Errorf("%w (see fs.inotify.max_user_instances)", err)
	}
	for _, g := range gpus {
		if err := notify.Add(g.dir); err != nil {
			return nil, errors.Join(fmt.Errorf("%q: %w (see fs.inotify.max_user_watches)", g.dir, err), notify.Close())
		}
	}
	return notify, nil
}

func (w *watch) interval(gpus int) time.Duration {
	return pollEvery * time.Duration(1+gpus/pollBatch)
}

func (w *watch) run() {
	defer close(w.done)
	expiry := time.NewTimer(0)
	defer expiry.Stop()
	var events chan fsnotify.Event
	var errs chan error
	var poll <-chan time.Time
	if w.notify != nil {
		events, errs = w.notify.Events, w.notify.Errors
	} else {
		ticker := time.NewTicker(w.interval(len(w.gpus)))
		defer ticker.Stop()
		poll = ticker.C
	}
	for {
		select {
		case <-w.stopped:
			return
		case e := <-events:
			if filepath.Base(e.Name) != api.FaultsName {
				continue
			}
			if g := w.gpus[filepath.Dir(e.Name)]; g != nil {
				w.reload(g)
			}
		case err := <-errs:
			if !errors.Is(err, fsnotify.ErrEventOverflow) {
				w.fail(fmt.Errorf("watch faults: %w", err))
			}
			for _, g := range w.gpus {
				w.reload(g)
			}
		case <-poll:
			if !w.look() {
				continue
			}
		case <-expiry.C:
			for _, g := range w.gpus {
				g.become(g.current())
			}
		}
		w.arm(expiry)
	}
}

// look reloads the files that are not those that it saw last.
func (w *watch) look() (changed bool) {
	for _, g := range w.gpus {
		now, before := g.faultsFile(), w.seen[g]
		switch {
		case now == nil && before == nil:
			continue
		case now != nil && before != nil && os.SameFile(now, before) && now.ModTime().Equal(before.ModTime()) && now.Size() == before.Size():
			continue
		}
		w.seen[g] = now
		w.reload(g)
		changed = true
	}
	return changed
}

// faultsFile describes the faults file, nil if there is none.
func (g *board) faultsFile() fs.FileInfo {
	info, err := os.Stat(filepath.Join(g.dir, api.FaultsName))
	if err != nil {
		return nil
	}
	return info
}

// arm sets the timer for the next fault that goes by itself.
func (w *watch) arm(timer *time.Timer) {
	now := time.Now()
	var next time.Time
	for _, g := range w.gpus {
		if at := g.expiry(now); !at.IsZero() && (next.IsZero() || at.Before(next)) {
			next = at
		}
	}
	if next.IsZero() {
		timer.Stop()
		return
	}
	timer.Reset(next.Sub(now))
}

// reload takes over the faults file as it is now. One that cannot be read
// changes nothing: hardware does not heal because of a typing error.
func (w *watch) reload(g *board) {
	faults, err := g.load()
	if err != nil {
		w.fail(err)
		return
	}
	g.become(faults)
}

func (w *watch) stop() {
	close(w.stopped)
	<-w.done
	// Whoever waits for a GPU that hangs would do so for ever: nobody looks at
	// its faults any more.
	for _, g := range w.gpus {
		g.mu.Lock()
		g.release()
		g.mu.Unlock()
	}
	if w.notify != nil {
		if err := w.notify.Close(); err != nil {
			w.fail(fmt.Errorf("watch faults: %w", err))
		}
	}
}
