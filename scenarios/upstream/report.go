package upstream

import (
	"encoding/xml"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// WriteList writes reproductions as a table for people.
func WriteList(w io.Writer, list []Reproduction) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	if _, err := fmt.Fprintln(t, "ID\tBAD\tGOOD\tNEEDS\tTITLE"); err != nil {
		return err
	}
	for _, r := range list {
		needs := "cluster"
		if r.Package {
			needs = "Go"
		}
		if _, err := fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\n", r.ID, versions(r.Bad), versions(r.Good), needs, r.Title); err != nil {
			return err
		}
	}
	return t.Flush()
}

func versions(list []string) string {
	if len(list) == 0 {
		return "-"
	}
	return strings.Join(list, " ")
}

// WriteText writes one result for people: the evidence, then the verdict.
func (r Result) WriteText(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s  %s\n", r.ID, r.Title)
	for _, link := range r.Links {
		fmt.Fprintf(&b, "  see %s\n", link)
	}
	fmt.Fprintf(&b, "  observed: %s\n", r.Observable)
	if r.Note != "" {
		fmt.Fprintf(&b, "  note: %s\n", r.Note)
	}
	for _, s := range r.Sides {
		fmt.Fprintf(&b, "  %s (%s, %.0f s): %s\n", s.Version, s.expectation(), s.Took.Seconds(), s.outcome())
		for _, e := range s.Finding.Evidence {
			fmt.Fprintf(&b, "    %s\n", e)
		}
	}
	fmt.Fprintf(&b, "  verdict: %s\n", r.summary())
	_, err := io.WriteString(w, b.String())
	return err
}

func (s Sided) expectation() string {
	switch {
	case s.Dir != "":
		return "from " + s.Dir
	case s.Asked:
		return "asked about"
	case s.Bad:
		return "bad"
	}
	return "good"
}

func (s Sided) outcome() string {
	switch {
	case s.Error != "":
		return "could not be tried: " + s.Error
	case s.Finding.Present:
		return "present"
	}
	return "absent"
}

func (r Result) summary() string {
	text := r.conclusion()
	for _, s := range r.Sides {
		if s.Asked {
			what, _, _ := strings.Cut(s.outcome(), ":")
			text += "; " + what + " on " + s.Version
		}
	}
	return text
}

func (r Result) conclusion() string {
	switch {
	case r.Verdict == Absent:
		return "absent on " + versions(r.Good) + ", no bad version can be run"
	case r.Verdict != Reproduced:
		return string(r.Verdict)
	case len(r.Good) == 0:
		return "reproduced on " + versions(r.Bad) + ", no version without it"
	}
	return "reproduced on " + versions(r.Bad) + ", absent on " + versions(r.Good)
}

// WriteMarkdown writes the matrix of results.
func WriteMarkdown(w io.Writer, results []Result) error {
	var b strings.Builder
	b.WriteString("| issue | title | bad | good | verdict |\n|---|---|---|---|---|\n")
	for _, r := range results {
		id := r.ID
		if len(r.Links) > 0 {
			id = "[" + r.ID + "](" + r.Links[0] + ")"
		}
		column := func(bad bool) string {
			var all []string
			for _, s := range r.Sides {
				if s.Bad == bad && !s.Asked {
					what, _, _ := strings.Cut(s.outcome(), ":")
					all = append(all, s.Version+" "+what)
				}
			}
			return strings.Join(all, "<br>")
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s |\n", id, r.Title, column(true), column(false), r.Verdict)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

type junitSuite struct {
	XMLName  xml.Name    `xml:"testsuite"`
	Name     string      `xml:"name,attr"`
	Tests    int         `xml:"tests,attr"`
	Failures int         `xml:"failures,attr"`
	Cases    []junitCase `xml:"testcase"`
}

type junitCase struct {
	Class   string        `xml:"classname,attr"`
	Name    string        `xml:"name,attr"`
	Seconds string        `xml:"time,attr"`
	Failure *junitFailure `xml:"failure"`
	Output  string        `xml:"system-out"`
}

type junitFailure struct {
	Message string `xml:"message,attr"`
}

// WriteJUnit writes results as a JUnit report, a test case each. Whatever is not
// reproduced as expected is a failure.
func WriteJUnit(w io.Writer, results []Result) error {
	suite := junitSuite{Name: "reproductions", Tests: len(results)}
	for _, r := range results {
		var text strings.Builder
		if err := r.WriteText(&text); err != nil {
			return err
		}
		took := 0.0
		for _, s := range r.Sides {
			took = max(took, s.Took.Seconds())
		}
		c := junitCase{Class: "upstream", Name: r.ID + " " + r.Title, Seconds: fmt.Sprintf("%.1f", took), Output: text.String()}
		if !r.Passed() {
			suite.Failures++
			c.Failure = &junitFailure{Message: r.summary()}
		}
		suite.Cases = append(suite.Cases, c)
	}
	if _, err := io.WriteString(w, xml.Header); err != nil {
		return err
	}
	e := xml.NewEncoder(w)
	e.Indent("", "  ")
	return e.Encode(suite)
}
