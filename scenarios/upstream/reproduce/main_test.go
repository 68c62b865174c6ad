package main

import (
	"context"
	"encoding/json"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

type junit struct {
	Tests    int `xml:"tests,attr"`
	Failures int `xml:"failures,attr"`
	Cases    []struct {
		Name    string `xml:"name,attr"`
		Failure *struct {
			Message string `xml:"message,attr"`
		} `xml:"failure"`
	} `xml:"testcase"`
}

func readJUnit(t *testing.T, path string) (suite junit) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := xml.Unmarshal(data, &suite); err != nil {
		t.Fatal(err)
	}
	return suite
}

// Given reproductions that cannot be run, here because there is no cluster, each
// is tried all the same, and each is in both reports.
func TestOneFailureDoesNotStopTheOthers(t *testing.T) {
	report := filepath.Join(t.TempDir(), "junit.xml")
	var out, progress strings.Builder
	status, err := run(t.Context(), []string{"run", "-output=markdown", "-junit=" + report, "140353", "129402"}, &out, &progress)
	if status != exitFailed || err != nil {
		t.Errorf("status %d, error %v, want %d without an error", status, err, exitFailed)
	}
	for _, want := range []string{
		"| issue | title | bad | good | verdict |\n|---|---|---|---|---|\n",
		"| [140353](https://github.com/kubernetes/kubernetes/issues/140353) |",
		"| v1.36.3 could not be tried | v1.37.2 could not be tried | unfinished |",
		"| [129402](https://github.com/kubernetes/kubernetes/issues/129402) |",
		"\n\nreproductions: 0 passed, 2 failed, 0 skipped\n",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, &out)
		}
	}
	suite := readJUnit(t, report)
	if suite.Tests != 2 || suite.Failures != 2 || len(suite.Cases) != 2 {
		t.Fatalf("JUnit report has %d tests, %d failures, %d cases, want 2 of each", suite.Tests, suite.Failures, len(suite.Cases))
	}
	for i, id := range []string{"140353", "129402"} {
		if c := suite.Cases[i]; !strings.HasPrefix(c.Name, id+" ") || c.Failure == nil || c.Failure.Message != "unfinished" {
			t.Errorf("case %d is %+v, want %s, unfinished", i, c, id)
		}
	}
}

// What was seen before an interruption is reported.
func TestInterrupted(t *testing.T) {
	report := filepath.Join(t.TempDir(), "junit.xml")
	stop := errors.New("stop")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(stop)
	var out strings.Builder
	status, err := run(ctx, []string{"run", "-output=markdown", "-junit=" + report, "140353", "129402"}, &out, io.Discard)
	if status != exitFailed || !errors.Is(err, stop) {
		t.Errorf("status %d, error %v, want %d and %v", status, err, exitFailed, stop)
	}
	if want := "reproductions: 0 passed, 1 failed, 1 skipped\n"; !strings.Contains(out.String(), want) {
		t.Errorf("no %q in\n%s", want, &out)
	}
	if suite := readJUnit(t, report); suite.Tests != 1 {
		t.Errorf("JUnit report has %d tests, want the one that was begun", suite.Tests)
	}
}

func TestList(t *testing.T) {
	var out strings.Builder
	if status, err := run(t.Context(), []string{"list", "-output=json", "140353"}, &out, io.Discard); status != 0 || err != nil {
		t.Fatalf("status %d, error %v", status, err)
	}
	var list []struct{ ID string }
	if err := json.Unmarshal([]byte(out.String()), &list); err != nil || len(list) != 1 || list[0].ID != "140353" {
		t.Errorf("%v, list is %v", err, list)
	}
	for name, args := range map[string][]string{
		"no verb": nil, "unknown verb": {"bogus"}, "unknown reproduction": {"run", "1"}, "unknown flag": {"run", "-bogus"},
	} {
		if status, _ := run(t.Context(), args, io.Discard, io.Discard); status != exitUsage {
			t.Errorf("%s: status %d, want %d", name, status, exitUsage)
		}
	}
}
