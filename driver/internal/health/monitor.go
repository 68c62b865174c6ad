package health

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/dra-lab/dra-lab/driver/internal/device"
)

// Hardware is what a monitor needs of the GPUs. Its methods are called from
// different goroutines. They may hang when the hardware does.
type Hardware interface {
	// Next waits for an event, at most as long as told; ok is false when none
	// came. ErrNoEvents means that none will ever come.
	Next(wait time.Duration) (e device.Event, ok bool, err error)
	// Read asks one GPU.
	Read(index int) device.Reading
}

// ErrNoEvents says that no GPU reports anything by itself.
var ErrNoEvents = errors.New("no GPU supports events")

// Bounds.
const (
	maxSubscribers = 64                     // watchers at a time
	parallelReads  = 8                      // GPUs that are asked at a time
	waitForEvent   = 250 * time.Millisecond // how long a stop may take
	retryMin       = 100 * time.Millisecond // after an error of Next, or a lost GPU
	retryMax       = 5 * time.Second
)

// Config is for New. Only GPUs and Hardware are required.
type Config struct {
	// GPUs are those to watch; GPUs[i].Index must be i.
	GPUs     []device.GPU
	Hardware Hardware
	Rules    Rules
	// Every is how often each GPU is asked; default 5 s.
	Every time.Duration
	// Fresh is for how long a status is vouched for after it was verified;
	// default three times Every.
	Fresh time.Duration
	// Latched are problems from before a restart, by UUID.
	Latched map[string][]Problem
	// Save is told all latched problems by UUID when they change. It is called
	// by one goroutine at a time. Nil forgets them.
	Save func(map[string][]Problem)
	// OnEvent is told every event and whether it was fatal. Nil is allowed.
	OnEvent func(e device.Event, fatal bool)
	// OnError is told what goes wrong in the background. Nil is allowed.
	OnError func(error)
}

// Monitor watches GPUs. New starts nothing; see Run.
type Monitor struct {
	cfg   Config
	first chan struct{} // closed when every GPU was asked once

	mu          sync.Mutex
	gpus        []watched
	unread      int
	listened    time.Time // when Next last returned without an error
	deaf        bool      // there are no events
	subscribers map[chan struct{}]struct{}

	wake  chan struct{} // the schedule has changed
	dirty chan struct{} // the latched problems have changed
}

type watched struct {
	machine *Machine
	status  Status
	due     time.Time
	busy    bool // being asked now
	// since is when it was asked, answered that it has, while it is busy.
	since    time.Time
	answered bool
	again    bool // asked for while busy
	asked    bool // at least once
}

// New makes a monitor of the GPUs, all unknown until Run.
func New(cfg Config) (*Monitor, error) {
	if cfg.Every == 0 {
		cfg.Every = 5 * time.Second
	}
	if cfg.Fresh == 0 {
		cfg.Fresh = 3 * cfg.Every
	}
	m := &Monitor{
		cfg:         cfg,
		first:       make(chan struct{}),
		unread:      len(cfg.GPUs),
		subscribers: map[chan struct{}]struct{}{},
		wake:        make(chan struct{}, 1),
		dirty:       make(chan struct{}, 1),
	}
	for i, gpu := range cfg.GPUs {
		if gpu.Index != i {
			return nil, fmt.Errorf("monitor GPU %q: index %d at place %d", gpu.Name, gpu.Index, i)
		}
		machine := NewMachine(cfg.Rules, gpu)
		if gpu.UUID != "" {
			for _, p := range cfg.Latched[gpu.UUID] {
				machine.Latch(p)
			}
		}
		m.gpus = append(m.gpus, watched{machine: machine, status: machine.Status()})
	}
	if m.unread == 0 {
		close(m.first)
	}
	return m, nil
}

// First is closed when every GPU has been asked once.
func (m *Monitor) First() <-chan struct{} { return m.first }

