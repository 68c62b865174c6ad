package checkpoint_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/dra-lab/dra-lab/driver/internal/checkpoint"
	"github.com/dra-lab/dra-lab/driver/internal/statefile"
)

func path(t *testing.T) string { return filepath.Join(t.TempDir(), "checkpoint") }

func open(t *testing.T, path, boot string) *checkpoint.Store {
	t.Helper()
	s, err := checkpoint.Open(t.Context(), path, boot)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func entry(uid string, devices ...string) checkpoint.Entry {
	e := checkpoint.Entry{UID: uid, Namespace: "default", Name: "claim-" + uid}
	for _, d := range devices {
		e.Devices = append(e.Devices, checkpoint.Device{Request: "gpu", Pool: "node", Name: d, UUID: "GPU-" + d})
	}
	return e
}

// start begins and, if so wanted, completes a claim.
func start(t *testing.T, s *checkpoint.Store, e checkpoint.Entry, complete bool) checkpoint.Entry {
	t.Helper()
	got, err := s.Start(t.Context(), e)
	if err != nil {
		t.Fatal(err)
	}
	if complete {
		if err := s.Complete(t.Context(), e.UID, nil); err != nil {
			t.Fatal(err)
		}
	}
	return got
}

func phases(t *testing.T, s *checkpoint.Store) map[string]checkpoint.Phase {
	t.Helper()
	entries, err := s.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]checkpoint.Phase{}
	for _, e := range entries {
		got[e.UID] = e.Phase
	}
	return got
}

func TestClaimsSurviveARestart(t *testing.T) {
	p := path(t)
	// Given a driver that completed one claim, was cut off in another and has
	// unprepared a third,
	s := open(t, p, "boot-1")
	start(t, s, entry("a", "gpu-0"), true)
	start(t, s, entry("b", "gpu-1", "gpu-2"), false)
	start(t, s, entry("c", "gpu-3"), true)
	if err := s.Remove(t.Context(), "c"); err != nil {
		t.Fatal(err)
	}
	// when another one starts, then it knows the first two.
	want := map[string]checkpoint.Phase{"a": checkpoint.Completed, "b": checkpoint.Started}
	if diff := cmp.Diff(want, phases(t, open(t, p, "boot-1"))); diff != "" {
		t.Errorf("claims (-want +got):\n%s", diff)
	}
}

func TestDeviceHasOneHolder(t *testing.T) {
	s := open(t, path(t), "boot-1")
	start(t, s, entry("a", "gpu-0"), false)

	// A claim that is only started holds its devices as well.
	_, err := s.Start(t.Context(), entry("b", "gpu-1", "gpu-0"))
	if !errors.Is(err, checkpoint.ErrHeld) {
		t.Fatalf("got %v, want ErrHeld", err)
	}
	// Nothing of the refused claim is recorded, so the free device stays free.
	start(t, s, entry("c", "gpu-1"), true)

	// One that only looks may have any device,
	monitor := entry("m", "gpu-0", "gpu-1")
	for i := range monitor.Devices {
		monitor.Devices[i].Monitor = true
	}
	start(t, s, monitor, true)
	// and keeps none from others.
	if err := s.Remove(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	start(t, s, entry("b", "gpu-0"), true)
}

func TestPrepareAgain(t *testing.T) {
	baseline := func(n uint64, e checkpoint.Entry) checkpoint.Entry {
		e.Devices[0].BaselineBytes = &n
		return e
	}
	for _, tc := range []struct {
		name     string
		complete bool
		boot     string
		phase    checkpoint.Phase
		baseline uint64
	}{
		{name: "cut off", boot: "boot-1", phase: checkpoint.Started, baseline: 10},
		{name: "complete", complete: true, boot: "boot-1", phase: checkpoint.Completed, baseline: 10},
		// After a reboot everything is done again, and measured again.
		{name: "cut off by a reboot", boot: "boot-2", phase: checkpoint.Started, baseline: 20},
		{name: "complete before a reboot", complete: true, boot: "boot-2", phase: checkpoint.Started, baseline: 20},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := path(t)
			start(t, open(t, p, "boot-1"), baseline(10, entry("a", "gpu-0")), tc.complete)
			got := start(t, open(t, p, tc.boot), baseline(20, entry("a", "gpu-0")), false)
			if got.Phase != tc.phase || *got.Devices[0].BaselineBytes != tc.baseline {
				t.Errorf("got %s with baseline %d, want %s with %d", got.Phase, *got.Devices[0].BaselineBytes, tc.phase, tc.baseline)
			}
		})
	}
}

