package source

import (
	"fmt"
	"io"
	"strings"
)

// Write writes gates as the table that package gates embeds.
func Write(w io.Writer, kubernetes string, gates []Gate) error {
	var b strings.Builder
	fmt.Fprintf(&b, "# The feature gates of Kubernetes %s, written by go generate from its source.\n", kubernetes)
	b.WriteString("# name stage default [locked] [requires=NAME,NAME]\n")
	for _, g := range gates {
		fmt.Fprintf(&b, "%s %s %s", g.Name, g.Stage, onOff(g.Default))
		if g.Locked {
			b.WriteString(" locked")
		}
		if len(g.Requires) > 0 {
			b.WriteString(" requires=" + strings.Join(g.Requires, ","))
		}
		b.WriteByte('\n')
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func onOff(on bool) string {
	if on {
		return "on"
	}
	return "off"
}
