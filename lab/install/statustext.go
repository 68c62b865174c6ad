package install

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/dra-lab/dra-lab/driver/api"
)

// WriteText writes the state as tables for people.
func (s Status) WriteText(w io.Writer) error {
	if _, err := fmt.Fprintf(w, "cluster %s, Kubernetes %s, driver %s: %d of %d ready, controller: %d of %d ready, %s\n\n",
		s.Cluster, s.Kubernetes, s.Driver.Name, s.Driver.Ready, s.Driver.Desired,
		s.Controller.Ready, s.Controller.Desired, leading(s.Controller.Leader)); err != nil {
		return err
	}
	// A tabwriter keeps its first error for Flush.
	table := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	fmt.Fprintln(table, "NODE\tKUBELET\tREADY\tDEVICES\tCLAIMS")
	devices, claims := 0, 0
	for _, n := range s.Nodes {
		fmt.Fprintf(table, "%s\t%s\t%s\t%d\t%d\n", n.Name, n.Kubelet, yes(n.Ready), len(n.Devices), len(n.Claims))
		devices += len(n.Devices)
		claims += len(n.Claims)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	if devices > 0 {
		fmt.Fprintln(table, "\nNODE\tDEVICE\tPRODUCT\tUUID\tHEALTH\tTAINTS")
		for _, n := range s.Nodes {
			for _, d := range n.Devices {
				health := d.Health
				if d.Message != "" && d.Health != api.HealthHealthy {
					health += " (" + d.Message + ")"
				}
				fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\n", n.Name, d.Name, d.Product, d.UUID, health, list(d.Taints))
			}
		}
		if err := table.Flush(); err != nil {
			return err
		}
	}
	if claims > 0 {
		fmt.Fprintln(table, "\nNODE\tNAMESPACE\tCLAIM\tDEVICES\tUID")
		for _, n := range s.Nodes {
			for _, c := range n.Claims {
				fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\n", n.Name, c.Namespace, c.Name, list(c.Devices), c.UID)
			}
		}
	}
	return table.Flush()
}

func leading(leader string) string {
	if leader == "" {
		return "none leads"
	}
	return leader + " leads"
}

func yes(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

func list(words []string) string {
	if len(words) == 0 {
		return "-"
	}
	return strings.Join(words, ",")
}
