package connections

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	drav1 "k8s.io/kubelet/pkg/apis/dra/v1"

	"github.com/dra-lab/dra-lab/driver/draconn"
	"github.com/dra-lab/dra-lab/driver/draconn/plugintest"
	"github.com/dra-lab/dra-lab/scenarios/connections/lazymodel"
)

// Race is what many goroutines do to a client that none has used before.
type Race struct {
	Goroutines int
	Rounds     int
	FirstUses
	// EagerConnections is how many connections the plugin accepted from one
	// eager client, at most; its health clients are made by Open, one per
	// version, before there is a second goroutine.
	EagerConnections int
	Detector         Detector
}

// FirstUses is how many health clients lazy clients made.
type FirstUses struct {
	// LazyMany is in how many rounds the lazy client made more than one health
	// client, undisturbed, and LazyMost how many it made at most.
	LazyMany int `json:"lazyMany"`
	LazyMost int `json:"lazyMost"`
	// LazyForced is how many it makes when every goroutine is interrupted
	// between its look at the health client and the assignment.
	LazyForced int `json:"lazyForced"`
}

// Detector is what Go's race detector said about the same first use.
type Detector struct {
	Ran bool
	// Why is why it did not run.
	Why          string
	LazyReports  int
	EagerReports int
	// Where is the source line of the lazy client that the first report names.
	Where string
}

func measureRace(ctx context.Context, socket string, o Options, r *Report) error {
	race := &r.Race
	race.Goroutines, race.Rounds = o.Goroutines, o.Rounds
	var err error
	if race.EagerConnections, err = eagerFirstUses(ctx, socket, o); err != nil {
		return err
	}
	if !raceDetector {
		if race.FirstUses, err = lazyFirstUses(ctx, socket, o); err != nil {
			return err
		}
	}
	counted, err := detect(ctx, o, &race.Detector)
	if err != nil {
		return err
	}
	if raceDetector {
		// A race in this process would fail it, so the other one counts.
		race.FirstUses = counted
	}
	return nil
}

// together runs f in n goroutines that start at the same time, and joins their
// errors.
func together(n int, f func() error) error {
	start := make(chan struct{})
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			<-start
			errs[i] = f()
		})
	}
	close(start)
	wg.Wait()
	return errors.Join(errs...)
}

// lazyFirstUses counts the health clients of a new lazy client per round.
func lazyFirstUses(ctx context.Context, socket string, o Options) (FirstUses, error) {
	var uses FirstUses
	for range o.Rounds {
		n, err := lazyFirstUse(ctx, socket, o, nil)
		if err != nil {
			return FirstUses{}, err
		}
		uses.LazyMost = max(uses.LazyMost, n)
		if n > 1 {
			uses.LazyMany++
		}
	}
	var looked sync.WaitGroup
	looked.Add(o.Goroutines)
	var err error
	uses.LazyForced, err = lazyFirstUse(ctx, socket, o, func() {
		looked.Done()
		looked.Wait()
	})
	return uses, err
}

// lazyFirstUse returns how many health clients a lazy client has made after
// several goroutines wanted one. between, if not nil, is called by all of them
// once they have seen that there is none.
func lazyFirstUse(ctx context.Context, socket string, o Options, between func()) (int, error) {
	server, err := plugintest.Start(socket, plugintest.Config{})
	if err != nil {
		return 0, err
	}
	defer server.Kill()
	client := &lazymodel.Client{Endpoint: socket, DialTimeout: 10 * time.Second, Between: between}
	if between != nil {
		// With the connection there, nothing can keep a goroutine from getting
		// as far as the others, which wait for it.
		if _, err := client.Prepare(ctx, &drav1.NodePrepareResourcesRequest{}); err != nil {
			return 0, errors.Join(err, client.Close())
		}
	}
	err = together(o.Goroutines, func() error {
		_, err := client.Health()
		return err
	})
	return client.HealthClients(), errors.Join(err, client.Close())
}

// eagerFirstUses returns how many connections a new eager connection has cost
// its plugin, at most, after several goroutines have opened a health stream
// over it.
func eagerFirstUses(ctx context.Context, socket string, o Options) (int, error) {
	most := 0
	for range o.Rounds {
		n, err := eagerFirstUse(ctx, socket, o)
		if err != nil {
			return 0, err
		}
		most = max(most, n)
	}
	return most, nil
}

