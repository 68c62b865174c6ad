package statefile_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dra-lab/dra-lab/driver/internal/statefile"
)

type document struct{ Text string }

func TestWhatWasWrittenIsRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.json")
	for _, want := range []string{"first", "second <&> é"} {
		if err := statefile.Write(t.Context(), path, "v1", document{want}); err != nil {
			t.Fatal(err)
		}
		var got document
		if err := statefile.Read(path, "v1", &got); err != nil {
			t.Fatal(err)
		}
		if got.Text != want {
			t.Errorf("got %q, want %q", got.Text, want)
		}
	}
	// Nothing but the lock is left beside it.
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(entries) != 2 {
		t.Errorf("directory has %v, %v", entries, err)
	}
}

// file is one with the content.
func file(t *testing.T, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "state.json")
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestWritersOfOneFileDoNotMix(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.json")
	// Given several drivers that write the file at the same time, each what it
	// knows, then each succeeds, and the file is whole at any time.
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for range 20 {
				if err := statefile.Write(t.Context(), path, "v1", document{strings.Repeat("x", 100*i)}); err != nil {
					t.Error(err)
				}
				var d document
				if err := statefile.Read(path, "v1", &d); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
}

func TestDamageIsNoticed(t *testing.T) {
	var d document
	if err := statefile.Read(filepath.Join(t.TempDir(), "none"), "v1", &d); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a missing file gives %v", err)
	}
	for name, content := range map[string]string{
		"empty":         "",
		"cut off":       `{"v1":{"checksum":"sha256:`,
		"changed":       `{"v1":{"checksum":"sha256:00","data":{"Text":"x"}}}`,
		"no data":       `{"v1":{"checksum":""}}`,
		"not an object": `[]`,
	} {
		if err := statefile.Read(file(t, content), "v1", &d); !errors.Is(err, statefile.ErrCorrupt) {
			t.Errorf("%s: got %v, want ErrCorrupt", name, err)
		}
	}
	if err := statefile.Read(file(t, `{"v2":{"checksum":"","data":{}}}`), "v1", &d); !errors.Is(err, statefile.ErrVersion) {
		t.Errorf("another version gives %v", err)
	}
}

func TestReformattedFileIsStillGood(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.json")
	if err := statefile.Write(t.Context(), path, "v1", document{"text"}); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	spaced := " \n" + string(data[:len(data)-1]) + " "
	var got document
	if err := statefile.Read(file(t, spaced), "v1", &got); err != nil || got.Text != "text" {
		t.Errorf("got %v, %v", got, err)
	}
}

func TestLockHasOneHolder(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	// Given many that want the lock,
	var inside, most int
	var mu sync.Mutex
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			for range 8 {
				l, err := statefile.Acquire(t.Context(), path)
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				inside++
				most = max(most, inside)
				mu.Unlock()
				mu.Lock()
				inside--
				mu.Unlock()
				if err := l.Release(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	// then never two have it.
	if most != 1 {
		t.Errorf("%d held the lock at a time", most)
	}
}

func TestLockWaitsNoLongerThanItsContext(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	l, err := statefile.Acquire(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := statefile.Acquire(ctx, path); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want the deadline", err)
	}
	if err := l.Release(); err != nil {
		t.Fatal(err)
	}
	again, err := statefile.Acquire(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	if err := again.Release(); err != nil {
		t.Error(err)
	}
}
