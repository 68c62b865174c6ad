// Command idle is a DRA plugin that does nothing, for a node of a cluster: the
// scenario speed measures the driver against it. See package
// driver/internal/plugin/idle.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/dra-lab/dra-lab/driver/api"
	"github.com/dra-lab/dra-lab/driver/internal/plugin/idle"
	"github.com/dra-lab/dra-lab/driver/internal/program"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintf(os.Stderr, "idle: error: %v\n", err)
		os.Exit(1)
	}
}

// run serves until ctx ends.
func run(ctx context.Context, args []string) error {
	cfg := idle.Config{RegistrarDir: api.RegistrarDir, OnError: func(err error) { fmt.Fprintf(os.Stderr, "idle: %v\n", err) }}
	flags := flag.NewFlagSet("idle", flag.ContinueOnError)
	flags.StringVar(&cfg.Node, "node-name", os.Getenv("NODE_NAME"), "`name` of this node ($NODE_NAME)")
	flags.StringVar(&cfg.Driver, "driver-name", "idle.lab.example", "`name` of the driver")
	flags.StringVar(&cfg.PluginDir, "plugin-dir", "/var/lib/kubelet/plugins/idle.lab.example", "`directory` of the plugin's socket")
	devices := flags.Int("devices", 1, "`number` of devices")
	if err := flags.Parse(args); err != nil {
		return err
	}
	client, _, err := program.Connect("", nil) // as the driver has it
	if err != nil {
		return err
	}
	cfg.Client = client
	helper, err := idle.Start(ctx, cfg)
	if err != nil {
		return err
	}
	defer helper.Stop()
	if err := idle.Publish(ctx, helper, cfg.Node, *devices); err != nil {
		if ctx.Err() != nil {
			return nil // it was told to end before anybody came
		}
		return err
	}
	<-ctx.Done()
	return nil
}
