package kubelets

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"time"
)

// request and answer are those of _manager/main.go. A claim is known by one
// word there, which is its name and its UID.
type request struct {
	Do       string        `json:"do"`
	Driver   string        `json:"driver,omitempty"`
	Endpoint string        `json:"endpoint,omitempty"`
	Services []string      `json:"services,omitempty"`
	Rounds   int           `json:"rounds,omitempty"`
	Claim    string        `json:"claim,omitempty"`
	Within   time.Duration `json:"within,omitempty"` // of a call; 0: the kubelet's 45 s
	Stacks   string        `json:"stacks,omitempty"` // goroutines with this in their stack
}

type answer struct {
	Error      string          `json:"error"`
	Response   json.RawMessage `json:"response"`
	Hung       bool            `json:"hung"` // the call did not return when its own timeout was over
	Took       time.Duration   `json:"took"`
	Goroutines int             `json:"goroutines"`
	Loops      int             `json:"loops"`   // goroutines of health streams
	Reports    int             `json:"reports"` // health messages received so far
	Stacks     []string        `json:"stacks"`
}

// settings of one process. The zero value is GOMAXPROCS as the machine has it,
// health off, and gRPC's own idle timeout.
type settings struct {
	health    bool
	idle      time.Duration
	procs     int
	verbosity int
}

// manager is a running plugin manager. It is for one goroutine.
type manager struct {
	cmd   *exec.Cmd
	in    io.WriteCloser
	out   *bufio.Reader
	log   *kubeletLog
	ended error
}

func startManager(ctx context.Context, program string, s settings) (*manager, error) {
	cmd := exec.CommandContext(ctx, program, "-health="+strconv.FormatBool(s.health),
		"-idle="+s.idle.String(), "-v="+strconv.Itoa(s.verbosity))
	cmd.WaitDelay = time.Second
	if s.procs > 0 {
		cmd.Env = append(os.Environ(), "GOMAXPROCS="+strconv.Itoa(s.procs))
	}
	m := &manager{cmd: cmd, log: newKubeletLog()}
	cmd.Stderr = m.log
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("start plugin manager: %w", err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("start plugin manager: %w", err)
	}
	m.in, m.out = in, bufio.NewReader(out)
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start plugin manager: %w", err)
	}
	return m, nil
}

// stop ends the process. What it was still doing is no matter.
func (m *manager) stop() error {
	err := m.in.Close()
	if m.ended != nil {
		err = errors.Join(err, m.cmd.Process.Kill())
	}
	waited := m.cmd.Wait()
	if m.ended == nil {
		err = errors.Join(err, waited)
	}
	return err
}

func (m *manager) do(r request) (answer, error) {
	var a answer
	line, err := json.Marshal(r)
	if err != nil {
		return a, err
	}
	if _, err = m.in.Write(append(line, '\n')); err == nil {
		if line, err = m.out.ReadBytes('\n'); err == nil {
			err = json.Unmarshal(line, &a)
		}
	}
	if err != nil {
		m.ended = fmt.Errorf("ask plugin manager to %s: %w (log: %s)", r.Do, err, m.log.last())
		return a, m.ended
	}
	return a, nil
}

// must is do where the kubelet, too, has to succeed.
func (m *manager) must(r request) (answer, error) {
	a, err := m.do(r)
	if err == nil && a.Error != "" {
		err = fmt.Errorf("%s: %s", r.Do, a.Error)
	}
	return a, err
}

// What the log is searched for.
const (
	logCreated = "Creating new gRPC connection"
	logLazy    = "Initialized DRAResourceHealthClient lazily"
	logClosing = "client connection is closing"          // 1.36 and later
	logStale   = "failed to close stale gRPC connection" // before
)

// kubeletLog counts the lines of a kubelet's log that matter, and forgets the
// others, of which there may be any number.
type kubeletLog struct {
	mu      sync.Mutex
	partial string
	counts  map[string]int
	example map[string]string
	recent  string
}

func newKubeletLog() *kubeletLog {
	return &kubeletLog{counts: map[string]int{}, example: map[string]string{}}
}

func (l *kubeletLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	lines := strings.Split(l.partial+string(p), "\n")
	l.partial = lines[len(lines)-1]
	for _, line := range lines[:len(lines)-1] {
		l.recent = line
		// One failure of 1.34 and 1.35 has both texts.
		for _, what := range []string{logCreated, logLazy, logStale, logClosing} {
			if strings.Contains(line, what) {
				l.counts[what]++
				l.example[what] = line
				break
			}
		}
	}
	return len(p), nil
}

func (l *kubeletLog) count(what ...string) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, w := range what {
		n += l.counts[w]
	}
	return n
}

// sample is the newest line that has one of the texts, "" if there is none.
func (l *kubeletLog) sample(what ...string) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, w := range what {
		if line := l.example[w]; line != "" {
			return line
		}
	}
	return ""
}

func (l *kubeletLog) last() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.recent
}