// Snapshot gives the status of every GPU by index.
func (m *Monitor) Snapshot() []Status {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := make([]Status, 0, len(m.gpus))
	for i := range m.gpus {
		all = append(all, m.gpus[i].status)
	}
	return all
}

// Fresh says whether a status was verified so recently that it may be vouched
// for. A monitor that no longer hears events vouches for nothing.
func (m *Monitor) Fresh(s Status, now time.Time) bool {
	m.mu.Lock()
	listening := m.deaf || now.Sub(m.listened) <= m.cfg.Fresh
	m.mu.Unlock()
	return listening && !s.Verified.IsZero() && now.Sub(s.Verified) <= m.cfg.Fresh
}

// Rules are those in force.
func (m *Monitor) Rules() Rules { return m.cfg.Rules.withDefaults() }

// Subscribe gives a channel that has a value after something changed. Changes
// that come before the value is taken are one: look at Snapshot. The caller
// must call cancel.
func (m *Monitor) Subscribe() (changed <-chan struct{}, cancel func(), err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.subscribers) >= maxSubscribers {
		return nil, nil, fmt.Errorf("watch health: %d watchers already, no more allowed", maxSubscribers)
	}
	c := make(chan struct{}, 1)
	m.subscribers[c] = struct{}{}
	return c, func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(m.subscribers, c)
	}, nil
}

// Run watches until ctx ends. It does not wait for hardware that hangs.
func (m *Monitor) Run(ctx context.Context) {
	m.mu.Lock()
	m.listened = time.Now()
	m.mu.Unlock()
	listening := make(chan struct{})
	go func() {
		defer close(listening)
		m.listen(ctx)
	}()
	saving := make(chan struct{})
	go func() {
		defer close(saving)
		m.save(ctx)
	}()
	m.schedule(ctx)
	<-saving
	select {
	case <-listening:
	case <-time.After(4 * waitForEvent):
	}
	// An event may have come after the last save.
	select {
	case <-m.dirty:
		m.saveNow()
	default:
	}
}

// listen takes in events.
func (m *Monitor) listen(ctx context.Context) {
	retry := retryMin
	for ctx.Err() == nil {
		e, ok, err := m.cfg.Hardware.Next(waitForEvent)
		now := time.Now()
		switch {
		case errors.Is(err, ErrNoEvents):
			m.mu.Lock()
			m.deaf = true
			m.mu.Unlock()
			m.fail(err)
			return
		case err != nil:
			m.fail(fmt.Errorf("wait for GPU events: %w", err))
			// Ask everybody: the error may be all that a dying GPU says.
			m.Ask(-1)
		default:
			m.mu.Lock()
			m.listened = now
			m.mu.Unlock()
			if ok {
				m.event(e, now)
			}
			// That a GPU is gone may be the answer to every call from then on,
			// and at once: it is to be heard, but not all the time.
			if !ok || e.Kind != device.EventUnavailable {
				retry = retryMin
				continue
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(retry):
		}
		retry = min(2*retry, retryMax)
	}
}

func (m *Monitor) event(e device.Event, now time.Time) {
	fatal := false
	if e.Index >= 0 && e.Index < len(m.gpus) {
		m.update(e.Index, func(machine *Machine) { fatal = machine.Event(e, now) })
	}
	if m.cfg.OnEvent != nil {
		m.cfg.OnEvent(e, fatal)
	}
	m.Ask(e.Index)
}

// Ask has one GPU, or with -1 every GPU, asked as soon as possible.
func (m *Monitor) Ask(index int) {
	m.mu.Lock()
	for i := range m.gpus {
		if index == -1 || index == i {
			m.gpus[i].due = time.Time{}
			m.gpus[i].again = m.gpus[i].busy
		}
	}
	m.mu.Unlock()
	signal(m.wake)
}

// Repaired is told that somebody has repaired the GPU with this index, and has it
// asked.
func (m *Monitor) Repaired(index int) {
	m.update(index, func(g *Machine) { g.Repaired(time.Now()) })
	m.Ask(index)
}

// signal leaves one value in c, which has room for one.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// schedule asks each GPU when it is due.
func (m *Monitor) schedule(ctx context.Context) {
	slots := make(chan struct{}, parallelReads)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		timer.Reset(m.startDue(slots))
		select {
		case <-ctx.Done():
			return
		case <-m.wake:
		case <-timer.C:
		}
	}
}

