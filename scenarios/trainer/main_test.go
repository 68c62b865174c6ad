package main

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"github.com/dra-lab/dra-lab/lab/timeline/workload"
	"github.com/dra-lab/dra-lab/scenarios/trainer/reference"
)

// asTrainer makes the test binary be the trainer.
const asTrainer = "BE_TRAINER"

func TestMain(m *testing.M) {
	if os.Getenv(asTrainer) != "" {
		os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
	}
	os.Exit(m.Run())
}

func TestAJobSurvivesKilledAndTerminatedProcesses(t *testing.T) {
	// Given a job of two processes,
	j := newJob(t)
	rank0, rank1 := j.start("0"), j.start("1")

	// when each is killed once, and asked to leave once, and replaced,
	rank1.waitForStep(40)
	rank1.end(syscall.SIGKILL, -1)
	rank1 = j.start("1")
	rank1.waitForStep(90)
	rank0.end(syscall.SIGKILL, -1)
	rank0 = j.start("0")
	rank0.waitForStep(140)
	rank0.end(syscall.SIGTERM, exitLeft)
	rank0 = j.start("0")
	rank0.waitForStep(190)
	rank1.end(syscall.SIGTERM, exitLeft)
	rank1 = j.start("1")

	// then both end with the bits of an undisturbed job.
	want, err := reference.Run(j.args("0"))
	if err != nil {
		t.Fatal(err)
	}
	for name, p := range map[string]*process{"rank 0": rank0, "rank 1": rank1} {
		done := p.waitFor(func(l workload.Line) bool { return l.Event == workload.EventDone })
		if done.Weights != want.Weights || done.Loss != want.Loss {
			t.Errorf("%s ends with weights %s and loss %g, want %s and %g", name, done.Weights, done.Loss, want.Weights, want.Loss)
		}
		p.checkExit(0)
	}
}

func TestTheTrainerRefusesToStartWithoutItsDevices(t *testing.T) {
	var stdout, stderr bytes.Buffer
	if got := run([]string{"-rank=0", "-world=1", "-run=a", "-devices=1", "-volume=" + t.TempDir()}, &stdout, &stderr); got != exitFailed {
		t.Errorf("exit status %d, want %d", got, exitFailed)
	}
	if !bytes.Contains(stderr.Bytes(), []byte("want 1")) {
		t.Errorf("stderr %q does not say what is missing", stderr.String())
	}
	if line, ok := workload.Parse(stdout.Bytes()); !ok || line.Event != workload.EventFailed {
		t.Errorf("stdout %q, want the event %q", stdout.String(), workload.EventFailed)
	}
}

func TestWrongUsageEndsWithStatusTwo(t *testing.T) {
	t.Setenv("JOB_COMPLETION_INDEX", "")
	for name, args := range map[string][]string{
		"unknown flag":      {"-nonsense"},
		"no rank":           {"-run=a"},
		"rank out of range": {"-run=a", "-rank=2", "-world=2"},
		"no run":            {"-rank=0"},
	} {
		t.Run(name, func(t *testing.T) {
			var stderr bytes.Buffer
			if got := run(args, io.Discard, &stderr); got != exitUsage {
				t.Errorf("exit status %d, want %d", got, exitUsage)
			}
			if stderr.Len() == 0 {
				t.Error("nothing on stderr")
			}
		})
	}
}

// job starts processes of one job.
type testJob struct {
	t       *testing.T
	volume  string
	address string
}

func newJob(t *testing.T) *testJob {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().String()
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	return &testJob{t: t, volume: t.TempDir(), address: address}
}

func (j *testJob) args(rank string) []string {
	return []string{
		"-rank=" + rank, "-run=a", "-devices=0", "-volume=" + j.volume, "-listen=" + j.address, "-address=" + j.address,
		"-points=300", "-hidden=16", "-batch=64", "-steps=240", "-pace=5ms", "-checkpoint-every=15", "-report-every=1", "-patience=1m",
	}
}

type process struct {
	t       *testing.T
	command *exec.Cmd
	lines   *bufio.Scanner
}

func (j *testJob) start(rank string) *process {
	j.t.Helper()
	command := exec.Command(os.Args[0], j.args(rank)...)
	command.Env = append(os.Environ(), asTrainer+"=1")
	command.Stderr = os.Stderr
	stdout, err := command.StdoutPipe()
	if err != nil {
		j.t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		j.t.Fatal(err)
	}
	j.t.Cleanup(func() {
		// Already gone, unless the test failed.
		if err := command.Process.Kill(); err == nil {
			_ = command.Wait()
		}
	})
	return &process{t: j.t, command: command, lines: bufio.NewScanner(stdout)}
}

func (p *process) waitForStep(step int64) {
	p.t.Helper()
	p.waitFor(func(l workload.Line) bool { return l.Step >= step })
}

func (p *process) waitFor(is func(workload.Line) bool) workload.Line {
	p.t.Helper()
	for p.lines.Scan() {
		if line, ok := workload.Parse(p.lines.Bytes()); ok && is(line) {
			return line
		}
	}
	p.t.Fatalf("%v ended before the line came", p.command.Args)
	return workload.Line{}
}

func (p *process) end(signal os.Signal, want int) {
	p.t.Helper()
	if err := p.command.Process.Signal(signal); err != nil {
		p.t.Fatal(err)
	}
	p.checkExit(want)
}

func (p *process) checkExit(want int) {
	p.t.Helper()
	for p.lines.Scan() {
		// Read to the end, so that the process is not stuck writing.
	}
	err := p.command.Wait()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		p.t.Fatal(err)
	}
	if got := p.command.ProcessState.ExitCode(); got != want {
		p.t.Errorf("%v ended with status %d, want %d", p.command.Args, got, want)
	}
}
