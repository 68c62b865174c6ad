package main

import (
	"errors"

	"github.com/spf13/cobra"

	"github.com/dra-lab/dra-lab/lab/host"
	"github.com/dra-lab/dra-lab/lab/internal/ui"
)

func newDoctor(l *lab) *cobra.Command {
	var format, driverRoot string
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Say what this machine has and lacks, and the command that mends it",
		Long: `Looks at this machine without changing anything. The exit status is 1 when something is
missing that "lab up" cannot do without and cannot install by itself.`,
		Example: `  lab doctor
  lab doctor -o json
  lab doctor --driver-root /run/nvidia/driver`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkFormat(format, "text", "json"); err != nil {
				return err
			}
			if err := checkDriverRoot(cmd, driverRoot); err != nil {
				return err
			}
			report := host.NewReport(host.Probe(cmd.Context(), driverRoot))
			write := report.WriteText
			if format == "json" {
				write = report.WriteJSON
			}
			err := write(l.ui.Out())
			if err == nil && report.Failed() {
				err = ui.WithHint(errors.New("this machine cannot run the lab yet"), "the cures are listed above")
			}
			return err
		},
	}
	formatFlag(cmd, &format)
	driverRootFlag(cmd, &driverRoot)
	return cmd
}