func eagerFirstUse(ctx context.Context, socket string, o Options) (int, error) {
	server, err := plugintest.Start(socket, plugintest.Config{})
	if err != nil {
		return 0, err
	}
	defer server.Kill()
	conn, err := draconn.Open(ctx, socket)
	if err != nil {
		return 0, err
	}
	err = together(o.Goroutines, func() error {
		stream, err := conn.WatchHealth(ctx)
		if err != nil {
			return err
		}
		stream.Close()
		return nil
	})
	return server.Accepted(), errors.Join(err, conn.Close())
}

// The two sides of the laboratory.
const (
	lazySide  = "lazy"
	eagerSide = "eager"
)

// FirstUse is what RaceCommand has to run with its last three arguments: a
// client, a number of goroutines and a number of rounds. It writes one line of
// JSON to stdout; the race detector writes to stderr.
func FirstUse(ctx context.Context, args []string) error {
	var o Options
	if len(args) != 3 {
		return fmt.Errorf("got arguments %q, want CLIENT GOROUTINES ROUNDS", args)
	}
	for i, field := range []*int{&o.Goroutines, &o.Rounds} {
		var err error
		if *field, err = strconv.Atoi(args[i+1]); err != nil || *field <= 0 {
			return fmt.Errorf("argument %q is not a positive number", args[i+1])
		}
	}
	dir, err := os.MkdirTemp("/tmp", "dra-lab-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	socket := filepath.Join(dir, "dra.sock")
	w := watched{Detector: raceDetector}
	switch side := args[0]; side {
	case lazySide:
		w.FirstUses, err = lazyFirstUses(ctx, socket, o)
	case eagerSide:
		_, err = eagerFirstUses(ctx, socket, o)
	default:
		err = fmt.Errorf("client %q is neither %q nor %q", side, lazySide, eagerSide)
	}
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(w)
}

type watched struct {
	Detector bool `json:"detector"`
	FirstUses
}

// detect runs both sides under the race detector, in processes of their own,
// because a process in which a race was found fails. It returns what the lazy
// side counted there.
func detect(ctx context.Context, o Options, d *Detector) (FirstUses, error) {
	command := o.RaceCommand
	if len(command) == 0 {
		self, err := os.Executable()
		if err != nil {
			return FirstUses{}, fmt.Errorf("find own executable: %w", err)
		}
		beside := filepath.Join(filepath.Dir(self), "connections-race")
		if _, err := os.Stat(beside); errors.Is(err, fs.ErrNotExist) {
			d.Why = fmt.Sprintf("%s is not there; go build -race -o %s ./scenarios/connections/racecheck makes it", beside, beside)
			return FirstUses{}, nil
		}
		command = []string{beside}
	}
	lazy, err := underDetector(ctx, command, lazySide, o)
	if err != nil {
		return FirstUses{}, err
	}
	eager, err := underDetector(ctx, command, eagerSide, o)
	if err != nil {
		return FirstUses{}, err
	}
	if !lazy.Detector || !eager.Detector {
		d.Why = command[0] + " was built without -race"
		return FirstUses{}, nil
	}
	d.Ran = true
	d.LazyReports, d.EagerReports = lazy.reports(), eager.reports()
	d.Where = firstFrame(lazy.said)
	return lazy.FirstUses, nil
}

// raceFound is the exit status of a process in which the detector found a race.
const raceFound = 66

// verdict is what one process has written.
type verdict struct {
	watched
	said string // on stderr
}

func (v verdict) reports() int { return strings.Count(v.said, "WARNING: DATA RACE") }

func underDetector(ctx context.Context, command []string, side string, o Options) (verdict, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	args := append(append([]string(nil), command[1:]...), side, strconv.Itoa(o.Goroutines), strconv.Itoa(o.Rounds))
	cmd := exec.CommandContext(ctx, command[0], args...)
	cmd.Env = append(os.Environ(), fmt.Sprintf("GORACE=exitcode=%d halt_on_error=0", raceFound))
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && (!errors.As(err, &exit) || exit.ExitCode() != raceFound) {
		return verdict{}, fmt.Errorf("run %s for the %s client: %w: %s", command[0], side, err, strings.TrimSpace(stderr.String()))
	}
	v := verdict{said: stderr.String()}
	if err := json.NewDecoder(&stdout).Decode(&v.watched); err != nil {
		return verdict{}, fmt.Errorf("read result of %s for the %s client: %w", command[0], side, err)
	}
	return v, nil
}

// firstFrame finds the first source line of the lazy model in a race report.
func firstFrame(report string) string {
	for line := range strings.Lines(report) {
		if _, after, found := strings.Cut(line, "lazymodel/"); found && strings.Contains(after, ".go:") {
			where, _, _ := strings.Cut(strings.TrimSpace(after), " ")
			return "lazymodel/" + where
		}
	}
	return ""
}
