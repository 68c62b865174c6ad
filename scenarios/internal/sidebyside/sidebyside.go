// Package sidebyside writes tables with a column per version, as text for people
// or as Markdown.
package sidebyside

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// Table is a head and rows of as many cells. The first column says what the
// others are about.
type Table struct {
	Head []string
	Rows [][]string
}

// WriteText writes the table with aligned columns.
func (t Table) WriteText(w io.Writer) error {
	aligned := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	for _, row := range append([][]string{t.Head}, t.Rows...) {
		if _, err := fmt.Fprintln(aligned, strings.TrimRight(strings.Join(row, "\t"), "\t ")); err != nil {
			return err
		}
	}
	return aligned.Flush()
}

// WriteMarkdown writes the table as Markdown.
func (t Table) WriteMarkdown(w io.Writer) error {
	rule := make([]string, len(t.Head))
	for i := range rule {
		rule[i] = "---"
	}
	for _, row := range append([][]string{t.Head, rule}, t.Rows...) {
		cells := make([]string, len(row))
		for i, cell := range row {
			cells[i] = strings.ReplaceAll(strings.TrimSpace(cell), "|", `\|`)
			if strings.HasPrefix(cell, " ") {
				cells[i] = "· " + cells[i] // Markdown does not indent cells
			}
		}
		if _, err := fmt.Fprintf(w, "| %s |\n", strings.Join(cells, " | ")); err != nil {
			return err
		}
	}
	return nil
}
