package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/dra-lab/dra-lab/lab/internal/ui"
	"github.com/dra-lab/dra-lab/lab/timeline"
)

func newTimeline(l *lab) *cobra.Command {
	var format string
	var last bool
	cmd := &cobra.Command{
		Use:   "timeline --last",
		Short: "Show what happened in the last scenario, in order",
		Example: `  lab timeline --last
  lab timeline --last -o json`,
		Args: noArguments,
		RunE: func(*cobra.Command, []string) error {
			if err := checkFormat(format, "text", "json"); err != nil {
				return err
			}
			if !last {
				return ui.UsageError(ui.WithHint(fmt.Errorf("which run to show is missing"), "lab timeline --last"))
			}
			path, err := timeline.Kept(timeline.Last)
			if err != nil {
				return err
			}
			recorded, err := timeline.Load(path)
			if err != nil {
				return ui.WithHint(err, "lab run training")
			}
			if format == "json" {
				return printJSON(l.ui.Out(), recorded)
			}
			return recorded.WriteText(l.ui.Out())
		},
	}
	cmd.Flags().BoolVar(&last, "last", false, "the scenario that ran last")
	formatFlag(cmd, &format)
	return cmd
}
