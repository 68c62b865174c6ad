package simulated

import (
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/dra-lab/dra-lab/driver/api"
)

// watch follows the faults files of all GPUs.
type watch struct {
	notify *fsnotify.Watcher
	gpus   map[string]*board // by directory
	fail   func(error)
	done   chan struct{}
}

// startWatch reads all faults and follows them from then on.
func startWatch(gpus []*board, fail func(error)) (*watch, error) {
	notify, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, fmt.Errorf("watch faults: %w (see fs.inotify.max_user_instances)", err)
	}
	w := &watch{notify: notify, gpus: make(map[string]*board, len(gpus)), fail: fail, done: make(chan struct{})}
	for _, g := range gpus {
		// The directory, not the file: it is replaced as a whole. Watch first,
		// read then, so that nothing falls in between.
		if err := notify.Add(g.dir); err != nil {
			err = fmt.Errorf("watch faults of GPU %d: %w (see fs.inotify.max_user_watches)", g.index, err)
			return nil, errors.Join(err, notify.Close())
		}
		w.gpus[g.dir] = g
		faults, err := g.load()
		if err != nil {
			fail(err)
		}
		g.begin(faults)
	}
	go w.run()
	return w, nil
}

func (w *watch) run() {
	defer close(w.done)
	expiry := time.NewTimer(0)
	defer expiry.Stop()
	for {
		select {
		case e, ok := <-w.notify.Events:
			if !ok {
				return
			}
			if filepath.Base(e.Name) != api.FaultsName {
				continue
			}
			if g := w.gpus[filepath.Dir(e.Name)]; g != nil {
				w.reload(g)
			}
		case err, ok := <-w.notify.Errors:
			if !ok {
				return
			}
			if !errors.Is(err, fsnotify.ErrEventOverflow) {
				w.fail(fmt.Errorf("watch faults: %w", err))
			}
			for _, g := range w.gpus {
				w.reload(g)
			}
		case <-expiry.C:
			for _, g := range w.gpus {
				g.become(g.current())
			}
		}
		w.arm(expiry)
	}
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
	if err := w.notify.Close(); err != nil {
		w.fail(fmt.Errorf("watch faults: %w", err))
	}
	<-w.done
}
