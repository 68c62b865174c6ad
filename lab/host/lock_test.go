package host

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dra-lab/dra-lab/lab/internal/ui"
)

// A second process is told who has the lock; when that one is killed, the lock
// is free.
func TestLockNamesHolder(t *testing.T) {
	t.Setenv(StateEnv, filepath.Join(t.TempDir(), "state"))
	// Given another process that holds the lock.
	holder := exec.Command("/proc/self/exe", "-test.run=^TestHoldLock$")
	holder.Env = append(os.Environ(), "DRA_LAB_TEST_HOLD=demo")
	out, err := holder.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := holder.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = holder.Process.Kill() }()
	if _, err := out.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}

	// When this process wants it, then it learns who has it.
	path := filepath.Join(os.Getenv(StateEnv), "locks", "demo.lock")
	_, err = fileLock{path: path, what: "demo", wait: time.Millisecond}.lock(t.Context(), silent())
	pid := strconv.Itoa(holder.Process.Pid)
	if !errors.Is(err, ErrLocked) || !strings.Contains(err.Error(), "lock demo: in use by another process") || !strings.Contains(err.Error(), "pid "+pid) {
		t.Errorf("error = %v, want ErrLocked with pid %s", err, pid)
	}
	if hint := ui.Hint(err); !strings.Contains(hint, "kill "+pid) {
		t.Errorf("hint = %q, want one with the pid", hint)
	}

	// When the holder is killed, a lock that waits gets it.
	_ = holder.Process.Kill()
	_ = holder.Wait()
	unlock, err := Lock(t.Context(), "demo", silent())
	if err != nil {
		t.Fatal(err)
	}
	unlock()
	if exists(os.Getenv(StateEnv)) {
		t.Error("the lock file or its directories are left")
	}
}

// TestHoldLock is the other process of TestLockNamesHolder, no test by itself.
func TestHoldLock(t *testing.T) {
	name := os.Getenv("DRA_LAB_TEST_HOLD")
	if name == "" {
		return
	}
	if _, err := Lock(t.Context(), name, silent()); err != nil {
		t.Fatal(err)
	}
	_, _ = os.Stdout.WriteString("held\n")
	select {}
}

// Waiting for a lock is said, and says for whom.
func TestLockWaitsVisibly(t *testing.T) {
	lock := fileLock{path: filepath.Join(t.TempDir(), "l", "x.lock"), what: "x", wait: 10 * time.Second}
	unlock, err := lock.lock(t.Context(), silent())
	if err != nil {
		t.Fatal(err)
	}
	var stderr bytes.Buffer
	said := make(chan struct{})
	go func() {
		<-said
		unlock()
	}()
	second, err := lock.lock(t.Context(), ui.New(&stderr, &signalWriter{w: &stderr, said: said}, 0))
	if err != nil {
		t.Fatal(err)
	}
	second()
	if !strings.Contains(stderr.String(), "waiting for \"host.test\" (pid "+strconv.Itoa(os.Getpid())) {
		t.Errorf("said %q, want who has the lock", stderr.String())
	}
}

// signalWriter closes said at the first write.
type signalWriter struct {
	w    *bytes.Buffer
	said chan struct{}
	once sync.Once
}

func (s *signalWriter) Write(p []byte) (int, error) {
	defer s.once.Do(func() { close(s.said) })
	return s.w.Write(p)
}

// Though the file is removed with every unlock, never two have the lock.
func TestLockExcludes(t *testing.T) {
	lock := fileLock{path: filepath.Join(t.TempDir(), "l", "x.lock"), what: "x", wait: time.Minute}
	var inside, most atomic.Int32
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 10 {
				unlock, err := lock.lock(t.Context(), silent())
				if err != nil {
					t.Error(err)
					return
				}
				if n := inside.Add(1); n > most.Load() {
					most.Store(n)
				}
				inside.Add(-1)
				unlock()
			}
		})
	}
	wg.Wait()
	if most.Load() != 1 {
		t.Errorf("%d held the lock at once", most.Load())
	}
}

func TestLockRefusesPaths(t *testing.T) {
	t.Setenv(StateEnv, t.TempDir())
	for _, name := range []string{"", "a/b", "..", ".hidden"} {
		if _, err := Lock(t.Context(), name, silent()); err == nil {
			t.Errorf("Lock(%q) went through", name)
		}
	}
}

// A holder that had no room to write its name is not ended with "kill 0", which
// would end the reader's own shell and all that it runs.
func TestLockOfUnknownHolder(t *testing.T) {
	lock := fileLock{path: filepath.Join(t.TempDir(), "l", "x.lock"), what: "x", wait: time.Millisecond}
	unsigned, err := lock.try()
	if err != nil {
		t.Fatal(err)
	}
	defer unsigned.Close()
	_, err = lock.lock(t.Context(), silent())
	if !errors.Is(err, ErrLocked) || !strings.Contains(err.Error(), "another process") {
		t.Errorf("error = %v, want ErrLocked", err)
	}
	if hint := ui.Hint(err); hint == "" || strings.Contains(hint, "kill") {
		t.Errorf("hint = %q, want one to wait", hint)
	}
}
