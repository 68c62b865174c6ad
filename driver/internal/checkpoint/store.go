package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/dra-lab/dra-lab/driver/internal/statefile"
)

// version of the format.
const version = "v1"

type document struct {
	Claims []Entry `json:"claims"` // by UID
}

// Store is the checkpoint on disk. It is safe for concurrent use, and several
// processes may have the same one open: two drivers do while one replaces the
// other.
//
// Calls that come while another is being written are written together. After
// each the file on disk is whole, whatever dies. What the kubelet is told to be
// done, a complete claim and one that is forgotten, survives the machine as
// well. The start of a claim only has to survive the driver: a machine that
// dies takes with it whatever the driver had done after that.
type Store struct {
	path   string
	bootID string
	now    func() time.Time

	mu      sync.Mutex
	pending []*change
	leading bool

	// state is what the file with the identity read contained. Only the
	// leader touches both, and only under the lock between processes.
	state State
	read  identity
	// writes counts how often the file was replaced.
	writes int
}

type change struct {
	apply   func(State) error
	promise statefile.Promise
	done    chan error
}

// identity tells whether a file is still the one that was read.
type identity struct {
	info fs.FileInfo
}

func (i identity) same(now fs.FileInfo) bool {
	if i.info == nil || now == nil {
		return i.info == nil && now == nil
	}
	return os.SameFile(i.info, now) && i.info.Size() == now.Size() && i.info.ModTime().Equal(now.ModTime())
}

// Open reads the checkpoint at path, or begins an empty one. The directory
// must exist. A file that was damaged is an error, never an empty checkpoint:
// forgetting who holds which device is the one thing a checkpoint must not do.
func Open(ctx context.Context, path, bootID string, now func() time.Time) (*Store, error) {
	s := &Store{path: path, bootID: bootID, now: now}
	if err := s.change(ctx, statefile.Whole, func(State) error { return errUnchanged }); err != nil {
		return nil, err
	}
	return s, nil
}

// Start records that the preparation of want begins, and gives the entry as
// recorded: that of an earlier call if there was one, with its phase. It
// refuses with ErrHeld, and records nothing, when another claim holds one of
// the devices. Phase, BootID and Since of want are ignored.
func (s *Store) Start(ctx context.Context, want Entry) (Entry, error) {
	var recorded Entry
	err := s.change(ctx, statefile.Whole, func(state State) error {
		want.BootID, want.Since = s.bootID, s.now().UTC()
		want.Devices = slices.Clone(want.Devices)
		var err error
		recorded, err = state.start(want)
		return err
	})
	return recorded, err
}

// Complete records that everything about the claim is done. The claim must
// have been started.
func (s *Store) Complete(ctx context.Context, uid string) error {
	return s.change(ctx, statefile.Durable, func(state State) error {
		e, ok := state[uid]
		if !ok {
			return fmt.Errorf("complete claim %s: not started", uid)
		}
		if e.Phase == Completed && e.BootID == s.bootID {
			return errUnchanged
		}
		e.Phase, e.BootID, e.Since = Completed, s.bootID, s.now().UTC()
		state[uid] = e
		return nil
	})
}

// Remove forgets a claim. An unknown claim is not an error.
func (s *Store) Remove(ctx context.Context, uid string) error {
	return s.change(ctx, statefile.Durable, func(state State) error {
		if _, ok := state[uid]; !ok {
			return errUnchanged
		}
		delete(state, uid)
		return nil
	})
}

// Get gives the entry of a claim, as of now on disk.
func (s *Store) Get(ctx context.Context, uid string) (e Entry, ok bool, err error) {
	err = s.change(ctx, statefile.Whole, func(state State) error {
		e, ok = state[uid]
		return errUnchanged
	})
	return e, ok, err
}

// List gives all entries by UID, as of now on disk.
func (s *Store) List(ctx context.Context) (entries []Entry, err error) {
	err = s.change(ctx, statefile.Whole, func(state State) error {
		entries = sorted(state)
		return errUnchanged
	})
	return entries, err
}

// errUnchanged is what a change says that has nothing to write.
var errUnchanged = errors.New("unchanged")

// change applies f to the state on disk. Whoever finds nobody at work leads:
// it takes everything that waits, applies it in order, writes once and tells
// all. An error of f affects only f, which must not have changed the state
// then.
func (s *Store) change(ctx context.Context, promise statefile.Promise, f func(State) error) error {
	c := &change{apply: f, promise: promise, done: make(chan error, 1)}
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

	lock, err := statefile.Acquire(ctx, s.path+".lock")
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
	next := maps.Clone(s.state)
	changed, promise := false, statefile.Whole
	for i, c := range batch {
		switch err := c.apply(next); {
		case err == nil:
			changed, promise = true, max(promise, c.promise)
		case !errors.Is(err, errUnchanged):
			errs[i] = err
		}
	}
	if !changed || equal(next, s.state) {
		return
	}
	if err := s.write(next, promise); err != nil {
		fail(err)
	}
}

// lockTimeout bounds the wait for another driver on the node. It writes a file
// under the lock and nothing else, so this is generous.
const lockTimeout = 10 * time.Second

// reload reads the file if it is not the one that the state came from.
func (s *Store) reload() error {
	info, err := os.Stat(s.path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("read checkpoint: %w", err)
	}
	if err != nil {
		info = nil
	}
	if s.state != nil && s.read.same(info) {
		return nil
	}
	state := State{}
	if info != nil {
		var doc document
		if err := statefile.Read(s.path, version, &doc); err != nil {
			return fmt.Errorf("read checkpoint: %w", err)
		}
		for _, e := range doc.Claims {
			state[e.UID] = e
		}
	}
	s.state, s.read = state, identity{info}
	return nil
}

func (s *Store) write(next State, promise statefile.Promise) error {
	// Whatever goes wrong from here on, the file may be the old or the new
	// one: read it again next time.
	s.read = identity{}
	s.state = nil
	if err := statefile.Write(s.path, version, document{Claims: sorted(next)}, promise); err != nil {
		return fmt.Errorf("write checkpoint: %w", err)
	}
	s.mu.Lock()
	s.writes++
	s.mu.Unlock()
	info, err := os.Stat(s.path)
	if err != nil {
		return fmt.Errorf("write checkpoint: %w", err)
	}
	s.state, s.read = next, identity{info}
	return nil
}

// Writes says how often the file was replaced by this store.
func (s *Store) Writes() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.writes
}

// Dir is the directory of the checkpoint.
func (s *Store) Dir() string { return filepath.Dir(s.path) }

func sorted(state State) []Entry {
	entries := make([]Entry, 0, len(state))
	for _, uid := range slices.Sorted(maps.Keys(state)) {
		entries = append(entries, state[uid])
	}
	return entries
}

// equal says whether nothing that matters on disk differs.
func equal(a, b State) bool {
	return maps.EqualFunc(a, b, func(x, y Entry) bool {
		return x.Phase == y.Phase && x.BootID == y.BootID && x.Since.Equal(y.Since) && x.sameDevices(y)
	})
}
