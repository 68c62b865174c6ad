package live

import (
	"fmt"
	"io"

	"github.com/dra-lab/dra-lab/scenarios/internal/sidebyside"
)

// Report has one result per kubelet.
type Report []*Result

// Deviations are those of all kubelets.
func (r Report) Deviations() []string {
	var all []string
	for _, result := range r {
		all = append(all, result.Deviations()...)
	}
	return all
}

// WriteText writes the report as a table for people.
func (r Report) WriteText(w io.Writer) error { return r.table().WriteText(w) }

// WriteMarkdown writes the same table as Markdown.
func (r Report) WriteMarkdown(w io.Writer) error { return r.table().WriteMarkdown(w) }

// rows of the table, in the order in which the scenario is played.
var rows = []struct {
	since step // when it has been measured
	what  string
	of    func(*Result) string
}{
	{looked, "kubelet's log verbosity", func(r *Result) string { return fmt.Sprint(r.Verbosity) }},
	{connected, "driver registered after", func(r *Result) string { return r.Connect.Registered.String() }},
	{connected, "connections accepted: registration, two Pods, health", func(r *Result) string { return fmt.Sprint(r.Connect.Accepted) }},
	{connected, "  prepares of the two Pods", func(r *Result) string { return fmt.Sprint(r.Connect.Prepares) }},
	{connected, "  status of both Pods Healthy after they ran", func(r *Result) string { return r.Connect.Healthy.String() }},
	{connected, "  log lines: gRPC connection made", func(r *Result) string { return r.logged(r.Connect.Made) }},
	{connected, "  log lines: health client made lazily", func(r *Result) string { return r.logged(r.Connect.Lazy) }},
	{silenced, "health streams end: opened again after", func(r *Result) string { return r.Silence.Reopened.String() }},
	{silenced, "  nothing is reported: Pod's status Unknown after", func(r *Result) string { return r.Silence.Unknown.String() }},
	{silenced, "  next report: Pod's status Healthy after", func(r *Result) string { return r.Silence.Healthy.String() }},
	{silenced, "  connections accepted more", func(r *Result) string { return fmt.Sprint(r.Silence.Accepted) }},
	{killed, "driver killed: kubelet's log says so after", func(r *Result) string {
		if r.Verbosity < verbosityConnections {
			return invisible(r.Verbosity)
		}
		return r.Kill.Noticed.String()
	}},
	{killed, "  new Pod: event of the failed prepare after", func(r *Result) string { return r.Kill.Failed.String() }},
	{killed, "new process on the socket, after", func(r *Result) string { return fmt.Sprintf("%.1f s", r.Kill.Away.Seconds()) }},
	{killed, "  connected after", func(r *Result) string { return r.Kill.Connected.String() }},
	{killed, "  health stream open after", func(r *Result) string { return r.Kill.Reopened.String() }},
	{killed, "  that Pod is prepared and runs after", func(r *Result) string { return r.Kill.Prepared.String() }},
	{killed, "  connections accepted by the new process", func(r *Result) string { return fmt.Sprint(r.Kill.Accepted) }},
	{killed, "  ResourceSlices wiped meanwhile", func(r *Result) string { return yes(r.Kill.Wiped) }},
	{restarted, "kubelet restarted: ResourceSlices wiped after", func(r *Result) string { return r.Restart.Wiped.String() }},
	{restarted, "  driver registered again after", func(r *Result) string { return r.Restart.Registered.String() }},
	{restarted, "  ResourceSlices published again after", func(r *Result) string { return r.Restart.Republished.String() }},
	{restarted, "  a new report is in a running Pod's status after", func(r *Result) string { return r.Restart.Synced.String() }},
	{restarted, "  running Pods prepared again", func(r *Result) string { return yes(r.Restart.Prepares > 0) }},
	{restarted, "  connections accepted from the new kubelet", func(r *Result) string { return fmt.Sprint(r.Restart.Accepted) }},
	{died, "driver killed for good: ResourceSlices wiped after", func(r *Result) string { return r.Death.Wiped.String() }},
	{looked, "whole scenario", func(r *Result) string { return fmt.Sprintf("%.0f s", r.Took.Seconds()) }},
}

func (r Report) table() sidebyside.Table {
	t := sidebyside.Table{Head: []string{"kubelet"}}
	for _, result := range r {
		t.Head = append(t.Head, result.Version)
	}
	for _, row := range rows {
		cells := []string{row.what}
		for _, result := range r {
			cell := "-"
			if result.Done >= row.since {
				cell = row.of(result)
			}
			cells = append(cells, cell)
		}
		t.Rows = append(t.Rows, cells)
	}
	return t
}

// logged is a count of lines that need verbosityClients.
func (r *Result) logged(n int) string {
	if r.Verbosity < verbosityClients {
		return invisible(r.Verbosity)
	}
	return fmt.Sprint(n)
}

func invisible(verbosity int) string { return fmt.Sprintf("not visible at -v=%d", verbosity) }

func yes(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}
