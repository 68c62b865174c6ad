package fault

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/dra-lab/dra-lab/driver/api"
)

const (
	// spentDir has a file for each fault that does something so many times. It
	// has a byte for each time: what the driver remembered would be lost when it
	// is killed, and it would be killed for ever.
	spentDir = "spent"
	// maxFile bounds what is read of the faults file.
	maxFile = 64 << 10
	// LookEvery is how often those look who wait for a fault to come or to go.
	LookEvery = 100 * time.Millisecond
)

// Config is for New. Dir is required.
type Config struct {
	// Dir is the driver's directory among the simulated hardware,
	// api.HardwareDir/driver, where api.FaultsName may be.
	Dir string
	// OnAct is told when a fault acts for the first time in this process, other
	// than by killing. Nil is allowed.
	OnAct func(f api.Fault, place Place)
	// OnError is told of a file that cannot be read: the faults before stay in
	// force. Nil is allowed.
	OnError func(error)
}

// Faults are those of this driver. The nil Faults never has any. It is safe for
// concurrent use. Two instances of the driver on one node share the file: which
// of them does what is to be done so many times is not determined, and when both
// do it at once, it may be done once too often.
type Faults struct {
	cfg  Config
	kill func() // does not return

	mu     sync.Mutex
	seen   fs.FileInfo // the file that was read last, nil if there was none
	faults []api.Fault
	told   map[string]bool // by the name of the fault's count: OnAct knows
}

// New makes the directory and reads nothing yet.
func New(cfg Config) (*Faults, error) {
	if err := os.MkdirAll(filepath.Join(cfg.Dir, spentDir), 0o755); err != nil {
		return nil, fmt.Errorf("look for faults of the driver: %w", err)
	}
	return &Faults{cfg: cfg, kill: killSelf, told: map[string]bool{}}, nil
}

// killSelf ends the process as the kernel does when memory runs out: nothing is
// written, closed or said.
func killSelf() {
	// The first process of a container is safe from signals of its own, also
	// from this one. It ends as whoever is killed does, and with that status.
	if os.Getpid() == 1 {
		os.Exit(128 + int(syscall.SIGKILL)) //nolint:forbidigo // to die at once, with no chance to say so, is what is asked for
	}
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {} // the signal is on its way
}

// Pass does at a place what is to be done there, and says how it ended. A wait
// ends with ctx, whose cause is returned then.
func (f *Faults) Pass(ctx context.Context, place Place) error {
	if f == nil {
		return nil
	}
	d, first := f.take(place)
	switch d.Act {
	case Nothing:
		return nil
	case Kill:
		f.kill()
		return nil
	}
	if first && f.cfg.OnAct != nil {
		f.cfg.OnAct(d.Fault, place)
	}
	switch d.Act {
	case Hang:
		return f.wait(ctx, d.Fault, nil)
	case Slow:
		over := time.NewTimer(d.Delay)
		defer over.Stop()
		return f.wait(ctx, d.Fault, over.C)
	}
	return d.Err
}

// take decides, and counts what is decided; first says that the fault has not
// acted before.
func (f *Faults) take(place Place) (d Decision, first bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	d = Decide(f.current(), place, f.done, time.Now())
	if d.Act == Nothing {
		return d, false
	}
	if d.Fault.Times > 0 {
		if err := f.count(d.Fault); err != nil {
			// Rather not at all than without end.
			f.fail(err)
			return Decision{}, false
		}
	}
	name := filepath.Base(f.spent(d.Fault))
	first = !f.told[name]
	f.told[name] = true
	return d, first
}

// wait returns when the fault does not act any more, or with over or ctx.
func (f *Faults) wait(ctx context.Context, fault api.Fault, over <-chan time.Time) error {
	look := time.NewTicker(LookEvery)
	defer look.Stop()
	for {
		select {
		case <-ctx.Done():
			return fmt.Errorf("injected fault %s: %w", fault.Kind, context.Cause(ctx))
		case <-over:
			return nil
		case <-look.C:
		}
		if !f.acts(fault) {
			return nil
		}
	}
}

// acts says whether a fault acts now.
func (f *Faults) acts(fault api.Fault) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, now := range f.current() {
		if now.ID == fault.ID && now.Since.Equal(fault.Since) {
			return now.On(time.Now())
		}
	}
	return false
}

// Find gives the first fault of a kind that acts now.
func (f *Faults) Find(kind string) (api.Fault, bool) {
	if f == nil {
		return api.Fault{}, false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	now := time.Now()
	for _, fault := range f.current() {
		if fault.Kind == kind && fault.On(now) {
			return fault, true
		}
	}
	return api.Fault{}, false
}

// current are the faults as the file has them now. The caller holds mu.
func (f *Faults) current() []api.Fault {
	path := filepath.Join(f.cfg.Dir, api.FaultsName)
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if f.seen != nil {
			f.seen, f.faults = nil, nil
			f.forget()
		}
		return nil
	case err != nil:
		f.fail(err)
		return f.faults
	case f.seen != nil && os.SameFile(info, f.seen) && info.ModTime().Equal(f.seen.ModTime()) && info.Size() == f.seen.Size():
		return f.faults
	}
	// A file that cannot be read is told of once.
	f.seen = info
	faults, err := read(path)
	if err != nil {
		f.fail(fmt.Errorf("read %q: %w", path, err))
		return f.faults
	}
	f.faults = faults
	f.forget()
	return faults
}

func read(path string) ([]api.Fault, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	data, err := io.ReadAll(io.LimitReader(file, maxFile+1))
	if err != nil {
		return nil, err
	}
	faults, err := api.ParseFaultsOf(api.TargetDriver, data)
	return faults.Faults, err
}

func (f *Faults) fail(err error) {
	if f.cfg.OnError != nil {
		f.cfg.OnError(fmt.Errorf("faults of the driver: %w", err))
	}
}

// spent is where it is counted how often a fault has acted. One that is injected
// anew under the same ID begins anew.
func (f *Faults) spent(fault api.Fault) string {
	return filepath.Join(f.cfg.Dir, spentDir, fault.ID+"_"+strconv.FormatInt(fault.Since.UnixNano(), 10))
}

// done is how often a fault has acted.
func (f *Faults) done(fault api.Fault) int {
	info, err := os.Stat(f.spent(fault))
	if err != nil {
		return 0
	}
	return int(info.Size())
}

func (f *Faults) count(fault api.Fault) error {
	file, err := os.OpenFile(f.spent(fault), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
	if err != nil {
		return fmt.Errorf("count: %w", err)
	}
	_, err = file.WriteString("x")
	if err := errors.Join(err, file.Close()); err != nil {
		return fmt.Errorf("count: %w", err)
	}
	return nil
}

// forget removes the counts of faults that are gone. The caller holds mu.
func (f *Faults) forget() {
	clear(f.told)
	entries, err := os.ReadDir(filepath.Join(f.cfg.Dir, spentDir))
	if err != nil {
		f.fail(err)
		return
	}
	for _, e := range entries {
		kept := false
		for _, fault := range f.faults {
			kept = kept || filepath.Base(f.spent(fault)) == e.Name()
		}
		if !kept {
			if err := os.Remove(filepath.Join(f.cfg.Dir, spentDir, e.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
				f.fail(err)
			}
		}
	}
}
