package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/dra-lab/dra-lab/driver/internal/statefile"
)

// version of the format.
const version = "v1"

type document struct {
	Claims []Entry `json:"claims"` // by UID
	// A driver that does not know leaks yet ignores them.
	Leaks []Leak `json:"leaks,omitempty"` // by UUID
}

// Store is the checkpoint on disk. It is safe for concurrent use, and several
// processes may have the same one open: two drivers do while one replaces the
// other.
//
// Calls that come while another is being written are written together. What
// the kubelet is told to be done, a complete claim and one that is forgotten,
// survives the death of the machine. The start of a claim only has to survive
// the driver: a machine that dies takes with it whatever the driver had done
// after that.
type Store struct {
	base   string
	bootID string

	mu      sync.Mutex
	pending []*change
	leading bool

	// state is what files contain, nil when that is not known. Only the
	// leader touches both, and only under the lock between processes.
	files *statefile.Pair
	state *State
	// writes counts the documents written.
	writes int
	// before is asked before each, and its error is that of the write. Nil
	// allows all.
	before func() error
}

// Before has each document wait for ask, whose error is then that of the write.
// It has to be called before anything else is.
func (s *Store) Before(ask func() error) { s.before = ask }

type change struct {
	apply   func(State) error
	promise statefile.Promise
	// looks means that apply only looks at the state, which it then gets as it
	// is; others get a copy.
	looks bool
	done  chan error
}

