package main

import (
	"bytes"
	"io"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/dra-lab/dra-lab/lab/internal/ui"
)

// Every command has a help page that says what it is for, on stdout, with
// examples whose flags and arguments it takes.
func TestHelpPages(t *testing.T) {
	seen := 0
	var walk func(cmd *cobra.Command)
	walk = func(cmd *cobra.Command) {
		if cmd.Hidden || (cmd.HasParent() && cmd.Parent().Name() == "completion") {
			return // hidden, or cobra's own text
		}
		seen++
		t.Run(cmd.CommandPath(), func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			args := append(strings.Fields(cmd.CommandPath())[1:], "--help")
			if status := run(args, &stdout, &stderr); status != 0 || stderr.Len() > 0 {
				t.Errorf("status %d, stderr %q", status, stderr.String())
			}
			if cmd.Short == "" || !strings.Contains(stdout.String(), "Usage:\n  "+cmd.CommandPath()) {
				t.Errorf("the page is %q", stdout.String())
			}
			if !strings.Contains(stdout.String(), "Examples:\n") {
				t.Error("the page has no example")
			}
			for line := range strings.Lines(cmd.Example) {
				example := regexp.MustCompile(`\s([#|]|[<>][^(]).*`).ReplaceAllString(line, "") // the shell's
				start := strings.Index(example, "lab ")
				if start < 0 {
					t.Errorf("the example %q does not run the lab", line)
					continue
				}
				words := strings.Fields(strings.TrimRight(example[start+len("lab "):], ")\"\n"))
				parsed, err := parse(words)
				if err == nil {
					err = parsed.ValidateArgs(parsed.Flags().Args())
				}
				if err != nil {
					t.Errorf("the example %q is wrong: %v", line, err)
				}
			}
		})
		for _, child := range cmd.Commands() {
			walk(child)
		}
	}
	walk(newRoot(&lab{ui: ui.New(io.Discard, io.Discard, 0)}))
	if seen < 15 {
		t.Errorf("only %d commands", seen)
	}
}
