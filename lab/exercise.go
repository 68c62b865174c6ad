package main

import (
	"context"
	"errors"
	"os/exec"

	"github.com/spf13/cobra"

	"github.com/dra-lab/dra-lab/lab/internal/ui"
)

type exerciseOptions struct {
	name, dir, format string
	apply             bool
}

func newExercise(l *lab) *cobra.Command {
	cmd := noun(&cobra.Command{
		Use:   "exercise",
		Short: "Learn DRA by exercises that say what is still wrong",
		Long: `Exercises to learn DRA by doing, in an order for somebody who is new to it. Each has a
text of a page, starts in a namespace of its own, and is checked against what is really
in the cluster. Without a number a verb is about the exercise that was started last.`,
		Example: `  lab exercise list
  lab exercise start 1
  lab exercise check
  lab exercise hint`,
	})
	cmd.AddCommand(newExerciseList(l))
	for _, v := range []struct{ verb, short string }{
		{"start", "Start an exercise: its text, its namespace, its files"},
		{"check", "Say what holds and what does not yet"},
		{"hint", "Show the next hint"},
		{"solution", "Show a solution"},
		{"reset", "Begin the exercise anew"},
		{"status", "Show the progress on this cluster"},
	} {
		cmd.AddCommand(newExerciseVerb(l, v.verb, v.short))
	}
	return cmd
}

func newExerciseList(l *lab) *cobra.Command {
	var format string
	cmd := &cobra.Command{
		Use:     "list",
		Short:   "List the exercises",
		Example: `  lab exercise list -o json`,
		Args:    noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkFormat(format, "text", "json"); err != nil {
				return err
			}
			return runBeside(cmd.Context(), "exercise", nil, l.ui.Out(), "list", "-output="+format)
		},
	}
	formatFlag(cmd, &format)
	return cmd
}

func newExerciseVerb(l *lab, verb, short string) *cobra.Command {
	var o exerciseOptions
	use, example, args := verb+" [NUMBER]", "  lab exercise "+verb+" 1", oneOptionalArgument
	if verb == "status" {
		use, example, args = verb, "  lab exercise status", noArguments
	}
	cmd := &cobra.Command{
		Use: use, Short: short, Example: example, Args: args,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkFormat(o.format, "text", "json"); err != nil {
				return err
			}
			return l.exercise(cmd.Context(), o, verb, args)
		},
	}
	nameFlag(cmd, &o.name)
	o.format = "text"
	switch verb {
	case "start", "reset":
		cmd.Flags().StringVar(&o.dir, "dir", "exercises", "`folder` for the exercise's files")
	case "solution":
		cmd.Flags().BoolVar(&o.apply, "apply", false, "apply it, too, in place of what the exercise's namespace has")
	case "check", "status":
		formatFlag(cmd, &o.format)
	}
	return cmd
}

func (l *lab) exercise(ctx context.Context, o exerciseOptions, verb string, names []string) error {
	c, err := l.open(ctx, o.name)
	if err != nil {
		return err
	}
	args := []string{verb, "-output=" + o.format}
	if o.dir != "" {
		args = append(args, "-dir="+o.dir)
	}
	if o.apply {
		args = append(args, "-apply")
	}
	err = runBeside(ctx, "exercise", []string{"KUBECONFIG=" + c.Kubeconfig()}, l.ui.Out(), append(args, names...)...)
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		return ui.Told(err, exit.ExitCode()) // what does not hold, or why it could not be checked
	}
	return err
}
