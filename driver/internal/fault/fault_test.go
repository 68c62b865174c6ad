package fault

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/dra-lab/dra-lab/driver/api"
)

func TestDecide(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	over := now.Add(-time.Second)
	fails := api.Fault{ID: "f", Kind: api.FaultPrepareFails, Since: now}
	twice := api.Fault{ID: "t", Kind: api.FaultPrepareFails, Times: 2, Since: now}
	for _, tc := range []struct {
		name   string
		faults []api.Fault
		place  Place
		done   int
		act    Act
		id     string
	}{
		{name: "none", place: Prepare},
		{name: "elsewhere", faults: []api.Fault{fails}, place: Unprepare},
		{name: "fails", faults: []api.Fault{fails}, place: Prepare, done: 99, act: Fail, id: "f"},
		{name: "once more", faults: []api.Fault{twice}, place: Prepare, done: 1, act: Fail, id: "t"},
		{name: "done", faults: []api.Fault{twice}, place: Prepare, done: 2},
		{name: "done, and another", faults: []api.Fault{twice, fails}, place: Prepare, done: 2, act: Fail, id: "f"},
		{name: "over", faults: []api.Fault{{ID: "o", Kind: api.FaultPrepareFails, Until: &over}}, place: Prepare},
		{
			name: "away", place: Prepare,
			faults: []api.Fault{{ID: "a", Kind: api.FaultPrepareFails, Since: now.Add(-3 * time.Second), Flap: 2 * time.Second}},
		},
		{name: "hangs", faults: []api.Fault{{ID: "h", Kind: api.FaultUnprepareHangs}}, place: Unprepare, act: Hang, id: "h"},
		{name: "slow", faults: []api.Fault{{ID: "s", Kind: api.FaultPrepareSlow, Code: 3}}, place: Prepare, act: Slow, id: "s"},
		{name: "killed", faults: []api.Fault{{ID: "k", Kind: api.FaultDriverKill, Step: "prepare/bound"}}, place: "prepare/bound", act: Kill, id: "k"},
		{name: "killed at another step", faults: []api.Fault{{ID: "k", Kind: api.FaultDriverKill, Step: "prepare/bound"}}, place: "prepare/started"},
		{name: "of the GPU", faults: []api.Fault{{ID: "x", Kind: api.FaultXID, Code: 79}}, place: Prepare},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d := Decide(tc.faults, tc.place, func(api.Fault) int { return tc.done }, now)
			if d.Act != tc.act || d.Fault.ID != tc.id {
				t.Errorf("got act %d of fault %q, want %d of %q", d.Act, d.Fault.ID, tc.act, tc.id)
			}
			if (d.Err != nil) != (tc.act == Fail) || (d.Delay != 0) != (tc.act == Slow) {
				t.Errorf("got error %v, delay %s", d.Err, d.Delay)
			}
		})
	}
}

// Each kind of the driver's faults does something, in one way or another.
func TestEveryKindActs(t *testing.T) {
	places := []Place{Prepare, Unprepare, Registration, HealthStream, Checkpoint, CDI, API}
	for _, s := range api.KillSteps() {
		places = append(places, Place(s))
	}
	elsewhere := []string{api.FaultClockJump, api.FaultHealthLate, api.FaultHealthStalls, api.FaultSocketLost}
	for _, kind := range api.FaultKinds() {
		if api.Target(kind) != api.TargetDriver {
			continue
		}
		f := api.Fault{ID: "a", Kind: kind, Code: 1, Step: api.KillSteps()[0]}
		acts := slices.ContainsFunc(places, func(p Place) bool {
			return Decide([]api.Fault{f}, p, nil, time.Time{}).Act != Nothing
		})
		if acts == slices.Contains(elsewhere, kind) {
			t.Errorf("kind %s acts at a place: %v", kind, acts)
		}
	}
}

