package main

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/dra-lab/dra-lab/lab/internal/ui"
)

// formatFlag adds -o, which every verb with a machine-readable result has.
func formatFlag(cmd *cobra.Command, format *string) {
	cmd.Flags().StringVarP(format, "output", "o", "text", "output `format`: text or json")
}

func checkFormat(format string, known ...string) error {
	if slices.Contains(known, format) {
		return nil
	}
	return ui.UsageError(ui.WithHint(fmt.Errorf("unknown output format %q", format), "one of %s", strings.Join(known, ", ")))
}

func printJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	if err := enc.Encode(v); err != nil {
		return fmt.Errorf("print result: %w", err)
	}
	return nil
}
