package kubelets

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	healthv1 "k8s.io/kubelet/pkg/apis/dra-health/v1"

	"github.com/dra-lab/dra-lab/driver/draconn/plugintest"
)

// Result is everything measured with one version. Durations are nanoseconds in
// JSON.
type Result struct {
	Version      string       `json:"version"`
	Mended       bool         `json:"mended,omitempty"`
	Registration Registration `json:"registration"`
	Restart      Restart      `json:"restart"`
	Churn        Churn        `json:"churn"`       // with the machine's CPUs
	ChurnOneCPU  Churn        `json:"churnOneCPU"` // with GOMAXPROCS=1
	Idle         Idle         `json:"idle"`
}

// Name is what the version's column is called.
func (r *Result) Name() string {
	if r.Mended {
		return r.Version + " mended"
	}
	return r.Version
}

// Registration is a driver that registers, prepares two claims and reports
// health.
type Registration struct {
	Accepted int           `json:"accepted"` // connections, for all of it
	Prepared int           `json:"prepared"` // claims
	Reports  int           `json:"reports"`  // health messages that arrived
	ToHealth time.Duration `json:"toHealth"` // from registration to the first
	Lazy     int           `json:"lazy"`     // log lines about a health client made lazily
}

// Restart is a driver that is killed, leaves its socket behind and starts again
// at the same path, without registering again.
type Restart struct {
	DownError string        `json:"downError"` // of a prepare while it is away
	DownTook  time.Duration `json:"downTook"`
	Accepted  int           `json:"accepted"`   // by the new process
	Prepared  bool          `json:"prepared"`   // by the new process
	ToHealth  time.Duration `json:"toHealth"`   // from its start to its first health message
	Clients   int           `json:"clientConn"` // gRPC connections made in all, as the log has it
}

// Churn is a driver that registers and deregisters again and again.
type Churn struct {
	Rounds int `json:"rounds"`
	// Left are health streams that nobody ends any more, Goroutines those of
	// the process beyond what it had before.
	Left       int `json:"left"`
	Goroutines int `json:"goroutines"`
	// Retries are log lines about their attempts while they were watched for
	// Watched after the last round; Line is one of them.
	Retries int           `json:"retries"`
	Watched time.Duration `json:"watched"`
	Line    string        `json:"line,omitempty"`
}

// Idle is a driver without a health stream that nobody calls until gRPC
// disconnects.
type Idle struct {
	Prepared bool          `json:"prepared"` // after that
	Hung     bool          `json:"hung"`     // the call did not even heed its own timeout
	Error    string        `json:"error,omitempty"`
	Took     time.Duration `json:"took"`
	Accepted int           `json:"accepted"`
	// Stack is the goroutine that holds the others up.
	Stack string `json:"stack,omitempty"`
}

const (
	driverName = "driver.lab.example"
	// retryPeriod is the kubelet's, between two attempts at a health stream.
	retryPeriod = 5 * time.Second
	// idleTime stands for gRPC's 30 minutes.
	idleTime = time.Second
	// callTimeout stands for the kubelet's 45 s.
	callTimeout = 3 * time.Second
)

// Options of [Measure]. The zero value is what the lab runs.
type Options struct {
	// Rounds of registering and deregistering; 0 means 1,000.
	Rounds int
	// Progress, if not nil, is told what comes next.
	Progress func(what string)
}