func TestDiskFullLooksLikeIt(t *testing.T) {
	d := Decide([]api.Fault{{ID: "a", Kind: api.FaultCDIFull}}, CDI, nil, time.Now())
	if !errors.Is(d.Err, syscall.ENOSPC) || !strings.Contains(d.Err.Error(), "injected fault cdi-full") {
		t.Errorf("got %v", d.Err)
	}
}

type bench struct {
	*Faults
	dir string

	mu   sync.Mutex
	acts []string
	errs []error
}

func newBench(t *testing.T) *bench {
	t.Helper()
	b := &bench{dir: filepath.Join(t.TempDir(), "driver")}
	b.restart(t)
	return b
}

// restart is another process with the same files.
func (b *bench) restart(t *testing.T) {
	t.Helper()
	var err error
	b.Faults, err = New(Config{
		Dir: b.dir,
		OnAct: func(f api.Fault, p Place) {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.acts = append(b.acts, f.ID+"@"+string(p))
		},
		OnError: func(err error) { b.mu.Lock(); defer b.mu.Unlock(); b.errs = append(b.errs, err) },
	})
	if err != nil {
		t.Fatal(err)
	}
	b.kill = func() { t.Error("killed") }
}

func (b *bench) inject(t *testing.T, faults ...api.Fault) {
	t.Helper()
	data, err := api.Faults{Faults: faults}.Encode()
	if err != nil {
		t.Fatal(err)
	}
	b.write(t, string(data))
}

func (b *bench) write(t *testing.T, content string) {
	t.Helper()
	path := filepath.Join(b.dir, api.FaultsName)
	if err := os.WriteFile(path+".tmp", []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".tmp", path); err != nil {
		t.Fatal(err)
	}
}

func TestNilHasNoFaults(t *testing.T) {
	var f *Faults
	if err := f.Pass(t.Context(), Prepare); err != nil {
		t.Error(err)
	}
	if _, ok := f.Find(api.FaultHealthStalls); ok {
		t.Error("found one")
	}
	if f.Transport(http.DefaultTransport) != http.DefaultTransport {
		t.Error("the transport is another")
	}
}

func TestFailsAsOftenAsItShouldAlsoOverARestart(t *testing.T) {
	b := newBench(t)
	if err := b.Pass(t.Context(), Prepare); err != nil {
		t.Error(err)
	}
	f := api.Fault{ID: "a", Kind: api.FaultPrepareFails, Times: 2, Since: time.Now()}
	b.inject(t, f)
	if b.Pass(t.Context(), Prepare) == nil {
		t.Error("not the first time")
	}
	b.restart(t)
	if b.Pass(t.Context(), Prepare) == nil {
		t.Error("not the second time")
	}
	if err := b.Pass(t.Context(), Prepare); err != nil {
		t.Errorf("the third time: %v", err)
	}
	if want := []string{"a@prepare", "a@prepare"}; !slices.Equal(b.acts, want) {
		t.Errorf("told of %v, want %v", b.acts, want)
	}
	// Cleared, and injected anew under the same ID, it begins anew.
	b.inject(t)
	if err := b.Pass(t.Context(), Prepare); err != nil {
		t.Error(err)
	}
	if left, err := os.ReadDir(filepath.Join(b.dir, spentDir)); err != nil || len(left) > 0 {
		t.Errorf("left %v, %v", left, err)
	}
	f.Since = time.Now()
	b.inject(t, f)
	if b.Pass(t.Context(), Prepare) == nil {
		t.Error("not when it was injected anew")
	}
}

