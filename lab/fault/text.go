package fault

import (
	"fmt"
	"io"
	"strconv"
	"text/tabwriter"
	"time"
)

// WriteText writes list as a table with the age of each fault.
func WriteText(w io.Writer, list []Active, now time.Time) error {
	if len(list) == 0 {
		_, err := fmt.Fprintln(w, "no faults")
		return err
	}
	table := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	fmt.Fprintln(table, "NODE\tDEVICE\tKIND\tCODE\tAGE\tENDS\tID\tMESSAGE")
	for _, a := range list {
		code, ends, message := "-", "when cleared", "-"
		if a.Code != 0 {
			code = strconv.Itoa(a.Code)
		}
		if a.Until != nil {
			ends = "in " + round(a.Until.Sub(now))
		}
		if a.Message != "" {
			message = strconv.Quote(a.Message)
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n",
			a.Node, a.Device, a.Kind, code, round(a.Age(now)), ends, a.ID, message)
	}
	return table.Flush()
}

// round keeps what a person reads of a duration.
func round(d time.Duration) string {
	if d < 0 {
		d = 0
	}
	if d < time.Minute {
		return d.Round(100 * time.Millisecond).String()
	}
	return d.Round(time.Second).String()
}
