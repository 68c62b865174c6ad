package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/dra-lab/dra-lab/scenarios/kubelets"
	"github.com/dra-lab/dra-lab/scenarios/upstream"
)

func (p *program) list(_ context.Context, ids []string) (int, error) {
	chosen, err := upstream.Find(ids)
	if err != nil {
		return exitUsage, err
	}
	if p.output == "json" {
		return 0, writeJSON(p.out, chosen)
	}
	return 0, upstream.WriteList(p.out, chosen)
}

// reproduce runs one reproduction after the other. One that fails, in whatever
// way, is no reason not to run the next; what was seen is reported even when the
// run is interrupted.
func (p *program) reproduce(ctx context.Context, ids []string) (int, error) {
	chosen, err := upstream.Find(ids)
	if err != nil {
		return exitUsage, err
	}
	bench, err := p.bench(ctx)
	if err != nil {
		return exitFailed, err
	}
	if err := p.compile(ctx, chosen); err != nil {
		return exitFailed, err
	}
	var results []upstream.Result
	var failed error
	for _, r := range chosen {
		p.say("%s: %s", r.ID, r.Title)
		result := upstream.Run(ctx, r, bench, p.kubelets...)
		results = append(results, result)
		if p.output == "text" {
			failed = errors.Join(failed, result.WriteText(p.out))
		} else {
			p.say("%s: %s", r.ID, result.Verdict)
		}
		if ctx.Err() != nil {
			failed = errors.Join(failed, context.Cause(ctx))
			break
		}
	}
	switch p.output {
	case "json":
		failed = errors.Join(failed, writeJSON(p.out, results))
	case "markdown":
		failed = errors.Join(failed, upstream.WriteMarkdown(p.out, results))
		fmt.Fprintln(p.out)
	}
	if p.junit != "" {
		failed = errors.Join(failed, writeJUnit(p.junit, results))
	}
	unexpected := 0
	for _, result := range results {
		if !result.Passed() {
			unexpected++
		}
	}
	if p.output != "json" {
		fmt.Fprintf(p.out, "reproductions: %d passed, %d failed, %d skipped\n",
			len(results)-unexpected, unexpected, len(chosen)-len(results))
	}
	if unexpected > 0 {
		return exitFailed, failed
	}
	return 0, failed
}

// compile compiles what reproductions need of checkouts, whose authors are to hear
// of their mistakes before anything else takes its time.
func (p *program) compile(ctx context.Context, chosen []upstream.Reproduction) error {
	if !slices.ContainsFunc(chosen, func(r upstream.Reproduction) bool { return r.Package }) {
		return nil
	}
	for _, k := range p.kubelets {
		if k.Checkout == nil {
			continue
		}
		p.say("compiling the plugin manager of %s", k.Checkout.Dir)
		if err := kubelets.Build(ctx, k); err != nil {
			return err
		}
	}
	return nil
}

// bench provides the kubelets of the cluster, if there is one.
func (p *program) bench(ctx context.Context) (upstream.Bench, error) {
	if p.cluster == "" {
		return upstream.Packages{}, nil
	}
	lab, err := p.openCluster(ctx)
	if err != nil {
		return nil, err
	}
	return upstream.OpenNodes(ctx, lab)
}

func writeJUnit(path string, results []upstream.Result) (err error) {
	f, err := os.Create(path)
	if err != nil {
		return fmt.Errorf("write JUnit report: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	return upstream.WriteJUnit(f, results)
}
