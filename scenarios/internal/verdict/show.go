package verdict

import (
	"bufio"
	"fmt"
	"io"
	"strings"
)

const maxLine = 1 << 20

// Show reads a test binary's output from r until its end, writes it to w as
// people want to see it, and returns the results. It goes on reading when w
// fails, so that the tests are not stuck, and returns that error at the end.
func Show(r io.Reader, w io.Writer, name func(test string) string) ([]Result, error) {
	var p Parser
	var failed error
	write := func(text string) {
		if text != "" && failed == nil {
			_, failed = fmt.Fprintln(w, text)
		}
	}
	// Package testing writes the ends of a test's parts after the test's own.
	scenario := ""
	scanner := bufio.NewScanner(r)
	scanner.Buffer(make([]byte, 64<<10), maxLine)
	for scanner.Scan() {
		line := scanner.Text()
		ended, output := p.Line(line)
		switch {
		case ended != nil && ended.Depth() == 0:
			write(scenario)
			scenario = endLine(*ended, name)
		case ended != nil:
			write(endLine(*ended, name))
		case output:
			write(scenario)
			scenario = ""
			write(outputLine(line))
		}
	}
	write(scenario)
	if err := scanner.Err(); err != nil {
		// Somebody must read on, or the tests wait for it.
		_, _ = io.Copy(io.Discard, r)
		return p.Results(), fmt.Errorf("read test output: %w", err)
	}
	return p.Results(), failed
}

// endLine is how the end of a test or of a part of it is shown.
func endLine(r Result, name func(string) string) string {
	mark := map[Status]string{Passed: "✓", Failed: "✗", Skipped: "-"}[r.Status]
	switch r.Depth() {
	case 0:
		return fmt.Sprintf("%s scenario %s %s (%.1fs)", mark, name(r.Name), r.Status, r.Duration.Seconds())
	case 1:
		return "" // the feature, of which a scenario has one
	}
	return fmt.Sprintf("%s %s", mark, PartName(r.Name))
}

// outputLine leaves out where in the source a message comes from: that is for
// those who write scenarios, and in the JUnit report.
func outputLine(line string) string {
	if message, ok := marked(line); ok {
		return message
	}
	return strings.TrimRight(line, " ")
}

// Counts says how many tests have each status; parts do not count.
func Counts(results []Result) map[Status]int {
	counts := map[Status]int{}
	for _, r := range results {
		if r.Depth() == 0 {
			counts[r.Status]++
		}
	}
	return counts
}
