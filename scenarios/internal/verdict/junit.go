package verdict

import (
	"encoding/xml"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"unicode"

	"github.com/dra-lab/dra-lab/lab/host"
)

type junitSuites struct {
	XMLName  xml.Name     `xml:"testsuites"`
	Tests    int          `xml:"tests,attr"`
	Failures int          `xml:"failures,attr"`
	Skipped  int          `xml:"skipped,attr"`
	Time     string       `xml:"time,attr"`
	Suites   []junitSuite `xml:"testsuite"`
}

type junitSuite struct {
	Name     string      `xml:"name,attr"`
	Tests    int         `xml:"tests,attr"`
	Failures int         `xml:"failures,attr"`
	Skipped  int         `xml:"skipped,attr"`
	Time     string      `xml:"time,attr"`
	Cases    []junitCase `xml:"testcase"`
	Output   string      `xml:"system-out,omitempty"`
}

type junitCase struct {
	Class   string        `xml:"classname,attr"`
	Name    string        `xml:"name,attr"`
	Time    string        `xml:"time,attr"`
	Failure *junitFailure `xml:"failure,omitempty"`
	Skipped *junitSkipped `xml:"skipped,omitempty"`
}

type junitFailure struct {
	Message string `xml:"message,attr"`
	Text    string `xml:",chardata"`
}

type junitSkipped struct {
	Message string `xml:"message,attr"`
}

// JUnit is the report on results: a suite per test, whose cases are the parts
// of the test, or the test itself when it has none. name turns a test's name
// into the one for people.
func JUnit(results []Result, name func(test string) string) ([]byte, error) {
	var report junitSuites
	total := 0.0
	for _, test := range results {
		if test.Depth() != 0 {
			continue
		}
		suite := junitSuite{Name: name(test.Name), Time: seconds(test), Output: printable(test.Output)}
		parts := leaves(results, test.Name)
		for _, part := range parts {
			suite.add(part)
		}
		if len(parts) == 0 || test.Status != Passed && suite.Failures == 0 {
			// What went wrong outside the parts must not be lost.
			suite.add(test)
		}
		report.Tests += suite.Tests
		report.Failures += suite.Failures
		report.Skipped += suite.Skipped
		report.Suites = append(report.Suites, suite)
		total += test.Duration.Seconds()
	}
	report.Time = fmt.Sprintf("%.3f", total)
	data, err := xml.MarshalIndent(report, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("encode JUnit report: %w", err)
	}
	return append([]byte(xml.Header), append(data, '\n')...), nil
}

// WriteJUnit writes the report, whole or not at all, and makes the folder if it
// is not there.
func WriteJUnit(path string, report []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("write JUnit report: %w", err)
	}
	if err := host.WriteFile(path, report, 0o644); err != nil {
		return fmt.Errorf("write JUnit report %q: %w", path, err)
	}
	return nil
}

func (s *junitSuite) add(r Result) {
	c := junitCase{Class: s.Name, Name: PartName(r.Name), Time: seconds(r)}
	s.Tests++
	switch r.Status {
	case Failed, Unfinished:
		s.Failures++
		c.Failure = &junitFailure{Message: printable(FailureOf(r)), Text: printable(r.Output)}
	case Skipped:
		s.Skipped++
		c.Skipped = &junitSkipped{Message: printable(FailureOf(r))}
	}
	s.Cases = append(s.Cases, c)
}

// leaves are the parts of a test that have no parts themselves.
func leaves(results []Result, test string) []Result {
	var parts []Result
	for _, r := range results {
		if strings.HasPrefix(r.Name, test+"/") && !hasParts(results, r.Name) {
			parts = append(parts, r)
		}
	}
	return parts
}

func hasParts(results []Result, name string) bool {
	for _, r := range results {
		if strings.HasPrefix(r.Name, name+"/") {
			return true
		}
	}
	return false
}

// PartName is the last part of a test's name as people read it.
func PartName(name string) string {
	return strings.ReplaceAll(name[strings.LastIndex(name, "/")+1:], "_", " ")
}

// FailureOf is what the test said with Error, Fatal or Skip: the lines that
// package testing marks with file and line, without that mark.
func FailureOf(r Result) string {
	var said []string
	for line := range strings.Lines(r.Output) {
		if message, ok := marked(line); ok {
			said = append(said, message)
		}
	}
	if r.Status == Unfinished {
		said = append(said, "did not finish")
	}
	return strings.Join(said, "; ")
}

// marked reads the message in "    file_test.go:12: message".
func marked(line string) (message string, ok bool) {
	place, message, ok := strings.Cut(strings.TrimSpace(line), ": ")
	if !ok || strings.ContainsRune(place, ' ') || !strings.Contains(place, ".go:") {
		return "", false
	}
	return message, true
}

func seconds(r Result) string { return fmt.Sprintf("%.3f", r.Duration.Seconds()) }

// printable drops what XML 1.0 cannot hold.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' || r == '\t' || unicode.IsPrint(r) {
			return r
		}
		return -1
	}, s)
}
