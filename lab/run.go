package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/dra-lab/dra-lab/lab/host"
	"github.com/dra-lab/dra-lab/lab/internal/ui"
)

type runOptions struct {
	name, kubeconfig, junit, format string
	short, strict                   bool
}

func newRun(l *lab) *cobra.Command {
	var o runOptions
	cmd := &cobra.Command{
		Use:   "run [SCENARIO...]",
		Short: "Run scenarios, all of them without names",
		Long: `Runs scenarios on the lab. Each has a namespace of its own and leaves the lab as it
found it, also when it fails. "lab scenarios" lists them.`,
		Example: `  lab run training
  lab run --short --strict --junit report.xml`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkFormat(o.format, "text", "json"); err != nil {
				return err
			}
			return l.run(cmd.Context(), o, args)
		},
	}
	nameFlag(cmd, &o.name)
	cmd.Flags().StringVar(&o.kubeconfig, "kubeconfig", "", "run against the cluster of this kubeconfig `file` instead of a lab; what needs the nodes of a lab is skipped")
	cmd.Flags().StringVar(&o.junit, "junit", "", "write a JUnit report to this `file`")
	cmd.Flags().BoolVar(&o.short, "short", false, "only the short ones")
	cmd.Flags().BoolVar(&o.strict, "strict", false, "fail, too, when a measured time is over its limit, as on a quiet machine none is")
	formatFlag(cmd, &o.format)
	return cmd
}

func newScenarios(l *lab) *cobra.Command {
	var format string
	cmd := &cobra.Command{
		Use:     "scenarios",
		Short:   "List the scenarios",
		Example: `  lab scenarios -o json`,
		Args:    noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkFormat(format, "text", "json"); err != nil {
				return err
			}
			return l.scenarios(cmd.Context(), nil, "-lab.list", "-lab.output="+format)
		},
	}
	formatFlag(cmd, &format)
	return cmd
}

func (l *lab) run(ctx context.Context, o runOptions, names []string) error {
	var env []string
	if o.kubeconfig != "" {
		if _, err := os.Stat(o.kubeconfig); err != nil {
			return ui.UsageError(ui.WithHint(fmt.Errorf("read kubeconfig: %w", err), "leave --kubeconfig out to run on a lab"))
		}
		env = append(env, "KUBECONFIG="+o.kubeconfig, "DRA_LAB_CLUSTER=")
	} else {
		c, err := l.open(ctx, o.name)
		if err != nil {
			return err
		}
		// Scenarios break and restart things: two runs on one lab would find each
		// other's faults.
		unlock, err := host.Lock(ctx, "run-"+c.Name(), l.ui)
		if err != nil {
			return err
		}
		defer unlock()
		env = append(env, "KUBECONFIG="+c.Kubeconfig(), "DRA_LAB_CLUSTER="+c.Name())
	}
	if !o.strict {
		env = append(env, "DRA_LAB_LIMITS=report")
	}
	args := []string{"-lab.output=" + o.format}
	if o.short {
		args = append(args, "-test.short")
	}
	if o.junit != "" {
		path, err := filepath.Abs(o.junit)
		if err != nil {
			return fmt.Errorf("find JUnit report %q: %w", o.junit, err)
		}
		args = append(args, "-lab.junit="+path)
	}
	err := l.scenarios(ctx, env, append(args, names...)...)
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) && exit.ExitCode() != ui.StatusUsage {
		hint := "what failed is above; \"lab timeline --last\" shows what happened"
		if o.kubeconfig == "" {
			hint += fmt.Sprintf(", \"lab collect --name %s\" gathers logs", o.name)
		}
		err = ui.WithHint(fmt.Errorf("run scenarios: %w", err), "%s", hint)
	}
	return err
}

// scenarios runs the test binary that has the scenarios: it was compiled with
// them, so a machine that runs it needs no Go. Its output is the result.
func (l *lab) scenarios(ctx context.Context, env []string, args ...string) error {
	return runBeside(ctx, "scenarios.test", env, l.ui.Out(), args...)
}
