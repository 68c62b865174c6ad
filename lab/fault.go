package main

import (
	"errors"
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/dra-lab/dra-lab/driver/api"
	"github.com/dra-lab/dra-lab/lab/fault"
)

func newFault(l *lab) *cobra.Command {
	cmd := noun(&cobra.Command{
		Use:   "fault",
		Short: "Break GPUs, driver and nodes of a running lab, mend them, list what is broken",
		Example: `  lab fault inject xid --code 79 --node dra-lab-worker --device gpu-0
  lab fault inject prepare-fails --times 2 --node dra-lab-worker
  lab fault inject network-cut --for 20s --node dra-lab-worker
  lab fault list
  lab fault clear --node dra-lab-worker`,
	})
	cmd.AddCommand(newFaultInject(l), newFaultClear(l), newFaultList(l))
	return cmd
}

func newFaultInject(l *lab) *cobra.Command {
	var name string
	var target fault.Target
	var params fault.Params
	var kinds strings.Builder
	table := tabwriter.NewWriter(&kinds, 0, 0, 2, ' ', 0)
	heads := map[api.FaultTarget]string{
		api.TargetGPU:    "Of a GPU (--device), which breaks as hardware does; the driver is not told:",
		api.TargetDriver: "\nOf the driver on a node, which looks for them because its GPUs are simulated:",
		api.TargetNode:   "\nOf a node:",
	}
	for _, k := range fault.Kinds() {
		if head := heads[k.Target]; head != "" {
			fmt.Fprintln(table, head)
			delete(heads, k.Target)
		}
		code := ""
		if k.Code != "" {
			code = "  --code is " + k.Code
			if k.Default != 0 {
				code += fmt.Sprintf(", %d if absent", k.Default)
			}
		}
		fmt.Fprintf(table, "  %s\t%s%s\n", k.Name, k.Summary, code)
	}
	table.Flush() //nolint:errcheck // a strings.Builder takes everything
	cmd := &cobra.Command{
		Use:   "inject KIND",
		Short: "Break a GPU, the driver or a node",
		Long:  "Breaks something of a running lab. Nothing is rebuilt, and lab fault clear undoes it.\n\n" + kinds.String(),
		Example: `  lab fault inject xid --code 79 --node dra-lab-worker --device gpu-0
  lab fault inject temperature --flap 2s --for 20s --node dra-lab-worker --device gpu-0
  lab fault inject driver-kill --step prepare/bound --node dra-lab-worker`,
		Args: oneArgument("KIND"),
		RunE: func(cmd *cobra.Command, args []string) error {
			f, err := fault.New(args[0], params)
			if err != nil {
				return wrongUsage(cmd, err)
			}
			c, err := l.open(cmd.Context(), name)
			if err != nil {
				return err
			}
			if err := fault.Inject(cmd.Context(), c, target, f); err != nil {
				return err
			}
			fmt.Fprintln(l.ui.Out(), f.ID)
			return nil
		},
	}
	nameFlag(cmd, &name)
	cmd.Flags().StringVar(&target.Node, "node", "", "`node` to break, or with the GPU or driver to break; needed where there are several")
	cmd.Flags().StringVar(&target.Device, "device", "", "`device`, such as gpu-0; needed where the node has several")
	cmd.Flags().IntVar(&params.Code, "code", 0, "the kind's code, such as an XID")
	cmd.Flags().StringVar(&params.Message, "message", "", "why, for whoever lists faults")
	cmd.Flags().DurationVar(&params.For, "for", 0, "mend it after this time; 0: when cleared")
	cmd.Flags().DurationVar(&params.Flap, "flap", 0, "have it come and go, there for this time and away for this time; 0: there all the time")
	cmd.Flags().IntVar(&params.Times, "times", 0, "how `often` the driver does it; 0: always")
	cmd.Flags().StringVar(&params.Step, "step", "", "the `step` after which driver-kill strikes: "+strings.Join(api.KillSteps(), ", "))
	return cmd
}

func newFaultClear(l *lab) *cobra.Command {
	var name string
	var filter fault.Filter
	cmd := &cobra.Command{
		Use:   "clear",
		Short: "Mend what was broken, all of it without flags",
		Example: `  lab fault clear
  lab fault clear --node dra-lab-worker --device gpu-0`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := l.open(cmd.Context(), name)
			if err != nil {
				return err
			}
			// Nodes that do not answer don't hide what was mended on the others.
			cleared, err := fault.Clear(cmd.Context(), c, filter)
			switch {
			case len(cleared) > 0:
				err = errors.Join(err, fault.WriteText(l.ui.Out(), cleared, time.Now()))
			case err == nil:
				l.ui.Info("there was nothing to mend")
			}
			return err
		},
	}
	nameFlag(cmd, &name)
	cmd.Flags().StringVar(&filter.Node, "node", "", "only on this `node`")
	cmd.Flags().StringVar(&filter.Device, "device", "", "only on this `device`, such as gpu-0, or driver or node")
	cmd.Flags().StringVar(&filter.ID, "id", "", "only the fault with this `id`, as list shows it")
	return cmd
}

func newFaultList(l *lab) *cobra.Command {
	var name, format string
	cmd := &cobra.Command{
		Use:     "list",
		Short:   "List what is broken, since when and until when",
		Example: `  lab fault list -o json`,
		Args:    noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkFormat(format, "text", "json"); err != nil {
				return err
			}
			c, err := l.open(cmd.Context(), name)
			if err != nil {
				return err
			}
			active, err := fault.List(cmd.Context(), c)
			switch {
			case len(active) == 0 && err != nil:
			case format == "json":
				err = errors.Join(err, printJSON(l.ui.Out(), append([]fault.Active{}, active...)))
			default:
				err = errors.Join(err, fault.WriteText(l.ui.Out(), active, time.Now()))
			}
			return err
		},
	}
	nameFlag(cmd, &name)
	formatFlag(cmd, &format)
	return cmd
}
