package simulated

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/dra-lab/dra-lab/driver/api"
)

// A host may have no inotify instance left; faults must arrive nevertheless.
func TestFaultsArriveWithoutInotify(t *testing.T) {
	p, err := profileOf("h100")
	if err != nil {
		t.Fatal(err)
	}
	g := newBoard(p, 0, "GPU-0", t.TempDir())
	set := newEventSet([]*board{g})
	if ret := g.RegisterEvents(supportedEvents, set); ret != nvml.SUCCESS {
		t.Fatal(ret)
	}
	w := &watch{
		gpus: map[string]*board{g.dir: g}, seen: map[*board]fs.FileInfo{},
		fail:    func(err error) { t.Error(err) },
		stopped: make(chan struct{}), done: make(chan struct{}),
	}
	go w.run()
	defer w.stop()
	path := filepath.Join(g.dir, api.FaultsName)
	if err := os.WriteFile(path+".tmp", []byte(`{"faults":[{"id":"a","kind":"xid","code":48}]}`), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".tmp", path); err != nil {
		t.Fatal(err)
	}
	if e, ret := set.Wait(10_000); ret != nvml.SUCCESS || e.EventData != 48 {
		t.Fatalf("got %+v, %v", e, ret)
	}
	// And goes when the file goes.
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(10 * time.Second); ; {
		e, ret := set.Wait(1000)
		if ret == nvml.SUCCESS && e.EventType == nvml.EventTypeGpuRecoveryAction && len(g.current()) == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("the fault stays")
		}
	}
}
