package main

import (
	"context"
	"errors"
	"io"
	"strings"

	"github.com/dra-lab/dra-lab/scenarios/kubelets"
	"github.com/dra-lab/dra-lab/scenarios/upstream/live"
)

// compareKubelets plays one scenario on the cluster's kubelets.
func (p *program) compareKubelets(ctx context.Context, _ []string) (int, error) {
	lab, err := p.openCluster(ctx)
	if err != nil {
		return exitFailed, err
	}
	var versions []string
	for _, k := range p.kubelets {
		versions = append(versions, k.Version)
	}
	report, err := live.Run(ctx, lab, versions, func(what string) { p.say("%s", what) })
	if report == nil {
		return exitFailed, err
	}
	return p.compared(report, report.Deviations(), err)
}

// comparePackages makes the experiments with the plugin managers alone.
func (p *program) comparePackages(ctx context.Context, _ []string) (int, error) {
	known := kubelets.Versions()
	chosen := known[len(known)-2:]
	if p.all {
		chosen = known
	}
	if len(p.kubelets) > 0 {
		chosen = p.kubelets
	}
	report, err := kubelets.Run(ctx, chosen, kubelets.Options{Progress: func(what string) { p.say("%s", what) }})
	if len(report.Results) == 0 {
		return exitFailed, err
	}
	return p.compared(report, report.Deviations(), err)
}

// table is a report with a column per version.
type table interface {
	WriteText(io.Writer) error
	WriteMarkdown(io.Writer) error
}

// compared shows the table, which is also what JSON has, and then what is not as
// it is known to be.
func (p *program) compared(t table, deviations []string, err error) (int, error) {
	switch p.output {
	case "json":
		err = errors.Join(err, writeJSON(p.out, t))
	case "markdown":
		err = errors.Join(err, t.WriteMarkdown(p.out))
	default:
		err = errors.Join(err, t.WriteText(p.out))
	}
	if len(deviations) == 0 {
		return 0, err
	}
	p.say("not as it is known of these versions:\n  %s", strings.Join(deviations, "\n  "))
	return exitFailed, err
}
