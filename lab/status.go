package main

import (
	"github.com/spf13/cobra"

	"github.com/dra-lab/dra-lab/lab/install"
)

func newStatus(l *lab) *cobra.Command {
	var name, format string
	cmd := &cobra.Command{
		Use:     "status",
		Short:   "Show nodes, devices with health and taints, prepared claims, and the driver",
		Example: `  lab status -o json`,
		Args:    noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkFormat(format, "text", "json"); err != nil {
				return err
			}
			c, err := l.open(cmd.Context(), name)
			if err != nil {
				return err
			}
			status, err := install.GetStatus(cmd.Context(), c)
			if err != nil {
				return err
			}
			if format == "json" {
				return printJSON(l.ui.Out(), status)
			}
			return status.WriteText(l.ui.Out())
		},
	}
	nameFlag(cmd, &name)
	formatFlag(cmd, &format)
	return cmd
}
