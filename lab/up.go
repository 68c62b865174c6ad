package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/dra-lab/dra-lab/lab/cluster"
	"github.com/dra-lab/dra-lab/lab/host"
	"github.com/dra-lab/dra-lab/lab/install"
	"github.com/dra-lab/dra-lab/lab/internal/ui"
	"github.com/dra-lab/dra-lab/lab/nodeimage"
)

const (
	defaultName   = "dra-lab"
	defaultConfig = "kind-config.yaml"
)

// nameFlag adds --name, which every verb that works on a lab has.
func nameFlag(cmd *cobra.Command, name *string) {
	clusterFlag(cmd, name, defaultName, "`name` of the lab's cluster")
}

func clusterFlag(cmd *cobra.Command, name *string, standard, usage string) {
	*name = standard
	cmd.Flags().Var(checked{name, cluster.CheckName}, "name", usage)
}

type upOptions struct {
	name, config, kubernetes, nodeImage, gpus string

	driverRoot string
	wait       time.Duration
	retain     bool
}

// versionFlag adds a flag that takes a version of Kubernetes.
func versionFlag(cmd *cobra.Command, value *string, name, standard, usage string) {
	*value = standard
	cmd.Flags().Var(checked{value, func(v string) error {
		_, err := nodeimage.ParseVersion(v)
		return err
	}}, name, usage)
}

func newUp(l *lab) *cobra.Command {
	var o upOptions
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Bring up the cluster and the driver",
		Long: `Brings up a real kind cluster with the DRA feature gates of its Kubernetes version and
rolls out the lab's driver. GPUs are the host's if it has NVIDIA GPUs that can be used,
else simulated ones; it says which and why. What is there already and unchanged is left alone, so it is
safe to repeat, and after an interruption it goes on where it stopped.`,
		Example: `  lab up
  lab up --gpus simulated=h100:3,h100:1:mig,t4:2:shared
  lab up --gpus passthrough
  lab up --kubernetes v1.36.3 --name older`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkDriverRoot(cmd, o.driverRoot); err != nil {
				return err
			}
			return l.up(cmd.Context(), o)
		},
	}
	nameFlag(cmd, &o.name)
	cmd.Flags().StringVar(&o.config, "config", "", "kind config `file` (default "+defaultConfig+", else one control plane and two workers)")
	versionFlag(cmd, &o.kubernetes, "kubernetes", "", "Kubernetes `version`; any that can be pulled or built (default: kind's own where a registry answers, else "+nodeimage.DefaultKubernetes+" from source)")
	cmd.Flags().StringVar(&o.nodeImage, "node-image", "", "node `image` to use as it is, instead of looking one up for --kubernetes")
	cmd.Flags().StringVar(&o.gpus, "gpus", "auto", "`mode`: passthrough for the host's GPUs, simulated[=PROFILE:COUNT[:mig|:shared],...], or auto for the first that is possible")
	driverRootFlag(cmd, &o.driverRoot)
	cmd.Flags().DurationVar(&o.wait, "wait", 4*time.Minute, "how long nodes get to become ready")
	cmd.Flags().BoolVar(&o.retain, "retain", false, "keep the nodes of a cluster that does not come up, to look at them")
	return cmd
}

func (l *lab) up(ctx context.Context, o upOptions) error {
	gpus, err := install.ParseGPUs(o.gpus)
	if err != nil {
		return ui.UsageError(err)
	}
	config, err := readConfig(o.config)
	if err != nil {
		return err
	}
	// Before minutes are spent on an image: what the last step will need.
	artifacts, err := install.FindArtifacts()
	if err != nil {
		return err
	}

	unlock, err := host.Lock(ctx, "cluster-"+o.name, l.ui)
	if err != nil {
		return err
	}
	defer unlock()

	engine, err := host.EnsureEngine(ctx, l.ui)
	if err != nil {
		return err
	}
	if err := engine.Use(); err != nil {
		return err
	}
	// A cluster of the same name that is not ours is refused before an image is
	// built for it.
	if _, err := cluster.Open(ctx, o.name); err != nil && !errors.Is(err, cluster.ErrNotFound) {
		return err
	}
	gpus, source, err := l.chooseGPUs(ctx, engine, o, gpus)
	if err != nil {
		return err
	}
	image, err := l.nodeImage(ctx, engine, o)
	if err != nil {
		return err
	}
	driver := install.Options{Artifacts: artifacts, GPUs: gpus}
	c, err := cluster.Ensure(ctx, cluster.Options{
		Name:         o.name,
		Config:       config,
		Image:        image,
		Restrictions: engine.Restrictions,
		GPUs:         source,
		Retain:       o.retain,
		Wait:         o.wait,
		Meanwhile: func(ctx context.Context, nodes []cluster.Node) {
			if err := install.Preload(ctx, nodes, driver, l.ui); err != nil {
				l.ui.Debug("%v", err) // Install does what is missing, and says why it cannot
			}
		},
	}, l.ui)
	if err != nil {
		return err
	}
	if err := install.Install(ctx, c, driver, l.ui); err != nil {
		if ctx.Err() != nil {
			err = ui.WithHint(err, "cluster %q stays, with the driver half installed: \"lab up --name %s\" goes on, \"lab down --name %s\" removes it", o.name, o.name, o.name)
		}
		return err
	}
	name := ""
	if o.name != defaultName {
		name = " --name " + o.name
	}
	l.ui.Info("lab %q is up: try \"lab status%s\", \"lab run%s training\", eval \"$(lab env%s)\"", o.name, name, name, name)
	return nil
}

func (l *lab) nodeImage(ctx context.Context, engine *host.Engine, o upOptions) (nodeimage.Image, error) {
	if o.nodeImage != "" {
		return nodeimage.Inspect(ctx, engine, o.nodeImage)
	}
	return nodeimage.Ensure(ctx, engine, nodeimage.Options{Kubernetes: o.kubernetes}, l.ui)
}

// readConfig reads the kind config at path. Without a path it takes the one in
// the working directory, and without that the built-in one.
func readConfig(path string) (*cluster.Config, error) {
	optional := path == ""
	if optional {
		path = defaultConfig
	}
	data, err := os.ReadFile(path)
	if optional && errors.Is(err, fs.ErrNotExist) {
		return cluster.DefaultConfig(), nil
	}
	if err != nil {
		return nil, ui.UsageError(ui.WithHint(fmt.Errorf("read kind config: %w", err),
			"name a file with --config; without it the lab has one control plane and two workers"))
	}
	config, err := cluster.ParseConfig(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return config, nil
}