// Measure makes all experiments with one version, in less than a minute once
// its program is built. What is unexpected is no error but in the result; an
// error means that something could not be measured.
func Measure(ctx context.Context, k Kubelet, o Options) (*Result, error) {
	l, err := newLaboratory(ctx, k, o)
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(l.dir) }()
	r := &Result{Version: k.Version, Mended: len(k.Patch) > 0}
	for _, e := range []struct {
		what    string
		measure func(context.Context) error
	}{
		{"registration and restart", func(ctx context.Context) (err error) {
			r.Registration, r.Restart, err = l.registration(ctx)
			return err
		}},
		{"churn", func(ctx context.Context) (err error) { r.Churn, err = l.churn(ctx, 0); return err }},
		{"churn on one CPU", func(ctx context.Context) (err error) { r.ChurnOneCPU, err = l.churn(ctx, 1); return err }},
		{"idle connection", func(ctx context.Context) (err error) { r.Idle, err = l.idle(ctx); return err }},
	} {
		if err := l.experiment(ctx, e.what, e.measure); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// MeasureChurn makes that experiment only, on one CPU or on all.
func MeasureChurn(ctx context.Context, k Kubelet, o Options, oneCPU bool) (Churn, error) {
	l, err := newLaboratory(ctx, k, o)
	if err != nil {
		return Churn{}, err
	}
	defer func() { _ = os.RemoveAll(l.dir) }()
	procs := 0
	if oneCPU {
		procs = 1
	}
	var c Churn
	err = l.experiment(ctx, "churn", func(ctx context.Context) (err error) { c, err = l.churn(ctx, procs); return err })
	return c, err
}

// MeasureIdle makes that experiment only.
func MeasureIdle(ctx context.Context, k Kubelet, o Options) (Idle, error) {
	l, err := newLaboratory(ctx, k, o)
	if err != nil {
		return Idle{}, err
	}
	defer func() { _ = os.RemoveAll(l.dir) }()
	var i Idle
	err = l.experiment(ctx, "idle connection", func(ctx context.Context) (err error) { i, err = l.idle(ctx); return err })
	return i, err
}

// MeasureRegistration makes the two experiments with one registration only.
func MeasureRegistration(ctx context.Context, k Kubelet, o Options) (Registration, Restart, error) {
	l, err := newLaboratory(ctx, k, o)
	if err != nil {
		return Registration{}, Restart{}, err
	}
	defer func() { _ = os.RemoveAll(l.dir) }()
	var first Registration
	var then Restart
	err = l.experiment(ctx, "registration and restart", func(ctx context.Context) (err error) {
		first, then, err = l.registration(ctx)
		return err
	})
	return first, then, err
}

// laboratory is where one version is measured.
type laboratory struct {
	kubelet Kubelet
	options Options
	program string
	dir     string // of sockets
}

func newLaboratory(ctx context.Context, k Kubelet, o Options) (*laboratory, error) {
	if o.Rounds <= 0 {
		o.Rounds = 1000
	}
	if o.Progress == nil {
		o.Progress = func(string) {}
	}
	o.Progress(k.Name() + ": building the plugin manager")
	program, err := build(ctx, k)
	if err != nil {
		return nil, err
	}
	// Not under TMPDIR, which may be too deep for a socket's address.
	dir, err := os.MkdirTemp("/tmp", "dra-lab-")
	if err != nil {
		return nil, fmt.Errorf("make folder for sockets: %w", err)
	}
	return &laboratory{kubelet: k, options: o, program: program, dir: dir}, nil
}

// experiment gives one experiment its bound.
func (l *laboratory) experiment(ctx context.Context, what string, measure func(context.Context) error) error {
	l.options.Progress(l.kubelet.Name() + ": " + what)
	ctx, cancel := context.WithTimeout(ctx, 90*time.Second)
	defer cancel()
	if err := measure(ctx); err != nil {
		return fmt.Errorf("measure %s of %s: %w", what, l.kubelet.Name(), err)
	}
	return nil
}

func (l *laboratory) registration(ctx context.Context) (first Registration, then Restart, err error) {
	endpoint := filepath.Join(l.dir, "dra.sock")
	server, err := startDriver(endpoint)
	if err != nil {
		return first, then, err
	}
	defer func() { server.Kill() }()
	m, err := startManager(ctx, l.program, settings{health: true, verbosity: 4})
	if err != nil {
		return first, then, err
	}
	defer func() { err = errors.Join(err, m.stop()) }()

	start := time.Now()
	if _, err = m.must(request{Do: "register", Driver: driverName, Endpoint: endpoint, Services: plugintest.Services()}); err != nil {
		return first, then, err
	}
	if first.Reports, err = m.awaitReports(ctx, 1); err != nil {
		return first, then, err
	}
	first.ToHealth = time.Since(start)
	for _, claim := range []string{"first", "second"} {
		a, err := m.must(request{Do: "prepare", Driver: driverName, Claim: claim, Within: callTimeout})
		if err != nil {
			return first, then, err
		}
		if prepared(a, claim) {
			first.Prepared++
		}
	}
	first.Accepted, first.Lazy = server.Accepted(), m.log.count(logLazy)

	server.Kill()
	down, err := m.do(request{Do: "prepare", Driver: driverName, Claim: "third", Within: callTimeout})
	if err != nil {
		return first, then, err
	}
	then.DownError, then.DownTook = down.Error, down.Took
	if server, err = startDriver(endpoint); err != nil {
		return first, then, err
	}
	start = time.Now()
	if _, err = m.awaitReports(ctx, first.Reports+1); err != nil {
		return first, then, err
	}
	then.ToHealth = time.Since(start)
	a, err := m.must(request{Do: "prepare", Driver: driverName, Claim: "third", Within: callTimeout})
	if err != nil {
		return first, then, err
	}
	then.Prepared = prepared(a, "third")
	then.Accepted, then.Clients = server.Accepted(), m.log.count(logCreated)
	return first, then, nil
}

func (l *laboratory) churn(ctx context.Context, procs int) (c Churn, err error) {
	endpoint := filepath.Join(l.dir, "churn.sock")
	server, err := startDriver(endpoint)
	if err != nil {
		return c, err
	}
	defer server.Kill()
	// At the verbosity that kubelets have: each line written may let a
	// goroutine in that would otherwise come too late.
	m, err := startManager(ctx, l.program, settings{health: true, verbosity: 2, procs: procs})
	if err != nil {
		return c, err
	}
	defer func() { err = errors.Join(err, m.stop()) }()
	before, err := m.must(request{Do: "state"})
	if err != nil {
		return c, err
	}
	if _, err := m.must(request{Do: "churn", Driver: driverName, Endpoint: endpoint, Services: plugintest.Services(), Rounds: l.options.Rounds}); err != nil {
		return c, err
	}
	c.Rounds = l.options.Rounds

	// A stream that is on its way out is gone by the end of a period. One that
	// is there after two has failed twice by then and goes on.
	start, logged := time.Now(), m.log.count(logClosing, logStale)
	over, cancel := context.WithTimeout(ctx, 2*retryPeriod+retryPeriod/2)
	defer cancel()
	var after answer
	err = until(over, "health streams to end", func() (bool, error) {
		after, err = m.must(request{Do: "state"})
		return after.Loops == 0 && after.Goroutines <= before.Goroutines, err
	})
	if err != nil && (over.Err() == nil || ctx.Err() != nil) {
		return c, err
	}
	c.Left, c.Goroutines = after.Loops, after.Goroutines-before.Goroutines
	c.Watched = time.Since(start)
	c.Retries, c.Line = m.log.count(logClosing, logStale)-logged, m.log.sample(logClosing, logStale)
	return c, nil
}

func (l *laboratory) idle(ctx context.Context) (i Idle, err error) {
	endpoint := filepath.Join(l.dir, "idle.sock")
	server, err := startDriver(endpoint)
	if err != nil {
		return i, err
	}
	defer server.Kill()
	// A health stream would keep the connection busy.
	m, err := startManager(ctx, l.program, settings{idle: idleTime, verbosity: 2})
	if err != nil {
		return i, err
	}
	defer func() { err = errors.Join(err, m.stop()) }()
	if _, err := m.must(request{Do: "register", Driver: driverName, Endpoint: endpoint, Services: plugintest.Services(), Within: callTimeout}); err != nil {
		return i, err
	}
	if _, err := m.must(request{Do: "prepare", Driver: driverName, Claim: "busy", Within: callTimeout}); err != nil {
		return i, err
	}
	// Either it disconnects and connects again, or it stops in the middle.
	var state answer
	err = until(ctx, "the connection to become idle", func() (bool, error) {
		state, err = m.must(request{Do: "state", Stacks: ").HandleConn("})
		return server.Accepted() > 1 || len(state.Stacks) > 0 && stuck(state.Stacks[0]), err
	})
	if err != nil {
		return i, err
	}
	a, err := m.do(request{Do: "prepare", Driver: driverName, Claim: "idle", Within: callTimeout})
	if err != nil {
		return i, err
	}
	i.Prepared, i.Hung, i.Error, i.Took = prepared(a, "idle"), a.Hung, a.Error, a.Took
	i.Accepted = server.Accepted()
	if !i.Prepared {
		if state, err = m.must(request{Do: "state", Stacks: ").HandleConn("}); err != nil {
			return i, err
		}
		if len(state.Stacks) > 0 {
			i.Stack = state.Stacks[0]
		}
	}
	return i, nil
}

// startDriver starts a driver that says of one device that it is healthy.
func startDriver(endpoint string) (*plugintest.Server, error) {
	server, err := plugintest.Start(endpoint, plugintest.Config{})
	if err != nil {
		return nil, fmt.Errorf("start driver: %w", err)
	}
	server.SetHealth(&healthv1.DeviceHealth{
		Device: &healthv1.DeviceIdentifier{PoolName: "pool", DeviceName: "gpu-0"},
		Health: healthv1.HealthStatus_HEALTHY,
	})
	return server, nil
}

func (m *manager) awaitReports(ctx context.Context, n int) (reports int, err error) {
	err = until(ctx, "health to arrive", func() (bool, error) {
		a, err := m.must(request{Do: "state"})
		reports = a.Reports
		return reports >= n, err
	})
	return reports, err
}

// prepared says whether an answer to prepare has a device for the claim.
func prepared(a answer, claim string) bool {
	var response struct {
		Claims map[string]struct {
			Devices []json.RawMessage `json:"devices"`
		} `json:"claims"`
	}
	return json.Unmarshal(a.Response, &response) == nil && len(response.Claims[claim].Devices) == 1
}
