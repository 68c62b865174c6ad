package ui

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// A log gets plain lines: one when a step begins, one when it ends, and one
// every ten seconds in between with the last detail.
func TestPlainSteps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var stdout, stderr bytes.Buffer
		u := New(&stdout, &stderr, 0)

		quick := u.Step("looking for an engine")
		time.Sleep(time.Second)
		quick.Done(nil)

		slow := u.Step("building node image %q", "v1.37.2")
		slow.Update("compiling kubelet")
		time.Sleep(12 * time.Second)
		slow.Update("compiling kubeadm")
		time.Sleep(9 * time.Second)
		u.Info("image is %s", "big")
		u.Debug("not shown")
		slow.Done(nil)

		broken := u.Step("starting cluster")
		time.Sleep(2300 * time.Millisecond)
		broken.Done(errors.New("no"))
		broken.Done(nil) // too late: ignored
		broken.Update("ignored")
		u.Warn("nothing works")
		fmt.Fprintln(u.Out(), "result")

		time.Sleep(time.Minute) // no step, no line
		synctest.Wait()

		wantErr := `lab: • looking for an engine ...
lab: ✓ looking for an engine
lab: • building node image "v1.37.2" ...
lab: • building node image "v1.37.2" (10s): compiling kubelet
lab: • building node image "v1.37.2" (20s): compiling kubeadm
lab: image is big
lab: ✓ building node image "v1.37.2" (21.0s)
lab: • starting cluster ...
lab: ✗ starting cluster (2.3s)
lab: warning: nothing works
`
		if diff := cmp.Diff(wantErr, stderr.String()); diff != "" {
			t.Errorf("stderr (-want +got):\n%s", diff)
		}
		if got, want := stdout.String(), "result\n"; got != want {
			t.Errorf("stdout = %q, want %q", got, want)
		}
	})
}

// A terminal gets one live line, which is wiped before anything else is
// written and stays away while somebody's line is unfinished.
func TestLiveLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var terminal bytes.Buffer // stdout and stderr of a terminal are one screen
		u := New(&terminal, &terminal, 0)
		u.width = func() int { return 40 }
		u.outShared = true

		first := u.Step("first")
		second := u.Step("second, with a name that is longer than the line")
		time.Sleep(150 * time.Millisecond) // one frame: the second moved last
		first.Update("a detail")
		time.Sleep(100 * time.Millisecond) // one frame: the first
		_, _ = io.WriteString(u.Out(), "half")
		time.Sleep(2 * time.Second) // no frame
		_, _ = io.WriteString(u.Out(), " a line\n")
		second.Done(nil)
		time.Sleep(100 * time.Millisecond) // one frame: only the first is left
		first.Done(errors.New("no"))
		time.Sleep(time.Second)
		synctest.Wait()

		got := strings.NewReplacer("\r", "<cr>", clearToEnd, "<clear>", "\n", "<nl>\n").Replace(terminal.String())
		want := strings.Join([]string{
			"<cr>lab: ⠙ second, with a name that is lon…<clear>",
			"<cr>lab: ⠹ first: a detail (and 1 more)<clear>",
			"<cr><clear>half a line<nl>\n",
			"lab: ✓ second, with a name that is longer than the line (2.2s)<nl>\n",
			"<cr>lab: ⠸ first (2s): a detail<clear>",
			"<cr><clear>lab: ✗ first (2.4s)<nl>\n",
		}, "")
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("terminal (-want +got):\n%s", diff)
		}
	})
}

func TestFail(t *testing.T) {
	base := errors.New("listen: permission denied")
	long := strings.Repeat("line\n", maxDetailLines) + "last\n"
	for name, tc := range map[string]struct {
		err    error
		status int
		want   string
	}{
		"nil prints nothing": {nil, 0, ""},
		"plain":              {base, 1, "lab: error: listen: permission denied\n"},
		"hint survives wrapping": {
			fmt.Errorf("start engine: %w", WithHint(base, "run %q as root", "lab up")), 1,
			"lab: error: start engine: listen: permission denied\nlab: hint: run \"lab up\" as root\n"},
		"outermost hint wins": {
			WithHint(WithHint(base, "inner"), "outer"), 1,
			"lab: error: listen: permission denied\nlab: hint: outer\n"},
		"usage": {UsageError(errors.New(`unknown flag "--x"`)), 2, "lab: error: unknown flag \"--x\"\n"},
		"joined errors take one line": {
			fmt.Errorf("delete: %w", errors.Join(base, WithHint(errors.New("busy\n"), "wait\nthen retry"))), 1,
			"lab: error: delete: listen: permission denied; busy\nlab: hint: wait\nlab: hint: then retry\n"},
		"details come first, cut to the last lines": {
			fmt.Errorf("start: %w", WithDetail(WithDetail(base, "log", long), "state", "gone")), 1,
			"lab: state:\nlab:   | gone\nlab: log:\nlab:   | ...\n" + strings.Repeat("lab:   | line\n", maxDetailLines-1) +
				"lab:   | last\nlab: error: start: listen: permission denied\n"},
		"told by another program": {fmt.Errorf("run: %w", Told(base, 3)), 3, ""},
		"joined with one that is told": {
			fmt.Errorf("run: %w", errors.Join(Told(base, 3), errors.New("unlock: gone"))), 3,
			"lab: error: run: listen: permission denied; unlock: gone\n"},
	} {
		t.Run(name, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			if got := New(&stdout, &stderr, 0).Fail(tc.err); got != tc.status {
				t.Errorf("Fail = %d, want %d", got, tc.status)
			}
			if diff := cmp.Diff(tc.want, stderr.String()); diff != "" {
				t.Errorf("stderr (-want +got):\n%s", diff)
			}
			if stdout.Len() != 0 {
				t.Errorf("stdout = %q, want nothing", stdout.String())
			}
		})
	}
}

// Wrapping keeps the cause reachable and nil nil.
func TestWrappedErrors(t *testing.T) {
	err := WithDetail(WithHint(UsageError(io.EOF), "h"), "t", "text")
	if !errors.Is(err, io.EOF) || Hint(err) != "h" || Detail(err) != "text" || Status(err) != StatusUsage {
		t.Errorf("got %v, hint %q, detail %q, status %d", err, Hint(err), Detail(err), Status(err))
	}
	if WithHint(nil, "h") != nil || UsageError(nil) != nil || WithDetail(nil, "t", "x") != nil {
		t.Error("nil became an error")
	}
}

// Many steps at once, with output in between: for the race detector, and no
// line is torn.
func TestConcurrentSteps(t *testing.T) {
	var out bytes.Buffer
	u := New(&out, &out, 1)
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			s := u.Step("step %d", i)
			for range 20 {
				s.Update("detail")
				u.Debug("debug %d", i)
				fmt.Fprintf(u.Out(), "lab: result %d\n", i)
			}
			s.Done(nil)
		})
	}
	wg.Wait()
	u.mu.Lock()
	defer u.mu.Unlock()
	lines := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
	if got, want := len(lines), 20*(2+20*2); got != want {
		t.Errorf("%d lines, want %d", got, want)
	}
	for _, l := range lines {
		if !strings.HasPrefix(l, "lab: ") {
			t.Errorf("torn line %q", l)
		}
	}
}