// Open reads the checkpoint in the files base-a.json and base-b.json, or begins
// an empty one. The directory must exist. A checkpoint that was damaged is an
// error, never an empty one: forgetting who holds which device is the one thing
// a checkpoint must not do. The caller has to Close it.
func Open(ctx context.Context, base, bootID string) (*Store, error) {
	s := &Store{base: base, bootID: bootID}
	ctx, cancel := context.WithTimeout(ctx, lockTimeout)
	defer cancel()
	// Two drivers that start together must not both make the files.
	lock, err := s.lock(ctx)
	if err != nil {
		return nil, err
	}
	s.files, err = statefile.OpenPair(base)
	if err := errors.Join(err, lock.Release()); err != nil {
		return nil, fmt.Errorf("open checkpoint: %w", err)
	}
	if err := s.look(ctx, func(State) {}); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// Close gives up the files. Nothing may be called after it.
func (s *Store) Close() error { return s.files.Close() }

// lock keeps other drivers out.
func (s *Store) lock(ctx context.Context) (*statefile.Lock, error) {
	return statefile.Acquire(ctx, s.base+".lock")
}

// Start records that the preparation of want begins, and gives the entry as
// recorded: that of an earlier call if there was one, with its phase. It
// refuses with ErrHeld, and records nothing, when another claim holds one of
// the devices. Phase, BootID and Since of want are ignored.
func (s *Store) Start(ctx context.Context, want Entry) (Entry, error) {
	var recorded Entry
	err := s.change(ctx, statefile.Kept, func(state State) error {
		want.BootID, want.Since = s.bootID, time.Now().UTC()
		want.Devices = slices.Clone(want.Devices)
		var err error
		recorded, err = state.start(want)
		return err
	})
	return recorded, err
}

// Complete records that everything about the claim is done. The claim must
// have been started. Baselines, by device, are for what did not exist yet when it
// was; nil is allowed.
func (s *Store) Complete(ctx context.Context, uid string, baselines map[string]uint64) error {
	return s.change(ctx, statefile.Durable, func(state State) error {
		e, ok := state.Claims[uid]
		if !ok {
			return fmt.Errorf("complete claim %s: not started", uid)
		}
		if e.Phase == Completed && e.BootID == s.bootID {
			return errUnchanged
		}
		e.Devices = slices.Clone(e.Devices)
		for i := range e.Devices {
			if bytes, ok := baselines[e.Devices[i].Name]; ok {
				e.Devices[i].BaselineBytes = &bytes
			}
		}
		e.Phase, e.BootID, e.Since = Completed, s.bootID, time.Now().UTC()
		state.Claims[uid] = e
		return nil
	})
}

// Remove forgets a claim, and remembers in the same step what it left behind;
// BootID and Since of the leaks are ignored. An unknown claim is not an error,
// and leaves nothing.
func (s *Store) Remove(ctx context.Context, uid string, leaks ...Leak) error {
	return s.change(ctx, statefile.Durable, func(state State) error {
		if _, ok := state.Claims[uid]; !ok {
			return errUnchanged
		}
		delete(state.Claims, uid)
		for _, l := range leaks {
			l.BootID, l.Since = s.bootID, time.Now().UTC().Round(0) // as it is read again
			state.Leaks[l.UUID] = l
		}
		return nil
	})
}

// Mend forgets the leak of a device. None is not an error.
func (s *Store) Mend(ctx context.Context, uuid string) error {
	return s.change(ctx, statefile.Durable, func(state State) error {
		if _, ok := state.Leaks[uuid]; !ok {
			return errUnchanged
		}
		delete(state.Leaks, uuid)
		return nil
	})
}

// Leaks gives the leaks of this boot by UUID, as of now on disk.
func (s *Store) Leaks(ctx context.Context) (leaks []Leak, err error) {
	err = s.look(ctx, func(state State) { leaks = sorted(state.Leaks) })
	return leaks, err
}

// Get gives the entry of a claim, as of now on disk.
func (s *Store) Get(ctx context.Context, uid string) (e Entry, ok bool, err error) {
	err = s.look(ctx, func(state State) { e, ok = state.Claims[uid] })
	return e, ok, err
}

// List gives all entries by UID, as of now on disk.
func (s *Store) List(ctx context.Context) (entries []Entry, err error) {
	err = s.look(ctx, func(state State) { entries = sorted(state.Claims) })
	return entries, err
}

// WhileFree calls do if no claim holds the device of this pool and name, or a
// part of it, which has its name and a hyphen before its own; else the error is
// ErrHeld. No claim is started meanwhile, so do must be quick.
func (s *Store) WhileFree(ctx context.Context, pool, name string, do func() error) error {
	return s.change(ctx, statefile.Kept, func(state State) error {
		for _, e := range sorted(state.Claims) {
			for _, d := range e.Devices {
				if !d.Monitor && d.Pool == pool && (d.Name == name || strings.HasPrefix(d.Name, name+"-")) {
					return fmt.Errorf("device %q: %w: %s/%s (%s)", name, ErrHeld, e.Namespace, e.Name, e.UID)
				}
			}
		}
		if err := do(); err != nil {
			return err
		}
		return errUnchanged
	})
}

// errUnchanged is what a change says that has nothing to write.
var errUnchanged = errors.New("unchanged")

// look shows f the state on disk, which f must not change.
func (s *Store) look(ctx context.Context, f func(State)) error {
	return s.do(ctx, &change{looks: true, apply: func(state State) error { f(state); return errUnchanged }})
}

// change applies f to the state on disk. An error of f affects only f, which
// must not have changed the state then.
func (s *Store) change(ctx context.Context, promise statefile.Promise, f func(State) error) error {
	return s.do(ctx, &change{apply: f, promise: promise})
}

// do has a change done. Whoever finds nobody at work leads: it takes everything
// that waits, applies it in order, writes once and tells all.
func (s *Store) do(ctx context.Context, c *change) error {
	c.done = make(chan error, 1)
	s.mu.Lock()
	s.pending = append(s.pending, c)
	lead := !s.leading
	s.leading = true
	s.mu.Unlock()
	if lead {
		s.lead(ctx)
	}
	// Not ctx: once it waits, a change may already be on its way to the disk,
	// and "not done" must not be said of what is done. The leader is bounded
	// by its own context.
	return <-c.done
}

// lead serves pending changes until there are none.
func (s *Store) lead(ctx context.Context) {
	for {
		s.mu.Lock()
		batch := s.pending
		s.pending = nil
		if len(batch) == 0 {
			s.leading = false
			s.mu.Unlock()
			return
		}
		s.mu.Unlock()
		s.serve(ctx, batch)
	}
}

// serve applies and writes one batch.
func (s *Store) serve(ctx context.Context, batch []*change) {
	// The leader's caller may give up while others still wait for the leader.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lockTimeout)
	defer cancel()
	errs := make([]error, len(batch))
	fail := func(err error) {
		for i := range errs {
			if errs[i] == nil {
				errs[i] = err
			}
		}
	}
	defer func() {
		for i, c := range batch {
			c.done <- errs[i]
		}
	}()

	lock, err := s.lock(ctx)
	if err != nil {
		fail(err)
		return
	}
	defer func() {
		if err := lock.Release(); err != nil {
			fail(fmt.Errorf("unlock checkpoint: %w", err))
		}
	}()
	if err := s.reload(); err != nil {
		fail(err)
		return
	}
	next, copied := *s.state, false
	changed, promise := false, statefile.Kept
	for i, c := range batch {
		if !c.looks && !copied {
			// With many claims the copy takes longer than a look.
			next, copied = next.clone(), true
		}
		switch err := c.apply(next); {
		case err == nil:
			changed, promise = true, max(promise, c.promise)
		case !errors.Is(err, errUnchanged):
			errs[i] = err
		}
	}
	if !changed || equal(next, *s.state) {
		return
	}
	if err := s.write(next, promise); err != nil {
		fail(err)
	}
}

// lockTimeout bounds the wait for another driver on the node. It writes a file
// under the lock and nothing else, so this is generous.
const lockTimeout = 10 * time.Second

// reload reads the files if another driver has written them.
func (s *Store) reload() error {
	if s.state != nil {
		changed, err := s.files.Changed()
		if err != nil {
			return fmt.Errorf("read checkpoint: %w", err)
		}
		if !changed {
			return nil
		}
	}
	s.state = nil
	var doc document
	found, err := s.files.Load(version, &doc)
	if err != nil {
		return fmt.Errorf("read checkpoint: %w", err)
	}
	if !found {
		// From now on there is a durable document. Without one, a first entry
		// that is written when the machine dies would look like damage.
		if err := s.files.Store(version, doc, statefile.Durable); err != nil {
			return fmt.Errorf("begin checkpoint: %w", err)
		}
	}
	state := newState()
	for _, e := range doc.Claims {
		if err := e.check(); err != nil {
			return fmt.Errorf("read checkpoint: %w: %w", statefile.ErrCorrupt, err)
		}
		if _, ok := state.Claims[e.UID]; ok {
			return fmt.Errorf("read checkpoint: %w: claim %s is there twice", statefile.ErrCorrupt, e.UID)
		}
		state.Claims[e.UID] = e
	}
	for _, l := range doc.Leaks {
		if l.BootID == s.bootID {
			state.Leaks[l.UUID] = l
		}
	}
	s.state = &state
	return nil
}

func (s *Store) write(next State, promise statefile.Promise) error {
	if s.before != nil {
		if err := s.before(); err != nil {
			return fmt.Errorf("write checkpoint: %w", err)
		}
	}
	// If this goes wrong, what is on the disk is not known: read it next time.
	s.state = nil
	if err := s.files.Store(version, document{Claims: sorted(next.Claims), Leaks: sorted(next.Leaks)}, promise); err != nil {
		return fmt.Errorf("write checkpoint: %w", err)
	}
	s.state = &next
	s.mu.Lock()
	defer s.mu.Unlock()
	s.writes++
	return nil
}

// Writes says how many documents this store has written.
func (s *Store) Writes() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.writes
}

func sorted[T any](byKey map[string]T) []T {
	list := make([]T, 0, len(byKey))
	for _, key := range slices.Sorted(maps.Keys(byKey)) {
		list = append(list, byKey[key])
	}
	return list
}

// equal says whether nothing that matters on disk differs.
func equal(a, b State) bool {
	return maps.EqualFunc(a.Claims, b.Claims, func(x, y Entry) bool {
		return x.Phase == y.Phase && x.BootID == y.BootID && x.Since.Equal(y.Since) && x.sameDevices(y)
	}) && maps.Equal(a.Leaks, b.Leaks)
}
