package main

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/dra-lab/dra-lab/lab/internal/ui"
)

// noArguments refuses arguments of a verb that takes none.
func noArguments(cmd *cobra.Command, args []string) error {
	return atMost(cmd, args, 0)
}

// oneArgument wants exactly one, called what in messages.
func oneArgument(what string) cobra.PositionalArgs {
	return cobra.MatchAll(someArguments(what), oneOptionalArgument)
}

// someArguments wants one at least, called what in messages.
func someArguments(what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return wrongUsage(cmd, fmt.Errorf("%s: %s is missing", cmd.CommandPath(), what))
		}
		return nil
	}
}

// oneOptionalArgument takes one or none.
func oneOptionalArgument(cmd *cobra.Command, args []string) error {
	return atMost(cmd, args, 1)
}

func atMost(cmd *cobra.Command, args []string, most int) error {
	if len(args) <= most {
		return nil
	}
	return wrongUsage(cmd, fmt.Errorf("%s: unexpected argument %q", cmd.CommandPath(), args[most]))
}

// wrongUsage makes err a usage error whose hint, if it has none of its own, is
// the help page of cmd.
func wrongUsage(cmd *cobra.Command, err error) error {
	if ui.Hint(err) == "" {
		err = ui.WithHint(err, "%s --help", cmd.CommandPath())
	}
	return ui.UsageError(err)
}

// wrongFlag says what is wrong with a flag, without the name of the function of
// Go's library that found out.
func wrongFlag(cmd *cobra.Command, err error) error {
	if number := (*strconv.NumError)(nil); errors.As(err, &number) {
		err = fmt.Errorf("%sit is not a whole number", strings.TrimSuffix(err.Error(), number.Error()))
	}
	return wrongUsage(cmd, err)
}

// noun makes cmd a command that only has verbs below it: alone it shows its help
// page. It looks at its arguments before its flags, because the flags of a verb
// that is misspelt are none of its own.
func noun(cmd *cobra.Command) *cobra.Command {
	cmd.DisableFlagParsing = true
	cmd.Args = cobra.ArbitraryArgs
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) == 0 || args[0] == "--help" || args[0] == "-h":
			return cmd.Help()
		case strings.HasPrefix(args[0], "-"):
			return wrongUsage(cmd, fmt.Errorf("unknown flag: %s", args[0]))
		}
		return unknownCommand(cmd, args[0])
	}
	return cmd
}

func unknownCommand(cmd *cobra.Command, name string) error {
	err := fmt.Errorf("unknown command %q for %q", name, cmd.CommandPath())
	cmd.SuggestionsMinimumDistance = 2
	if near := cmd.SuggestionsFor(name); len(near) > 0 {
		err = ui.WithHint(err, "did you mean %q?", cmd.CommandPath()+" "+near[0])
	}
	return wrongUsage(cmd, err)
}

// newHelp is cobra's help command, except that it fails for a page that there is
// not.
func newHelp() *cobra.Command {
	return &cobra.Command{
		Use:     "help [COMMAND]...",
		Short:   "Show the help page of a command",
		Example: `  lab help fault inject`,
		RunE: func(cmd *cobra.Command, args []string) error {
			page, rest, err := cmd.Root().Find(args)
			if err != nil {
				return wrongUsage(cmd.Root(), err)
			}
			if len(rest) > 0 {
				return unknownCommand(page, rest[0])
			}
			page.InitDefaultHelpFlag() // as it is shown in the page
			return page.Help()
		},
	}
}

// addCompletion adds cobra's command that prints completion scripts.
func addCompletion(root *cobra.Command) {
	root.InitDefaultCompletionCmd()
	for _, cmd := range root.Commands() {
		if cmd.Name() == "completion" {
			noun(cmd).Example = `  source <(lab completion bash)`
		}
	}
}

// checked is a flag whose value is checked while the command line is read, so
// that a wrong one stops the verb before it does anything.
type checked struct {
	value *string
	check func(string) error
}

func (c checked) String() string {
	if c.value == nil { // the zero value, which pflag compares with
		return ""
	}
	return *c.value
}

func (c checked) Type() string { return "string" }

func (c checked) Set(value string) error {
	if err := c.check(value); err != nil {
		return err
	}
	*c.value = value
	return nil
}
