package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/dra-lab/dra-lab/lab/fault"
	"github.com/dra-lab/dra-lab/lab/install"
)

// statusWithFaults is the JSON of lab status.
type statusWithFaults struct {
	install.Status
	Faults []fault.Active `json:"faults"` // as lab fault list -o json has them
}

func newStatus(l *lab) *cobra.Command {
	var name, format string
	cmd := &cobra.Command{
		Use:     "status",
		Short:   "Show nodes, devices with health and taints, prepared claims, the driver, and active faults",
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
			// A node that cannot be asked does not hide the rest.
			active, failed := fault.List(cmd.Context(), c)
			if format == "json" {
				return errors.Join(failed, printJSON(l.ui.Out(), statusWithFaults{status, append([]fault.Active{}, active...)}))
			}
			err = status.WriteText(l.ui.Out())
			if len(active) > 0 {
				_, printed := fmt.Fprintln(l.ui.Out())
				err = errors.Join(err, printed, fault.WriteText(l.ui.Out(), active, time.Now()))
			}
			return errors.Join(failed, err)
		},
	}
	nameFlag(cmd, &name)
	formatFlag(cmd, &format)
	return cmd
}
