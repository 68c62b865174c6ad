// Command reproduce lists and runs the reproductions of package upstream. It is
// what "lab reproduce" runs, which has brought the cluster by then.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"

	"github.com/dra-lab/dra-lab/lab/cluster"
	"github.com/dra-lab/dra-lab/lab/host"
	"github.com/dra-lab/dra-lab/scenarios/upstream"
)

func main() {
	klog.SetLogger(logr.Discard()) // client-go says in errors what matters
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	status, err := run(ctx, os.Args[1:], os.Stdout)
	cancel()
	switch {
	case err != nil && status == exitUsage:
		// As the lab says it, which leaves the telling to us.
		fmt.Fprintf(os.Stderr, "lab: error: %v\nlab: hint: lab reproduce list\n", err)
	case err != nil:
		fmt.Fprintf(os.Stderr, "reproduce: error: %v\n", err)
		status = max(status, exitFailed)
	}
	os.Exit(status)
}

const (
	exitFailed = 1
	exitUsage  = 2
)

func run(ctx context.Context, args []string, out io.Writer) (int, error) {
	flags := flag.NewFlagSet("reproduce", flag.ContinueOnError)
	list := flags.Bool("list", false, "list the reproductions and end")
	output := flags.String("output", "text", "how to show results: text, json or markdown")
	junit := flags.String("junit", "", "write a JUnit report to this `file`")
	name := flags.String("cluster", os.Getenv("DRA_LAB_CLUSTER"), "`name` of the lab with the kubelets ($DRA_LAB_CLUSTER); empty: none")
	if err := flags.Parse(args); err != nil {
		return exitUsage, nil // flags has said it
	}
	chosen, err := upstream.Find(flags.Args())
	if err != nil {
		return exitUsage, err
	}
	if *list {
		if *output == "json" {
			return 0, writeJSON(out, chosen)
		}
		return 0, upstream.WriteList(out, chosen)
	}
	bench, err := open(ctx, *name)
	if err != nil {
		return exitFailed, err
	}
	status := 0
	var results []upstream.Result
	for _, r := range chosen {
		fmt.Fprintf(os.Stderr, "reproduce: %s: %s\n", r.ID, r.Title)
		result := upstream.Run(ctx, r, bench)
		results = append(results, result)
		if result.Verdict != upstream.Reproduced {
			status = exitFailed
		}
		if *output == "text" {
			if err := result.WriteText(out); err != nil {
				return exitFailed, err
			}
		}
		if ctx.Err() != nil {
			return exitFailed, context.Cause(ctx)
		}
	}
	switch *output {
	case "json":
		err = writeJSON(out, results)
	case "markdown":
		err = upstream.WriteMarkdown(out, results)
	}
	if *junit != "" {
		err = errors.Join(err, writeJUnit(*junit, results))
	}
	return status, err
}

func open(ctx context.Context, name string) (upstream.Bench, error) {
	if name == "" {
		return upstream.Packages{}, nil
	}
	engine, err := host.FindEngine(ctx)
	if err != nil {
		return nil, err
	}
	if err := engine.Use(); err != nil {
		return nil, err
	}
	lab, err := cluster.Open(ctx, name)
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

func writeJSON(w io.Writer, value any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(value)
}
