// Package verdict turns what a test binary prints under -test.v into results:
// lines for people as they come, a JUnit report and JSON for programs. It needs
// no Go tools, so that a machine without Go can run the scenarios.
package verdict

import (
	"strconv"
	"strings"
	"time"
)

// Status of a test.
type Status string

// Statuses.
const (
	Passed  Status = "passed"
	Failed  Status = "failed"
	Skipped Status = "skipped"
	// Unfinished is a test that began and of whose end nothing was heard: the
	// binary crashed.
	Unfinished Status = "unfinished"
)

const (
	// maxOutput bounds the output that is kept of a test, in bytes.
	maxOutput = 256 << 10
	// maxResults bounds the tests.
	maxResults = 10_000
)

// Result is one test, or one part of a test.
type Result struct {
	Name     string // as go test writes it, parts after slashes
	Status   Status
	Duration time.Duration
	Output   string // what it printed, without its parts' output
}

// Depth is 0 for a test, 1 for a part of it, and so on.
func (r Result) Depth() int { return strings.Count(r.Name, "/") }

// Parser reads a test binary's output line by line. The zero value is ready.
type Parser struct {
	results []*Result
	byName  map[string]*Result
	current *Result
}

// Line takes one line, without its newline. It returns the test that the line
// ends, if it does, and whether the line is output, not a frame round it.
func (p *Parser) Line(line string) (ended *Result, output bool) {
	if word, name, ok := beginning(line); ok {
		switch word {
		case "RUN", "CONT", "NAME":
			p.current = p.result(name)
		}
		return nil, false
	}
	if status, name, took, ok := ending(line); ok {
		r := p.result(name)
		r.Status, r.Duration = status, took
		return r, false
	}
	if line == "PASS" || line == "FAIL" {
		return nil, false
	}
	if p.current != nil && len(p.current.Output)+len(line) < maxOutput {
		p.current.Output += line + "\n"
	}
	return nil, true
}

// Results are all tests so far, in the order in which they began.
func (p *Parser) Results() []Result {
	all := make([]Result, 0, len(p.results))
	for _, r := range p.results {
		all = append(all, *r)
	}
	return all
}

func (p *Parser) result(name string) *Result {
	if r, ok := p.byName[name]; ok {
		return r
	}
	r := &Result{Name: name, Status: Unfinished}
	if len(p.results) >= maxResults {
		return r
	}
	if p.byName == nil {
		p.byName = map[string]*Result{}
	}
	p.byName[name] = r
	p.results = append(p.results, r)
	return r
}

// beginning reads "=== RUN   TestName".
func beginning(line string) (word, name string, ok bool) {
	rest, ok := strings.CutPrefix(line, "=== ")
	if !ok {
		return "", "", false
	}
	fields := strings.Fields(rest)
	if len(fields) != 2 {
		return "", "", false
	}
	return fields[0], fields[1], true
}

// ending reads "    --- PASS: TestName/part (1.23s)".
func ending(line string) (status Status, name string, took time.Duration, ok bool) {
	rest, ok := strings.CutPrefix(strings.TrimLeft(line, " "), "--- ")
	if !ok {
		return "", "", 0, false
	}
	fields := strings.Fields(rest)
	if len(fields) != 3 {
		return "", "", 0, false
	}
	seconds, err := strconv.ParseFloat(strings.TrimSuffix(strings.Trim(fields[2], "()"), "s"), 64)
	if err != nil {
		return "", "", 0, false
	}
	switch fields[0] {
	case "PASS:":
		status = Passed
	case "FAIL:":
		status = Failed
	case "SKIP:":
		status = Skipped
	default:
		return "", "", 0, false
	}
	return status, fields[1], time.Duration(seconds * float64(time.Second)), true
}
