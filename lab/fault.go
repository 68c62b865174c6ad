package main

import (
	"errors"
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/dra-lab/dra-lab/lab/fault"
)

func newFault(l *lab) *cobra.Command {
	cmd := noun(&cobra.Command{
		Use:   "fault",
		Short: "Break simulated GPUs of a running lab, mend them, list what is broken",
		Example: `  lab fault inject xid --code 79 --node dra-lab-worker --device gpu-0
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
	for _, k := range fault.Kinds() {
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
		Use:     "inject KIND",
		Short:   "Break a GPU",
		Long:    "Breaks a simulated GPU from outside, as hardware breaks: the driver is not told,\nit finds out. Kinds:\n\n" + kinds.String(),
		Example: `  lab fault inject xid --code 79 --node dra-lab-worker --device gpu-0`,
		Args:    oneArgument("KIND"),
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
	cmd.Flags().StringVar(&target.Node, "node", "", "`node` of the GPU; needed where several nodes have GPUs")
	cmd.Flags().StringVar(&target.Device, "device", "", "`device`, such as gpu-0; needed where the node has several")
	cmd.Flags().IntVar(&params.Code, "code", 0, "the kind's code, such as an XID")
	cmd.Flags().StringVar(&params.Message, "message", "", "why, for whoever lists faults")
	cmd.Flags().DurationVar(&params.For, "for", 0, "mend it after this time; 0: when cleared")
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
	cmd.Flags().StringVar(&filter.Device, "device", "", "only on this `device`")
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
