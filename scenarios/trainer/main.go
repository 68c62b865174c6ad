// Command trainer is the workload of the lab's scenarios: one rank of a
// data-parallel training job. It learns to tell spirals apart with a small
// neural network, adds gradients with its peers over gRPC, and keeps
// checkpoints on a shared volume, from which it goes on after a fault.
//
// It does real work on the CPU; the GPUs that it asks for it only checks and
// occupies: it refuses to start without the devices that its claim promised,
// and shows up as a process on simulated ones.
//
// With the first argument "target" it is something else: a server for probes to
// probe (package internal/target).
//
// Events go to standard output, one JSON line each (package
// lab/timeline/workload); errors to standard error. Exit status: 0 done, 1
// failed, 2 wrong usage, 143 asked to leave by SIGTERM before it was done (so
// that a Job counts the rank as not done).
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/dra-lab/dra-lab/driver/api"
	"github.com/dra-lab/dra-lab/lab/timeline/workload"
	"github.com/dra-lab/dra-lab/scenarios/trainer/internal/devices"
	"github.com/dra-lab/dra-lab/scenarios/trainer/internal/job"
	"github.com/dra-lab/dra-lab/scenarios/trainer/internal/target"
)

const (
	exitFailed = 1
	exitUsage  = 2
	exitLeft   = 128 + int(syscall.SIGTERM)
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

func run(args []string, stdout, stderr io.Writer) int {
	leave, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	if len(args) > 0 && args[0] == target.Verb {
		return target.Main(leave.Done(), args[1:], stderr)
	}

	t := trainer{stdout: stdout, stderr: stderr}
	flags := flag.NewFlagSet("trainer", flag.ContinueOnError)
	flags.SetOutput(stderr)
	t.settings.Bind(flags)
	t.pace.Bind(flags)
	t.options.Bind(flags)
	if err := flags.Parse(args); errors.Is(err, flag.ErrHelp) {
		return 0
	} else if err != nil {
		return exitUsage
	}
	if err := t.options.Complete(t.settings.World); err != nil {
		fmt.Fprintf(stderr, "trainer: %v\n", err)
		return exitUsage
	}
	err := t.work(context.Background(), leave.Done())
	switch {
	case err == nil:
		return 0
	case errors.Is(err, job.ErrLeft):
		fmt.Fprintf(stderr, "trainer: %v\n", err)
		return exitLeft
	}
	t.emit(workload.Line{Time: time.Now(), Event: workload.EventFailed, Rank: t.options.Rank, World: t.settings.World, Detail: err.Error()})
	fmt.Fprintf(stderr, "trainer: %v\n", err)
	return exitFailed
}

type trainer struct {
	settings       job.Settings
	pace           job.Pace
	options        job.Options
	stdout, stderr io.Writer
}

// work occupies the GPUs while it trains, or holds them.
func (t *trainer) work(ctx context.Context, leave <-chan struct{}) (err error) {
	container, err := devices.This()
	if err != nil {
		return err
	}
	granted, err := container.Check(t.options.Devices)
	if err != nil {
		return err
	}
	name, err := os.Hostname()
	if err != nil {
		return fmt.Errorf("read host name: %w", err)
	}
	if t.options.Memory > 0 {
		release, err := container.Use(granted, api.Process{PID: os.Getpid(), Bytes: t.options.Memory, Name: name})
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, release()) }()
	}

	t.emit(workload.Line{
		Time: time.Now(), Event: workload.EventStarted, Rank: t.options.Rank, World: t.settings.World,
		Devices: api.FormatDevices(granted.Devices),
	})
	if t.options.Hold {
		<-leave
		return nil
	}
	return t.train(ctx, leave)
}

// emit writes one line. That nobody can read it must not stop the training.
func (t *trainer) emit(line workload.Line) {
	data, err := line.Encode()
	if err == nil {
		_, err = t.stdout.Write(data)
	}
	if err != nil {
		fmt.Fprintf(t.stderr, "trainer: %v\n", err)
	}
}
