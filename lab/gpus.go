package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/spf13/cobra"

	"github.com/dra-lab/dra-lab/driver/api"
	"github.com/dra-lab/dra-lab/lab/host"
	"github.com/dra-lab/dra-lab/lab/host/gpu"
	"github.com/dra-lab/dra-lab/lab/install"
	"github.com/dra-lab/dra-lab/lab/internal/ui"
	"github.com/dra-lab/dra-lab/lab/passthrough"
)

// driverRootFlag adds --driver-root, for verbs that look at the host's GPUs.
func driverRootFlag(cmd *cobra.Command, value *string) {
	cmd.Flags().StringVar(value, "driver-root", "/", "`directory` with NVIDIA's driver: device nodes, libraries, /proc/driver/nvidia")
}

// checkDriverRoot refuses what cannot be one, before anything else is done.
func checkDriverRoot(cmd *cobra.Command, dir string) error {
	info, err := os.Stat(dir)
	if err == nil && !info.IsDir() {
		err = &fs.PathError{Op: "look below", Path: dir, Err: errors.New("not a directory")}
	}
	if err != nil {
		return wrongUsage(cmd, fmt.Errorf("--driver-root: %w", err))
	}
	return nil
}

// chooseGPUs decides between the host's GPUs and simulated ones, and says what it
// decided and why. The source is nil with simulated ones.
func (l *lab) chooseGPUs(ctx context.Context, engine *host.Engine, o upOptions, gpus install.GPUs) (install.GPUs, *passthrough.Source, error) {
	if gpus.Mode() == install.Simulated {
		return gpus, nil, nil
	}
	facts := gpu.Look(ctx, o.driverRoot)
	verdict := engine.JudgeGPUs(facts, os.Geteuid() == 0)
	stop, stopped := verdict.Stop()
	if len(verdict.GPUs) == 0 {
		reason, hint := "this host has no NVIDIA GPU", "lab up --gpus simulated"
		if stopped {
			reason, hint = stop.String(), stop.Cure
		}
		if gpus.Mode() == install.Passthrough {
			return gpus, nil, ui.WithHint(fmt.Errorf("pass GPUs through: %s", reason), "%s", hint)
		}
		l.ui.Info("GPUs: simulated (%s), because %s", api.DefaultGPUs, reason)
		if stopped {
			l.ui.Info("to pass the host's through: %s", hint)
		}
		return gpus.Choose(install.Simulated), nil, nil
	}
	source, err := passthrough.New(facts, verdict.GPUs)
	if err != nil {
		return gpus, nil, err
	}
	l.ui.Info("GPUs: the host's own, %s", source)
	for _, f := range verdict.Findings {
		l.ui.Warn("%s; %s", f, f.Cure)
	}
	return gpus.Choose(install.Passthrough), source, nil
}
