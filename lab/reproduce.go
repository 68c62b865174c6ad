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

	"github.com/dra-lab/dra-lab/lab/internal/ui"
)

// reproduceName is the cluster whose workers have different kubelets. It is
// another one than the lab of scenarios: it has no driver.
const reproduceName = "dra-lab-kubelets"

type reproduceOptions struct {
	name, junit, format string
	also                kubeletChoices
}

func newReproduce(l *lab) *cobra.Command {
	cmd := noun(&cobra.Command{
		Use:   "reproduce",
		Short: "Reproduce issues of Kubernetes on real kubelets",
		Long: `Each reproduction runs the same steps on kubelets that have the issue and on kubelets
that do not, at the same time, and says from what it saw whether the issue is there.`,
		Example: `  lab reproduce list
  lab reproduce run 140527
  lab reproduce kubelets`,
	})
	cmd.AddCommand(newReproduceList(l), newReproduceRun(l), newReproduceMatrix(l), newReproduceKubelets(l), newReproducePackages(l))
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
			return l.reproductions(cmd.Context(), "", l.ui.Out(), "list", "-output="+format)
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
		Long: `Runs reproductions, one after the other, each on its kubelets at the same time. The
cluster has a worker per kubelet and is kept; one that lacks a kubelet is made anew with
those that it has and those that are needed. With --kubelet they also run on a kubelet
that is not to have the issues, to try a mend before it is sent upstream.`,
		Example: `  lab reproduce run 140527
  lab reproduce run health-stream --kubelet ./kubernetes`,
		Args: someArguments("ID"),
		RunE: func(cmd *cobra.Command, ids []string) error {
			if err := checkFormat(o.format, "text", "json"); err != nil {
				return err
			}
			return l.reproduce(cmd.Context(), o, ids, false)
		},
	}
	clusterFlag(cmd, &o.name, reproduceName, "`name` of the cluster with the kubelets")
	cmd.Flags().StringVar(&o.junit, "junit", "", "write a JUnit report to this `file`")
	o.also.flags(cmd, "run on this kubelet too: a `version`, or the directory of a Kubernetes checkout; may be repeated")
	formatFlag(cmd, &o.format)
	return cmd
}

func newReproduceMatrix(l *lab) *cobra.Command {
	o := reproduceOptions{format: "markdown"}
	cmd := &cobra.Command{
		Use:   "matrix",
		Short: "Run all reproductions and show the verdicts as Markdown",
		Long: `Runs all reproductions, whatever becomes of each, and shows the verdicts as Markdown. A
kubelet that cannot be had stops those only that need it.`,
		Example: `  lab reproduce matrix --junit verdicts.xml >verdicts.md`,
		Args:    noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return l.reproduce(cmd.Context(), o, nil, true)
		},
	}
	clusterFlag(cmd, &o.name, reproduceName, "`name` of the cluster with the kubelets")
	cmd.Flags().StringVar(&o.junit, "junit", "", "write a JUnit report to this `file`")
	return cmd
}

// compareOptions are for the verbs that show kubelets side by side.
type compareOptions struct {
	name, format string
	kubelets     kubeletChoices
	all          bool
}

func (o *compareOptions) flags(cmd *cobra.Command) {
	o.kubelets.flags(cmd, "compare this kubelet: a `version`, or the directory of a Kubernetes checkout; may be repeated")
	cmd.Flags().StringVarP(&o.format, "output", "o", "text", "output `format`: text, json or markdown")
}

// args are those of the program that compares.
func (o *compareOptions) args(ctx context.Context, verb string) (args []string, chosen []kubelet, err error) {
	if err := checkFormat(o.format, "text", "json", "markdown"); err != nil {
		return nil, nil, err
	}
	if chosen, err = o.kubelets.open(ctx); err != nil {
		return nil, nil, err
	}
	args = []string{verb, "-output=" + o.format}
	for _, k := range chosen {
		args = append(args, k.arg())
	}
	return args, chosen, nil
}

