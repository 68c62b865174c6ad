package fault

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/dra-lab/dra-lab/driver/api"
)

// WriteText writes list as a table with the age of each fault.
func WriteText(w io.Writer, list []Active, now time.Time) error {
	if len(list) == 0 {
		_, err := fmt.Fprintln(w, "no faults")
		return err
	}
	table := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	fmt.Fprintln(table, "NODE\tDEVICE\tKIND\tCODE\tHOW\tAGE\tENDS\tID\tMESSAGE")
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
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n",
			a.Node, a.Device, a.Kind, code, how(a.Fault), round(a.Age(now)), ends, a.ID, message)
	}
	return table.Flush()
}

// how says what a fault does other than being there.
func how(f api.Fault) string {
	var words []string
	if f.Step != "" {
		words = append(words, "after "+f.Step)
	}
	if f.Times > 0 {
		words = append(words, strconv.Itoa(f.Times)+" ×")
	}
	if f.Flap > 0 {
		words = append(words, fmt.Sprintf("every other %s", f.Flap))
	}
	if len(words) == 0 {
		return "-"
	}
	return strings.Join(words, ", ")
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
