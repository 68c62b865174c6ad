package connections

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"time"
)

// Options of [Run]. The zero value is the full laboratory.
type Options struct {
	// Goroutines is how many goroutines use a client for the first time at the
	// same time; 0 means 64.
	Goroutines int
	// Rounds is how often that and the latencies are measured; 0 means 200.
	Rounds int
	// Reconnects is how often a connection is broken and made again to see
	// what accumulates; 0 means 10,000.
	Reconnects int
	// DialTimeout is the timeout of the blocking dial; 0 means 1 s.
	DialTimeout time.Duration
	// RaceCommand is the command, with arguments, that runs
	// scenarios/connections/racecheck built with -race; what [FirstUse] needs
	// is appended. If it is empty, the file connections-race beside the present
	// executable is used, and if there is none, the race detector's part is
	// left out and the report says so.
	RaceCommand []string
	// Progress, if not nil, is told what is measured next.
	Progress func(what string)
}

func (o *Options) complete() {
	for field, otherwise := range map[*int]int{&o.Goroutines: 64, &o.Rounds: 200, &o.Reconnects: 10_000} {
		if *field <= 0 {
			*field = otherwise
		}
	}
	if o.DialTimeout <= 0 {
		o.DialTimeout = time.Second
	}
	if o.Progress == nil {
		o.Progress = func(string) {}
	}
}

// Run makes all measurements, one after the other, in about a minute on two
// cores with the defaults. Unexpected results are no error: they are in the
// report, and [Report.Deviations] finds them. An error means that something
// could not be measured.
func Run(ctx context.Context, o Options) (*Report, error) {
	o.complete()
	// Not under TMPDIR, which may be too deep for a socket's address.
	dir, err := os.MkdirTemp("/tmp", "dra-lab-")
	if err != nil {
		return nil, fmt.Errorf("make directory for sockets: %w", err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	r := &Report{Environment: Environment{
		Go: runtime.Version(), OS: runtime.GOOS, Arch: runtime.GOARCH,
		CPUs: runtime.GOMAXPROCS(0), RaceDetector: raceDetector,
	}}
	for i, part := range []struct {
		name    string
		measure func(context.Context, string, Options, *Report) error
	}{
		{"race on the health client", measureRace},
		{"stale health client", measureStale},
		{"uncertain initialisation", measureUncertain},
		{"growth over reconnects", measureGrowth},
		{"ways to connect", measureWays},
	} {
		o.Progress(part.name)
		if err := part.measure(ctx, filepath.Join(dir, fmt.Sprintf("%d.sock", i)), o, r); err != nil {
			return nil, fmt.Errorf("measure %s: %w", part.name, err)
		}
	}
	return r, nil
}
