package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/dra-lab/dra-lab/lab/internal/ui"
)

func newCollect(l *lab) *cobra.Command {
	var name string
	cmd := &cobra.Command{
		Use:   "collect [DIR]",
		Short: "Collect what helps to find a fault: node journals, Pod logs, driver state",
		Long: `Writes node journals, Pod logs, API objects and the driver's state into DIR (default
"diagnostics"). What cannot be had is noted there; the rest is collected all the same.`,
		Example: `  lab collect /tmp/lab-diagnostics`,
		Args:    oneOptionalArgument,
		RunE: func(cmd *cobra.Command, args []string) error {
			dir := "diagnostics"
			if len(args) == 1 {
				dir = args[0]
			}
			c, err := l.open(cmd.Context(), name)
			if err != nil {
				return err
			}
			if err := c.CollectLogs(cmd.Context(), dir); err != nil {
				hint := "all else is in " + dir
				if _, statErr := os.Stat(dir); statErr != nil {
					hint = "choose another directory: lab collect DIR"
				}
				return ui.WithHint(err, "%s", hint)
			}
			fmt.Fprintln(l.ui.Out(), dir)
			return nil
		},
	}
	nameFlag(cmd, &name)
	return cmd
}
