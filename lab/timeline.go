package main

import (
	"fmt"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/dra-lab/dra-lab/lab/internal/ui"
	"github.com/dra-lab/dra-lab/lab/timeline"
	"github.com/dra-lab/dra-lab/lab/timeline/picture"
)

type timelineOptions struct {
	format, against string
	last            bool
}

func newTimeline(l *lab) *cobra.Command {
	var o timelineOptions
	cmd := &cobra.Command{
		Use:   "timeline [POD | FILE.json]",
		Short: "Show what happened in a scenario, in order, or draw it",
		Long: `Shows what was recorded while a scenario ran: all of the last one, what was about one
Pod in the newest that had it, or a timeline that was saved with -o json. With -o html
it is a picture in one file: a lane for each component, an arrow for each event.
--against draws a second run beside it and marks what differs.`,
		Example: `  lab timeline --last
  lab timeline --last -o html >run.html
  lab timeline train-1-jb2vj
  lab timeline --last -o json >before.json
  lab timeline --last --against before.json -o html >difference.html`,
		Args: oneOptionalArgument,
		RunE: func(_ *cobra.Command, args []string) error {
			return l.timeline(o, strings.Join(args, ""))
		},
	}
	cmd.Flags().BoolVar(&o.last, "last", false, "the scenario that ran last")
	cmd.Flags().StringVar(&o.against, "against", "", "draw the timeline in this `file` beside it, first; -o html only")
	cmd.Flags().StringVarP(&o.format, "output", "o", "text", "output `format`: text, json or html")
	return cmd
}

func (l *lab) timeline(o timelineOptions, name string) error {
	if err := checkFormat(o.format, "text", "json", "html"); err != nil {
		return err
	}
	if o.last == (name != "") {
		return ui.UsageError(ui.WithHint(fmt.Errorf("which run to show: want --last, a Pod or a file"), "lab timeline --last"))
	}
	if o.against != "" && o.format != "html" {
		return ui.UsageError(ui.WithHint(fmt.Errorf("--against is for a picture, not for %s", o.format), "add -o html"))
	}
	recorded, err := recordedRun(name)
	if err != nil {
		return err
	}
	switch o.format {
	case "json":
		return printJSON(l.ui.Out(), recorded)
	case "html":
		runs := []timeline.Timeline{recorded}
		if o.against != "" {
			other, err := timeline.Load(o.against)
			if err != nil {
				return ui.WithHint(err, "lab timeline --last -o json >FILE.json, after the run that came before")
			}
			runs = []timeline.Timeline{other, recorded}
		}
		return picture.Write(l.ui.Out(), runs...)
	}
	return recorded.WriteText(l.ui.Out())
}

// recordedRun is the last one for an empty name, the one in a file, or what is
// known of a Pod.
func recordedRun(name string) (timeline.Timeline, error) {
	if filepath.Ext(name) == ".json" {
		return timeline.Load(name)
	}
	last, err := timeline.Kept(timeline.Last)
	if err != nil {
		return timeline.Timeline{}, err
	}
	newest, err := timeline.Load(last)
	if err != nil {
		return timeline.Timeline{}, ui.WithHint(err, "lab run training")
	}
	if name == "" {
		return newest, nil
	}
	runs, err := timeline.AllKept()
	if err != nil {
		return timeline.Timeline{}, err
	}
	for _, run := range runs {
		if part := run.Of(name); len(part.Events) > 0 {
			return part, nil
		}
	}
	const shown = 10
	pods := newest.Pods()
	if len(pods) > shown {
		pods = append(pods[:shown], "...")
	}
	return timeline.Timeline{}, ui.WithHint(fmt.Errorf("find Pod %q in the recorded runs: it was in none", name),
		"the last run had %s", strings.Join(pods, ", "))
}
