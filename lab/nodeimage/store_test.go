package nodeimage

import (
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/dra-lab/dra-lab/lab/internal/ui"
)

func quiet() *ui.UI { return ui.New(io.Discard, io.Discard, 0) }

func newTestStore(t *testing.T) *store {
	t.Helper()
	s, err := openStore(t.TempDir(), quiet())
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestKeyHashesNameAndInputs(t *testing.T) {
	base := step{name: "n", inputs: []string{"ab", "c"}}
	for what, other := range map[string]step{
		"another name":          {name: "m", inputs: []string{"ab", "c"}},
		"another input":         {name: "n", inputs: []string{"ab", "d"}},
		"one input more":        {name: "n", inputs: []string{"ab", "c", ""}},
		"inputs cut otherwise":  {name: "n", inputs: []string{"a", "bc"}},
		"inputs in other order": {name: "n", inputs: []string{"c", "ab"}},
	} {
		if base.key() == other.key() {
			t.Errorf("%s: same key", what)
		}
	}
	same := step{name: "n", title: "told otherwise", inputs: []string{"ab", "c"}}
	if base.key() != same.key() {
		t.Error("the title, which decides nothing, changes the key")
	}
}

func TestStepIsMadeOnce(t *testing.T) {
	s := newTestStore(t)
	made := 0
	st := step{name: "hello", title: "greeting", make: func(_ context.Context, out string, _ *ui.Step) error {
		made++
		return os.WriteFile(filepath.Join(out, "file"), []byte("hello"), 0o644)
	}}
	for range 2 {
		dir, err := s.do(t.Context(), st)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(filepath.Join(dir, "file")); err != nil || string(got) != "hello" {
			t.Fatalf("output is %q, %v", got, err)
		}
	}
	if made != 1 {
		t.Errorf("made %d times, want once", made)
	}
}

func TestFailedStepLeavesNothing(t *testing.T) {
	s := newTestStore(t)
	st := step{name: "bad", title: "failing", make: func(_ context.Context, out string, _ *ui.Step) error {
		if err := os.MkdirAll(filepath.Join(out, "half", "made"), 0o755); err != nil {
			return err
		}
		// As in Go's module cache: directories that may not be written to.
		return errors.Join(os.Chmod(filepath.Join(out, "half"), 0o555), errors.New("no more"))
	}}
	if _, err := s.do(t.Context(), st); err == nil || err.Error() != "failing: no more" {
		t.Fatalf("error is %v", err)
	}
	wantEmpty(t, s)
	if s.has(st) {
		t.Error("the store has the output of a failed step")
	}
}

func wantEmpty(t *testing.T, s *store) {
	t.Helper()
	left, err := os.ReadDir(filepath.Join(s.dir, scratch))
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range left {
		t.Errorf("left behind: %s", entry.Name())
	}
}

// A build is interrupted while a step runs programs that have children of their
// own. They must all be gone when do returns: the next build uses the same
// caches. The next build then makes that step and only that step again.
func TestInterruptedStepIsResumed(t *testing.T) {
	s := newTestStore(t)
	var made []string
	first := step{name: "first", title: "first", make: func(context.Context, string, *ui.Step) error {
		made = append(made, "first")
		return nil
	}}
	interrupt := errors.New("interrupted")
	ctx, cancel := context.WithCancelCause(t.Context())
	pids := filepath.Join(t.TempDir(), "pids")
	slow := true
	second := step{name: "second", title: "second", make: func(ctx context.Context, out string, _ *ui.Step) error {
		made = append(made, "second")
		script := `echo half > "$OUT/file"; sleep 600 & echo $$ $! > "$PIDS"; echo started >&2; wait`
		if !slow {
			script = `echo whole > "$OUT/file"`
		}
		cmd := exec.CommandContext(ctx, "sh", "-c", script)
		cmd.Env = append(os.Environ(), "OUT="+out, "PIDS="+pids)
		_, err := run(ctx, cmd, func(line string) {
			if line == "started" {
				cancel(interrupt)
			}
		})
		return err
	}}
	build := func(ctx context.Context) (string, error) {
		if _, err := s.do(ctx, first); err != nil {
			return "", err
		}
		return s.do(ctx, second)
	}

	if _, err := build(ctx); !errors.Is(err, interrupt) {
		t.Fatalf("interrupted build: %v", err)
	}
	wantEmpty(t, s)
	data, err := os.ReadFile(pids)
	if err != nil {
		t.Fatal(err)
	}
	for _, field := range strings.Fields(string(data)) {
		wantGone(t, field)
	}

	slow = false
	dir, err := build(t.Context())
	if err != nil {
		t.Fatalf("resumed build: %v", err)
	}
	if got, err := os.ReadFile(filepath.Join(dir, "file")); err != nil || string(got) != "whole\n" {
		t.Errorf("output is %q, %v", got, err)
	}
	if got := strings.Join(made, " "); got != "first second second" {
		t.Errorf("steps made: %s", got)
	}
}

// wantGone waits until a killed process has been collected by whoever does so.
func wantGone(t *testing.T, pid string) {
	t.Helper()
	number, err := strconv.Atoi(pid)
	if err != nil {
		t.Fatal(err)
	}
	deadline := time.After(10 * time.Second)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		stat, err := os.ReadFile("/proc/" + pid + "/stat")
		if err != nil || strings.Contains(string(stat), ") Z ") {
			return
		}
		select {
		case <-tick.C:
		case <-deadline:
			_ = syscall.Kill(number, syscall.SIGKILL)
			t.Fatalf("process %s outlives its step: %s", pid, stat)
		}
	}
}

func TestOpenDropsHalfMadeOutputs(t *testing.T) {
	dir := t.TempDir()
	half := filepath.Join(dir, scratch, "killed-123", "out", "some", "where")
	if err := os.MkdirAll(half, 0o755); err != nil {
		t.Fatal(err)
	}
	s, err := openStore(dir, quiet())
	if err != nil {
		t.Fatal(err)
	}
	wantEmpty(t, s)
}

func TestPruneKeepsWhatIsUsed(t *testing.T) {
	s := newTestStore(t)
	make := func(name string) step {
		st := step{name: name, title: name, make: func(context.Context, string, *ui.Step) error { return nil }}
		if _, err := s.do(t.Context(), st); err != nil {
			t.Fatal(err)
		}
		long := time.Now().Add(-100 * time.Hour)
		if err := os.Chtimes(filepath.Join(s.dir, st.dir()), long, long); err != nil {
			t.Fatal(err)
		}
		return st
	}
	forgotten, used := make("forgotten"), make("used")
	if _, err := s.do(t.Context(), used); err != nil {
		t.Fatal(err)
	}
	if err := s.prune(time.Now().Add(-time.Hour)); err != nil {
		t.Fatal(err)
	}
	if s.has(forgotten) || !s.has(used) {
		t.Errorf("forgotten is there: %t, used is there: %t", s.has(forgotten), s.has(used))
	}
}
