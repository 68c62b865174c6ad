package scenarios

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"

	"github.com/dra-lab/dra-lab/lab/probe/reach"
	"github.com/dra-lab/dra-lab/scenarios/catalog"
	"github.com/dra-lab/dra-lab/scenarios/internal/verdict"
)

const exitUsage = 2

func TestMain(m *testing.M) {
	// Scenario probes copies this program into nodes.
	if len(os.Args) > 1 && os.Args[1] == reach.AgentVerb {
		os.Exit(reach.AgentMain())
	}
	list := flag.Bool("lab.list", false, "list the scenarios and end")
	output := flag.String("lab.output", "", "how to show results: text or json; empty: as go test does")
	junit := flag.String("lab.junit", "", "write a JUnit report to this file")
	flag.Parse()
	// client-go logs broken watches, which the recorder mends.
	klog.SetLogger(logr.Discard())

	chosen, err := catalog.Find(flag.Args())
	switch {
	case err != nil:
		// As the lab says it, which leaves the telling to us.
		fmt.Fprintf(os.Stderr, "lab: error: %v\nlab: hint: lab scenarios\n", err)
		os.Exit(exitUsage)
	case !slices.Contains([]string{"", "text", "json"}, *output):
		fmt.Fprintf(os.Stderr, "scenarios: error: unknown output %q, have text, json\n", *output)
		os.Exit(exitUsage)
	case *list:
		if err := writeList(os.Stdout, chosen, *output); err != nil {
			fmt.Fprintf(os.Stderr, "scenarios: error: %v\n", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	status, err := run(m, chosen, *output, *junit)
	if err != nil {
		fmt.Fprintf(os.Stderr, "scenarios: error: %v\n", err)
		status = max(status, 1)
	}
	os.Exit(status)
}

func writeList(w io.Writer, list []catalog.Scenario, output string) error {
	if output != "json" {
		return catalog.WriteText(w, list)
	}
	return writeJSON(w, list)
}

func writeJSON(w io.Writer, value any) error {
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	return encoder.Encode(value)
}

// run runs the chosen scenarios. With an output format or a report, what
// package testing prints is read back and shown in another form.
func run(m *testing.M, chosen []catalog.Scenario, output, junit string) (status int, err error) {
	if len(flag.Args()) > 0 {
		if err := flag.Set("test.run", catalog.Pattern(chosen)); err != nil {
			return 0, err
		}
	}
	if output == "" && junit == "" {
		return m.Run(), nil
	}
	if err := flag.Set("test.v", "true"); err != nil {
		return 0, err
	}
	stdout := os.Stdout
	people := stdout
	if output == "json" {
		people = os.Stderr
	}
	r, w, err := os.Pipe()
	if err != nil {
		return 0, fmt.Errorf("read test output: %w", err)
	}
	type shown struct {
		results []verdict.Result
		err     error
	}
	reading := make(chan shown, 1)
	go func() {
		results, err := verdict.Show(r, people, scenarioName)
		reading <- shown{results, errors.Join(err, r.Close())}
	}()
	os.Stdout = w
	began := time.Now()
	status = m.Run()
	os.Stdout = stdout
	err = w.Close()
	all := <-reading
	err = errors.Join(err, all.err)
	if junit != "" {
		err = errors.Join(err, writeReport(junit, all.results))
	}
	if output == "json" {
		return status, errors.Join(err, writeJSON(stdout, verdict.Summarize(all.results, scenarioName, began)))
	}
	counts := verdict.Counts(all.results)
	_, printed := fmt.Fprintf(stdout, "scenarios: %d passed, %d failed, %d skipped\n",
		counts[verdict.Passed], counts[verdict.Failed]+counts[verdict.Unfinished], counts[verdict.Skipped])
	return status, errors.Join(err, printed)
}

func writeReport(path string, results []verdict.Result) error {
	report, err := verdict.JUnit(results, scenarioName)
	if err != nil {
		return err
	}
	return verdict.WriteJUnit(path, report)
}

// scenarioName is the name of the scenario that a test runs.
func scenarioName(test string) string {
	for _, s := range catalog.All() {
		if s.Test == test {
			return s.Name
		}
	}
	return test
}
