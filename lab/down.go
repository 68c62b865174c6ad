package main

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	"github.com/dra-lab/dra-lab/lab/cluster"
	"github.com/dra-lab/dra-lab/lab/host"
	"github.com/dra-lab/dra-lab/lab/timeline"
)

func newDown(l *lab) *cobra.Command {
	var name string
	var keepEngine bool
	cmd := &cobra.Command{
		Use:   "down",
		Short: "Remove the cluster and what the lab made on this machine",
		Long: `Removes the cluster and, with the last one, the private engine: containers, networks,
mounts, processes and files. Caches (node images, build caches) stay, so that the next
"lab up" is fast. A cluster of the same name that the lab did not make is left alone.`,
		Example: `  lab down`,
		Args:    noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return l.down(cmd.Context(), name, keepEngine)
		},
	}
	nameFlag(cmd, &name)
	cmd.Flags().BoolVar(&keepEngine, "keep-engine", false, "let the private engine run on, for the next \"lab up\"")
	return cmd
}

func (l *lab) down(ctx context.Context, name string, keepEngine bool) error {
	unlock, err := host.Lock(ctx, "cluster-"+name, l.ui)
	if err != nil {
		return err
	}
	defer unlock()

	engine, err := host.ResumeEngine(ctx, l.ui)
	if errors.Is(err, host.ErrNoEngine) {
		l.ui.Info("no engine, so no cluster %q: nothing to remove", name)
		return nil
	}
	if err != nil {
		return err
	}
	if err := engine.Use(); err != nil {
		return err
	}
	if err := cluster.Remove(ctx, name, l.ui); err != nil {
		return err
	}
	left, err := cluster.List(ctx)
	if err != nil {
		return err
	}
	private := engine.Private && !keepEngine
	if len(left) > 0 {
		if private {
			l.ui.Info("the private engine runs on, for %d more clusters", len(left))
		}
		return nil
	}
	if err := timeline.RemoveKept(); err != nil {
		return err
	}
	if !private {
		return nil
	}
	return host.StopEngine(ctx)
}