func TestHangEndsWithTheFaultOrTheCaller(t *testing.T) {
	b := newBench(t)
	b.inject(t, api.Fault{ID: "a", Kind: api.FaultPrepareHangs})
	ctx, cancel := context.WithTimeoutCause(t.Context(), 300*time.Millisecond, errors.New("the kubelet gave up"))
	defer cancel()
	if err := b.Pass(ctx, Prepare); err == nil || !strings.Contains(err.Error(), "the kubelet gave up") {
		t.Errorf("got %v", err)
	}
	done := make(chan error, 1)
	go func() { done <- b.Pass(t.Context(), Prepare) }()
	select {
	case err := <-done:
		t.Fatalf("it does not hang: %v", err)
	case <-time.After(300 * time.Millisecond):
	}
	b.inject(t)
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestSlowIsNoSlowerThanItShould(t *testing.T) {
	b := newBench(t)
	b.inject(t, api.Fault{ID: "a", Kind: api.FaultPrepareSlow, Code: 1})
	start := time.Now()
	if err := b.Pass(t.Context(), Prepare); err != nil {
		t.Error(err)
	}
	if took := time.Since(start); took < time.Second || took > 10*time.Second {
		t.Errorf("it took %s", took)
	}
}

func TestKillIsCountedBeforeItHappens(t *testing.T) {
	b := newBench(t)
	kills := 0
	b.kill = func() { kills++ }
	b.inject(t, api.Fault{ID: "a", Kind: api.FaultDriverKill, Step: "prepare/bound", Times: 1, Since: time.Now()})
	for range 3 {
		if err := b.Pass(t.Context(), "prepare/bound"); err != nil {
			t.Error(err)
		}
		b.restart(t)
		b.kill = func() { kills++ }
	}
	if kills != 1 {
		t.Errorf("killed %d times", kills)
	}
}

func TestFileThatCannotBeReadChangesNothing(t *testing.T) {
	b := newBench(t)
	b.inject(t, api.Fault{ID: "a", Kind: api.FaultHealthStalls})
	if _, ok := b.Find(api.FaultHealthStalls); !ok {
		t.Fatal("there is no fault")
	}
	for _, content := range []string{`{`, `{"faults":[{"id":"a","kind":"xid","code":79}]}`, `{"faults":[{"id":"a","kind":"fire"}]}`} {
		b.write(t, content)
		for range 3 {
			if _, ok := b.Find(api.FaultHealthStalls); !ok {
				t.Errorf("%s: the fault is gone", content)
			}
		}
	}
	if len(b.errs) != 3 {
		t.Errorf("told of %d errors, want 3: %v", len(b.errs), b.errs)
	}
	b.inject(t)
	if _, ok := b.Find(api.FaultHealthStalls); ok {
		t.Error("the fault is still there")
	}
}

func TestUnreachableAPIServer(t *testing.T) {
	b := newBench(t)
	more := make(chan string)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		for text := range more {
			_, _ = io.WriteString(w, text)
			w.(http.Flusher).Flush() //nolint:forcetypeassert // it is one
		}
	}))
	defer server.Close()
	defer close(more)
	client := &http.Client{Transport: b.Transport(http.DefaultTransport)}
	get := func() (*http.Response, error) {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL, nil)
		if err != nil {
			t.Fatal(err)
		}
		return client.Do(req)
	}
	go func() { more <- "a" }()
	resp, err := get()
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	buf := make([]byte, 1)
	if _, err := resp.Body.Read(buf); err != nil {
		t.Fatal(err)
	}
	b.inject(t, api.Fault{ID: "a", Kind: api.FaultAPIUnreachable})
	if _, err := get(); !errors.Is(err, syscall.EHOSTUNREACH) {
		t.Errorf("a call ends with %v", err)
	}
	go func() { more <- "b" }()
	if n, err := resp.Body.Read(buf); n != 0 || !errors.Is(err, syscall.EHOSTUNREACH) {
		t.Errorf("a stream brings %d bytes, %v", n, err)
	}
}

// BenchmarkPass is what a place costs a driver without faults.
func BenchmarkPass(b *testing.B) {
	f, err := New(Config{Dir: b.TempDir()})
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if err := f.Pass(b.Context(), Prepare); err != nil {
			b.Fatal(err)
		}
	}
}
