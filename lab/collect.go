package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/dra-lab/dra-lab/lab/cluster"
	"github.com/dra-lab/dra-lab/lab/internal/ui"
)

func newCollect(l *lab) *cobra.Command {
	var name string
	cmd := &cobra.Command{
		Use:   "collect [DIR]",
		Short: "Collect what helps to find a fault: node journals, Pod logs, driver state",
		Long: `Writes node journals, Pod logs, API objects and the driver's state into DIR (default
"diagnostics"). What cannot be had is noted there; the rest is collected all the same.
Of a cluster that did not come up it takes what is left.`,
		Example: `  lab collect /tmp/lab-diagnostics`,
		Args:    oneOptionalArgument,
		RunE: func(cmd *cobra.Command, args []string) error {
			dir := "diagnostics"
			if len(args) == 1 {
				dir = args[0]
			}
			if _, err := useEngine(cmd.Context()); err != nil {
				return err
			}
			err := cluster.Collect(cmd.Context(), name, dir)
			if err != nil && ui.Hint(err) == "" {
				hint := "all else is in " + dir
				if _, statErr := os.Stat(dir); statErr != nil {
					hint = "choose another directory: lab collect DIR"
				}
				err = ui.WithHint(err, "%s", hint)
			}
			if err != nil {
				return err
			}
			fmt.Fprintln(l.ui.Out(), dir)
			return nil
		},
	}
	nameFlag(cmd, &name)
	return cmd
}
