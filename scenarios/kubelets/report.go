package kubelets

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/dra-lab/dra-lab/scenarios/internal/sidebyside"
)

// Report has one result per version.
type Report struct {
	Results []*Result `json:"results"`
}

// Run measures one version after the other. The report has those that could be
// measured, the error why others could not.
func Run(ctx context.Context, versions []Kubelet, o Options) (r *Report, failed error) {
	r = &Report{}
	for _, k := range versions {
		result, err := Measure(ctx, k, o)
		if ctx.Err() != nil {
			return r, errors.Join(failed, context.Cause(ctx))
		}
		if err != nil {
			failed = errors.Join(failed, err)
			continue
		}
		r.Results = append(r.Results, result)
	}
	return r, failed
}

// Deviations are those of all versions.
func (r *Report) Deviations() []string {
	var all []string
	for _, result := range r.Results {
		all = append(all, result.Deviations()...)
	}
	return all
}

// rows of the table, which has a column per version.
var rows = []struct {
	what string
	of   func(*Result) string
}{
	{"connections accepted for registration, two claims and health", func(r *Result) string { return count(r.Registration.Accepted) }},
	{"claims prepared", func(r *Result) string { return count(r.Registration.Prepared) }},
	{"registration to first health message", func(r *Result) string { return short(r.Registration.ToHealth) }},
	{"log lines: health client made lazily", func(r *Result) string { return count(r.Registration.Lazy) }},
	{"driver killed: prepare fails after", func(r *Result) string { return short(r.Restart.DownTook) }},
	{"driver back: connections accepted", func(r *Result) string { return count(r.Restart.Accepted) }},
	{"driver back: claim prepared", func(r *Result) string { return yes(r.Restart.Prepared) }},
	{"driver back: to first health message", func(r *Result) string { return short(r.Restart.ToHealth) }},
	{"gRPC connections made, restart included", func(r *Result) string { return count(r.Restart.Clients) }},
	{"register and deregister: rounds", func(r *Result) string { return count(r.Churn.Rounds) }},
	{"  health streams left for good", func(r *Result) string { return count(r.Churn.Left) }},
	{"  their failures logged afterwards", func(r *Result) string { return logged(r.Churn) }},
	{"  on one CPU: health streams left for good", func(r *Result) string { return count(r.ChurnOneCPU.Left) }},
	{"  on one CPU: failures logged afterwards", func(r *Result) string { return logged(r.ChurnOneCPU) }},
	{"after an idle connection: claim prepared", func(r *Result) string {
		if r.Idle.Hung {
			return "hangs for good"
		}
		return yes(r.Idle.Prepared)
	}},
}

// WriteText writes the report as a table for people.
func (r *Report) WriteText(w io.Writer) error { return r.table().WriteText(w) }

// WriteMarkdown writes the same table as Markdown.
func (r *Report) WriteMarkdown(w io.Writer) error { return r.table().WriteMarkdown(w) }

func (r *Report) table() sidebyside.Table {
	t := sidebyside.Table{Head: []string{"plugin manager of"}}
	for _, result := range r.Results {
		t.Head = append(t.Head, result.Name())
	}
	for _, row := range rows {
		cells := []string{row.what}
		for _, result := range r.Results {
			cells = append(cells, row.of(result))
		}
		t.Rows = append(t.Rows, cells)
	}
	return t
}

func count(n int) string { return fmt.Sprint(n) }

func yes(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

func logged(c Churn) string {
	return fmt.Sprintf("%d in %.0f s", c.Retries, c.Watched.Seconds())
}

func short(d time.Duration) string {
	if d >= time.Second {
		return d.Round(10 * time.Millisecond).String()
	}
	return d.Round(10 * time.Microsecond).String()
}
