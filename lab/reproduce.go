package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"

	"github.com/dra-lab/dra-lab/lab/cluster"
	"github.com/dra-lab/dra-lab/lab/host"
	"github.com/dra-lab/dra-lab/lab/internal/ui"
	"github.com/dra-lab/dra-lab/lab/nodeimage"
)

// reproduceName is the cluster whose workers have different kubelets. It is
// another one than the lab of scenarios: it has no driver.
const reproduceName = "dra-lab-kubelets"

type reproduceOptions struct {
	name, junit, format string
}

func newReproduce(l *lab) *cobra.Command {
	cmd := noun(&cobra.Command{
		Use:   "reproduce",
		Short: "Reproduce issues of Kubernetes on real kubelets",
		Long: `Each reproduction runs the same steps on kubelets that have the issue and on kubelets
that do not, at the same time, and says from what it saw whether the issue is there.`,
		Example: `  lab reproduce list
  lab reproduce run 140527`,
	})
	cmd.AddCommand(newReproduceList(l), newReproduceRun(l), newReproduceMatrix(l))
	return cmd
}

func newReproduceList(l *lab) *cobra.Command {
	var format string
	cmd := &cobra.Command{
		Use:     "list",
		Short:   "List the reproductions",
		Example: `  lab reproduce list -o json`,
		Args:    noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkFormat(format, "text", "json"); err != nil {
				return err
			}
			return l.reproductions(cmd.Context(), reproduceName, l.ui.Out(), "-list", "-output="+format)
		},
	}
	formatFlag(cmd, &format)
	return cmd
}

func newReproduceRun(l *lab) *cobra.Command {
	var o reproduceOptions
	cmd := &cobra.Command{
		Use:   "run ID...",
		Short: "Run reproductions; brings the kubelets that they need",
		Example: `  lab reproduce run 140527
  lab reproduce run 133920 health-stream`,
		Args: someArguments("ID"),
		RunE: func(cmd *cobra.Command, ids []string) error {
			if err := checkFormat(o.format, "text", "json"); err != nil {
				return err
			}
			return l.reproduce(cmd.Context(), o, ids)
		},
	}
	clusterFlag(cmd, &o.name, reproduceName, "`name` of the cluster with the kubelets")
	cmd.Flags().StringVar(&o.junit, "junit", "", "write a JUnit report to this `file`")
	formatFlag(cmd, &o.format)
	return cmd
}

func newReproduceMatrix(l *lab) *cobra.Command {
	o := reproduceOptions{format: "markdown"}
	cmd := &cobra.Command{
		Use:     "matrix",
		Short:   "Run all reproductions and show the verdicts as Markdown",
		Example: `  lab reproduce matrix >verdicts.md`,
		Args:    noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return l.reproduce(cmd.Context(), o, nil)
		},
	}
	clusterFlag(cmd, &o.name, reproduceName, "`name` of the cluster with the kubelets")
	cmd.Flags().StringVar(&o.junit, "junit", "", "write a JUnit report to this `file`")
	return cmd
}

// reproduction is what the list says about one.
type reproduction struct {
	ID      string   `json:"id"`
	Bad     []string `json:"bad"`
	Good    []string `json:"good"`
	Package bool     `json:"package"`
}

// reproduce brings the kubelets that the reproductions need and runs them.
func (l *lab) reproduce(ctx context.Context, o reproduceOptions, ids []string) error {
	var list bytes.Buffer
	if err := l.reproductions(ctx, o.name, &list, append([]string{"-list", "-output=json"}, ids...)...); err != nil {
		return err
	}
	var chosen []reproduction
	if err := json.Unmarshal(list.Bytes(), &chosen); err != nil {
		return fmt.Errorf("read list of reproductions: %w", err)
	}
	var kubelets []string
	for _, r := range chosen {
		if !r.Package {
			kubelets = slices.Concat(kubelets, r.Bad, r.Good)
		}
	}
	slices.Sort(kubelets)
	args := []string{"-output=" + o.format}
	if kubelets = slices.Compact(kubelets); len(kubelets) > 0 {
		unlock, err := host.Lock(ctx, "cluster-"+o.name, l.ui)
		if err != nil {
			return err
		}
		defer unlock()
		if err := l.kubelets(ctx, o.name, kubelets); err != nil {
			return err
		}
		args = append(args, "-cluster="+o.name)
	}
	if o.junit != "" {
		path, err := filepath.Abs(o.junit)
		if err != nil {
			return fmt.Errorf("find JUnit report %q: %w", o.junit, err)
		}
		args = append(args, "-junit="+path)
	}
	return l.reproductions(ctx, o.name, l.ui.Out(), append(args, ids...)...)
}

// kubelets brings up a cluster with one worker per version of the kubelet.
func (l *lab) kubelets(ctx context.Context, name string, versions []string) error {
	engine, err := host.EnsureEngine(ctx, l.ui)
	if err != nil {
		return err
	}
	if err := engine.Use(); err != nil {
		return err
	}
	controlPlane, err := nodeimage.Ensure(ctx, engine, nodeimage.Options{Kubernetes: nodeimage.DefaultKubernetes}, l.ui)
	if err != nil {
		return err
	}
	var workers []string
	for _, version := range versions {
		image := controlPlane
		if version != controlPlane.Kubelet {
			image, err = nodeimage.Ensure(ctx, engine, nodeimage.Options{Kubernetes: nodeimage.DefaultKubernetes, Kubelet: version}, l.ui)
			if err != nil {
				return err
			}
		}
		workers = append(workers, image.Ref)
	}
	_, err = cluster.Ensure(ctx, cluster.Options{
		Name: name, Config: cluster.ConfigWithWorkers(workers...), Image: controlPlane, Restrictions: engine.Restrictions,
	}, l.ui)
	if err != nil {
		return ui.WithHint(err, "one that was made for other kubelets goes with: lab down --name %s", name)
	}
	return nil
}

// reproductions runs the program that has the reproductions. Its output goes to
// out; name is the cluster with the kubelets.
func (l *lab) reproductions(ctx context.Context, name string, out io.Writer, args ...string) error {
	err := runBeside(ctx, "reproduce", nil, out, args...)
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) && exit.ExitCode() != ui.StatusUsage {
		err = ui.WithHint(fmt.Errorf("reproduce: %w", err), "what was seen is above; \"lab collect --name %s\" gathers the kubelets' logs", name)
	}
	return err
}
