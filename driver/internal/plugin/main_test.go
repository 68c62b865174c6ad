package plugin_test

import (
	"context"
	"fmt"
	"io"
	"os"
	"syscall"
	"testing"

	"go.uber.org/goleak"
	"k8s.io/klog/v2"

	"github.com/dra-lab/dra-lab/driver/internal/plugin"
)

// Environment of this test program when it runs as a driver that is going to
// die.
const (
	envRoot  = "DRIVER_TEST_ROOT"
	envPoint = "DRIVER_TEST_POINT" // where to die; empty for not
)

func TestMain(m *testing.M) {
	if root := os.Getenv(envRoot); root != "" {
		if err := runVictim(root, plugin.Point(os.Getenv(envPoint))); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	klog.LogToStderr(false)
	klog.SetOutput(io.Discard)
	goleak.VerifyTestMain(m)
}

// runVictim runs a driver on the machine at root until its standard input is
// closed, or until it reaches the point: there it is killed, as by the kernel.
func runVictim(root string, point plugin.Point) error {
	m := &machine{root: root, client: newClient()}
	for _, c := range victimClaims() {
		if err := m.client.Tracker().Add(c); err != nil {
			return err
		}
	}
	gpus, sim, err := m.hardware(nil)
	if err != nil {
		return err
	}
	cfg := m.config(gpus, sim)
	cfg.At = func(p plugin.Point, _ string) {
		if p == point {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {} // not a step further
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	d, err := plugin.Open(ctx, cfg)
	if err != nil {
		return err
	}
	return d.Run(ctx)
}