// startDue asks those that are due, as far as there are slots, and says how
// long the next one is not.
func (m *Monitor) startDue(slots chan struct{}) time.Duration {
	now := time.Now()
	wait := m.cfg.Every
	m.mu.Lock()
	defer m.mu.Unlock()
	for i := range m.gpus {
		g := &m.gpus[i]
		if g.busy {
			if silent := m.cfg.Fresh - now.Sub(g.since); g.answered {
				// It only has to say so.
			} else if silent > 0 {
				wait = min(wait, silent)
			} else {
				m.silence(g)
			}
			continue
		}
		if rest := g.due.Sub(now); rest > 0 {
			wait = min(wait, rest)
			continue
		}
		select {
		case slots <- struct{}{}:
		default:
			return wait // whoever frees a slot wakes the schedule
		}
		g.busy, g.answered, g.since = true, false, now
		go func() {
			// One that hangs must not keep the others from being asked.
			free := sync.OnceFunc(func() { <-slots; signal(m.wake) })
			hung := time.AfterFunc(m.cfg.Every, free)
			m.ask(i)
			hung.Stop()
			free()
			signal(m.wake)
		}()
	}
	return wait
}

// silence takes note of a GPU that does not answer. The caller holds mu.
func (m *Monitor) silence(g *watched) {
	before := g.status
	g.machine.Silent(g.since)
	if g.status = g.machine.Status(); g.status.Same(before) {
		return
	}
	for c := range m.subscribers {
		signal(c)
	}
}

func (m *Monitor) ask(index int) {
	asked := time.Now()
	reading := m.cfg.Hardware.Read(index)
	now := time.Now()
	m.update(index, func(machine *Machine) {
		m.gpus[index].answered = true
		machine.Read(reading, asked, now)
	})

	m.mu.Lock()
	defer m.mu.Unlock()
	g := &m.gpus[index]
	g.busy = false
	g.due = now.Add(m.cfg.Every)
	if settled := g.machine.Settled(); settled.After(asked) && settled.Before(g.due) {
		g.due = settled
	}
	if g.again {
		g.again, g.due = false, time.Time{}
	}
	if !g.asked {
		g.asked = true
		if m.unread--; m.unread == 0 {
			close(m.first)
		}
	}
}

// update changes what is known of a GPU and tells everybody if that matters.
func (m *Monitor) update(index int, change func(*Machine)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	g := &m.gpus[index]
	before, latched := g.status, g.machine.Latched()
	change(g.machine)
	g.status = g.machine.Status()
	if !slices.Equal(latched, g.machine.Latched()) {
		signal(m.dirty)
	}
	if g.status.Same(before) && g.asked {
		return
	}
	for c := range m.subscribers {
		signal(c)
	}
}

// save hands out the latched problems whenever they changed. It has a goroutine
// of its own: whoever reports a change does not wait for a disk.
func (m *Monitor) save(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-m.dirty:
			m.saveNow()
		}
	}
}

func (m *Monitor) saveNow() {
	if m.cfg.Save == nil {
		return
	}
	all := map[string][]Problem{}
	m.mu.Lock()
	for i := range m.gpus {
		// What has no identity could not be told from others by the next driver.
		if latched := m.gpus[i].machine.Latched(); len(latched) > 0 && m.cfg.GPUs[i].UUID != "" {
			all[m.cfg.GPUs[i].UUID] = latched
		}
	}
	m.mu.Unlock()
	m.cfg.Save(all)
}

func (m *Monitor) fail(err error) {
	if m.cfg.OnError != nil {
		m.cfg.OnError(err)
	}
}