func newReproduceKubelets(l *lab) *cobra.Command {
	var o compareOptions
	cmd := &cobra.Command{
		Use:   "kubelets",
		Short: "Play one scenario on kubelets of several versions and show them side by side",
		Long: `Plays one scenario on each worker of the cluster with the kubelets, on all at the same
time: connections to the driver, the end of its health streams, the driver killed and
replaced, the kubelet restarted, the driver killed for good. The table has a column per
kubelet. Takes four minutes. Without --kubelet it takes those that the cluster has. Fails
if one does not do what is known of its version.`,
		Example: `  lab reproduce kubelets
  lab reproduce kubelets --kubelet v1.35.4 --kubelet v1.37.2 -o markdown`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			args, chosen, err := o.args(cmd.Context(), "kubelets")
			if err != nil {
				return err
			}
			unlock, err := l.bringKubelets(cmd.Context(), o.name, chosen, false)
			if err != nil {
				return err
			}
			defer unlock()
			return l.reproductions(cmd.Context(), o.name, l.ui.Out(), args...)
		},
	}
	clusterFlag(cmd, &o.name, reproduceName, "`name` of the cluster with the kubelets")
	o.flags(cmd)
	return cmd
}

func newReproducePackages(l *lab) *cobra.Command {
	var o compareOptions
	cmd := &cobra.Command{
		Use:   "packages",
		Short: "Measure the DRA plugin managers of several kubelets, without a cluster",
		Long: `Drives the package of the kubelet that keeps the connections to DRA drivers, compiled
from the released source of each version: connections, restart of the driver, 1,000
registrations and deregistrations, an idle connection. Needs Go and its module proxy, and
some minutes per version the first time. Fails if one does not do what is known of its
version.`,
		Example: `  lab reproduce packages --all -o markdown`,
		Args:    noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.all && len(o.kubelets.names) > 0 {
				return wrongUsage(cmd, errors.New("--all and --kubelet exclude each other"))
			}
			args, _, err := o.args(cmd.Context(), "packages")
			if err != nil {
				return err
			}
			if o.all {
				args = append(args, "-all")
			}
			return l.reproductions(cmd.Context(), "", l.ui.Out(), args...)
		},
	}
	o.flags(cmd)
	cmd.Flags().BoolVar(&o.all, "all", false, "all versions that the lab knows, instead of the last two")
	return cmd
}

// reproduction is what the list says about one.
type reproduction struct {
	ID      string   `json:"id"`
	Bad     []string `json:"bad"`
	Good    []string `json:"good"`
	Package bool     `json:"package"`
}

// reproduce brings the kubelets that the reproductions need and runs them. With
// partly, a kubelet that cannot be had is no reason not to run the others.
func (l *lab) reproduce(ctx context.Context, o reproduceOptions, ids []string, partly bool) error {
	also, err := o.also.open(ctx)
	if err != nil {
		return err
	}
	var list bytes.Buffer
	if err := l.reproductions(ctx, "", &list, append([]string{"list", "-output=json"}, ids...)...); err != nil {
		return err
	}
	var chosen []reproduction
	if err := json.Unmarshal(list.Bytes(), &chosen); err != nil {
		return fmt.Errorf("read list of reproductions: %w", err)
	}
	var needed []kubelet
	for _, r := range chosen {
		if r.Package {
			continue
		}
		for _, version := range slices.Concat(r.Bad, r.Good) {
			needed = append(needed, kubelet{version: version})
		}
	}
	args, name := []string{"run", "-output=" + o.format}, ""
	for _, k := range also {
		args = append(args, k.arg())
	}
	if len(needed) > 0 {
		// First what may not compile.
		unlock, err := l.bringKubelets(ctx, o.name, slices.Concat(also, needed), partly)
		if err != nil {
			return err
		}
		defer unlock()
		name = o.name
	}
	if o.junit != "" {
		path, err := filepath.Abs(o.junit)
		if err != nil {
			return fmt.Errorf("find JUnit report %q: %w", o.junit, err)
		}
		args = append(args, "-junit="+path)
	}
	return l.reproductions(ctx, name, l.ui.Out(), append(args, ids...)...)
}

// reproductions runs the program that has the reproductions. Its output goes to
// out; name is the cluster that it uses, "" if it uses none.
func (l *lab) reproductions(ctx context.Context, name string, out io.Writer, args ...string) error {
	if name != "" {
		args = slices.Insert(args, 1, "-cluster="+name)
	}
	err := runBeside(ctx, "reproduce", nil, out, args...)
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) && exit.ExitCode() != ui.StatusUsage {
		err = fmt.Errorf("reproduce: %w", err)
		if name == "" {
			return ui.WithHint(err, "what was seen is above")
		}
		return ui.WithHint(err, "what was seen is above; \"lab collect --name %s\" gathers the kubelets' logs", name)
	}
	return err
}