func TestClaimWithOtherDevicesIsRefused(t *testing.T) {
	s := open(t, path(t), "boot-1")
	start(t, s, entry("a", "gpu-0"), true)
	if _, err := s.Start(t.Context(), entry("a", "gpu-1")); err == nil {
		t.Error("the same claim got other devices")
	}
	if got := phases(t, s)["a"]; got != checkpoint.Completed {
		t.Errorf("the claim is now %s", got)
	}
}

func TestCompleteNeedsAStart(t *testing.T) {
	if err := open(t, path(t), "boot-1").Complete(t.Context(), "a", nil); err == nil {
		t.Error("a claim was completed that nobody started")
	}
}

func TestRepeatingChangesNothing(t *testing.T) {
	s := open(t, path(t), "boot-1")
	start(t, s, entry("a", "gpu-0"), true)
	before := s.Writes()
	start(t, s, entry("a", "gpu-0"), true)
	if err := s.Remove(t.Context(), "unknown"); err != nil {
		t.Fatal(err)
	}
	if got := s.Writes() - before; got != 0 {
		t.Errorf("the file was written %d times", got)
	}
}

func TestDamagedCheckpointIsRefused(t *testing.T) {
	p := path(t)
	start(t, open(t, p, "boot-1"), entry("a", "gpu-0"), true)
	for _, file := range []string{p + "-a.json", p + "-b.json"} {
		if err := os.WriteFile(file, []byte(`{"v1":`), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := checkpoint.Open(t.Context(), p, "boot-1"); !errors.Is(err, statefile.ErrCorrupt) {
		t.Errorf("got %v, want ErrCorrupt", err)
	}
}

func TestTwoDriversShareACheckpoint(t *testing.T) {
	p := path(t)
	// Given two drivers, one replacing the other,
	drivers := []*checkpoint.Store{open(t, p, "boot-1"), open(t, p, "boot-1")}
	// when many claims at once want the same few devices from both,
	const devices, claims = 4, 40
	var got, writes atomic.Int64
	holders := make([]atomic.Int64, devices)
	var wg sync.WaitGroup
	for i := range claims {
		wg.Go(func() {
			s := drivers[i%len(drivers)]
			uid := fmt.Sprintf("claim-%d", i)
			device := i % devices
			if _, err := s.Start(t.Context(), entry(uid, fmt.Sprintf("gpu-%d", device))); err != nil {
				if !errors.Is(err, checkpoint.ErrHeld) {
					t.Error(err)
				}
				return
			}
			got.Add(1)
			if n := holders[device].Add(1); n != 1 {
				t.Errorf("gpu-%d has %d holders", device, n)
			}
			if err := s.Complete(t.Context(), uid, nil); err != nil {
				t.Error(err)
			}
			// The other driver sees it at once.
			if e, ok, err := drivers[(i+1)%2].Get(t.Context(), uid); err != nil || !ok || e.Phase != checkpoint.Completed {
				t.Errorf("the other driver sees %v, %v, %v", e, ok, err)
			}
			holders[device].Add(-1)
			if err := s.Remove(t.Context(), uid); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for _, s := range drivers {
		writes.Add(int64(s.Writes()))
	}
	// then each device had one holder at a time, and nothing is left.
	if left := phases(t, drivers[0]); len(left) != 0 {
		t.Errorf("left over: %v", left)
	}
	if got.Load() == 0 {
		t.Error("no claim got a device")
	}
	t.Logf("%d of %d claims got a device, %d writes", got.Load(), claims, writes.Load())
}

func TestChangesAtTheSameTimeAreWrittenTogether(t *testing.T) {
	p := path(t)
	s := open(t, p, "boot-1")
	// Given another driver that is writing,
	other, err := statefile.Acquire(t.Context(), p+".lock")
	if err != nil {
		t.Fatal(err)
	}
	// when many changes come meanwhile,
	const claims = 64
	var wg sync.WaitGroup
	for i := range claims {
		wg.Go(func() {
			if _, err := s.Start(t.Context(), entry(fmt.Sprint(i), fmt.Sprintf("gpu-%d", i))); err != nil {
				t.Error(err)
			}
		})
	}
	for s.Waiting() < claims-1 {
		runtime.Gosched()
	}
	if err := other.Release(); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
	// then the first is written, and all others at once.
	if got := s.Writes(); got != 2 {
		t.Errorf("%d changes took %d writes, want 2", claims, got)
	}
	if got := len(phases(t, s)); got != claims {
		t.Errorf("%d claims recorded, want %d", got, claims)
	}
}

func FuzzOpen(f *testing.F) {
	f.Add([]byte(`{"v1":{"checksum":"sha256:1","data":{"claims":[]}}}`))
	f.Add([]byte(`{}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		p := path(t)
		if err := os.WriteFile(p+"-a.json", data, 0o600); err != nil {
			t.Fatal(err)
		}
		s, err := checkpoint.Open(t.Context(), p, "boot-1")
		if err != nil {
			return
		}
		defer s.Close()
		if _, err := s.List(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

func BenchmarkStartCompleteRemove(b *testing.B) {
	for _, held := range []int{0, 500} {
		b.Run(fmt.Sprintf("held=%d", held), func(b *testing.B) {
			s, err := checkpoint.Open(b.Context(), filepath.Join(b.TempDir(), "c"), "boot-1")
			if err != nil {
				b.Fatal(err)
			}
			for i := range held {
				if _, err := s.Start(b.Context(), entry(fmt.Sprint("held-", i), fmt.Sprint("held-", i))); err != nil {
					b.Fatal(err)
				}
			}
			for b.Loop() {
				if _, err := s.Start(b.Context(), entry("a", "gpu-0")); err != nil {
					b.Fatal(err)
				}
				if err := s.Complete(b.Context(), "a", nil); err != nil {
					b.Fatal(err)
				}
				if err := s.Remove(b.Context(), "a"); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func TestMachineDiesWhileTheFirstClaimIsWritten(t *testing.T) {
	p := path(t)
	start(t, open(t, p, "boot-1"), entry("a", "gpu-0"), false)
	// Given a node whose very first entry has reached the disk in part,
	torn := 0
	for _, file := range []string{p + "-a.json", p + "-b.json"} {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if i := bytes.Index(data, []byte("claim-a")); i >= 0 {
			torn++
			copy(data[i:], bytes.Repeat([]byte(" "), len(data)-i))
			if err := os.WriteFile(file, data, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	if torn != 1 {
		t.Fatalf("the entry is in %d files", torn)
	}
	// then the driver starts, with nothing that was promised missing.
	if got := phases(t, open(t, p, "boot-2")); len(got) != 0 {
		t.Errorf("claims are %v", got)
	}
}

func TestLeaksOutliveTheirClaimUntilMendedOrReboot(t *testing.T) {
	p := path(t)
	s := open(t, p, "boot-1")
	start(t, s, entry("a", "gpu-0", "gpu-1"), true)
	leak := func(name string) checkpoint.Leak {
		return checkpoint.Leak{UUID: "GPU-" + name, Name: name, Claim: "default/claim-a", BaselineBytes: 7, What: "memory"}
	}
	if err := s.Remove(t.Context(), "a", leak("gpu-0"), leak("gpu-1")); err != nil {
		t.Fatal(err)
	}
	// A repeated unprepare leaves nothing new.
	if err := s.Remove(t.Context(), "a", leak("gpu-2")); err != nil {
		t.Fatal(err)
	}
	names := func(s *checkpoint.Store) (names []string) {
		t.Helper()
		leaks, err := s.Leaks(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range leaks {
			if l.BaselineBytes != 7 || l.Since.IsZero() || l.BootID != "boot-1" {
				t.Errorf("leak is %+v", l)
			}
			names = append(names, l.Name)
		}
		return names
	}
	other := open(t, p, "boot-1")
	if diff := cmp.Diff([]string{"gpu-0", "gpu-1"}, names(other)); diff != "" {
		t.Error(diff)
	}
	// A leak holds nobody up.
	start(t, other, entry("b", "gpu-0"), true)
	if err := other.Mend(t.Context(), "GPU-gpu-0"); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"gpu-1"}, names(s)); diff != "" {
		t.Error(diff)
	}
	if got := names(open(t, p, "boot-2")); len(got) > 0 {
		t.Errorf("after a reboot: %v", got)
	}
}

func TestSharesOfADeviceFitIntoItsMemory(t *testing.T) {
	s := open(t, path(t), "boot-1")
	share := func(uid string, bytes uint64) checkpoint.Entry {
		e := entry(uid, "gpu-0")
		e.Devices[0].Share, e.Devices[0].MemoryBytes = "share-"+uid, 100
		e.Devices[0].Settings.MemoryBytes = bytes
		return e
	}
	refused := func(what string, e checkpoint.Entry) {
		t.Helper()
		if _, err := s.Start(t.Context(), e); !errors.Is(err, checkpoint.ErrHeld) {
			t.Errorf("%s: got %v", what, err)
		}
	}
	start(t, s, share("a", 60), true)
	start(t, s, share("b", 40), true)
	refused("more than there is", share("c", 1))
	refused("the whole device", entry("d", "gpu-0"))
	twice := share("e", 0)
	twice.Devices[0].Share = "share-a"
	refused("the share of another claim", twice)
	start(t, s, share("a", 60), true) // again
	if err := s.Remove(t.Context(), "b"); err != nil {
		t.Fatal(err)
	}
	start(t, s, share("c", 40), true)
	for _, uid := range []string{"a", "c"} {
		if err := s.Remove(t.Context(), uid); err != nil {
			t.Fatal(err)
		}
	}
	start(t, s, entry("d", "gpu-0"), true)
	refused("a share of a whole device", share("a", 1))
}

func TestSharesOfADeviceHaveTheBaselineOfTheFirst(t *testing.T) {
	s := open(t, path(t), "boot-1")
	begin := func(uid string, baseline uint64) uint64 {
		t.Helper()
		e := entry(uid, "gpu-0")
		e.Devices[0].Share, e.Devices[0].MemoryBytes = "share-"+uid, 100
		e.Devices[0].Settings.MemoryBytes = 10
		e.Devices[0].BaselineBytes = &baseline
		got, err := s.Start(t.Context(), e)
		if err != nil {
			t.Fatal(err)
		}
		return *got.Devices[0].BaselineBytes
	}
	// What others have in use meanwhile is not what the device should go back to.
	if got := []uint64{begin("a", 1), begin("b", 30), begin("c", 60)}; !slices.Equal(got, []uint64{1, 1, 1}) {
		t.Errorf("baselines are %v", got)
	}
	for _, uid := range []string{"a", "c", "b"} {
		if err := s.Remove(t.Context(), uid); err != nil {
			t.Fatal(err)
		}
	}
	if got := begin("d", 2); got != 2 {
		t.Errorf("the baseline of the next first one is %d", got)
	}
}
