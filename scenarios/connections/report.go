package connections

import (
	"fmt"
	"io"
	"text/tabwriter"
	"time"
)

// Report is everything that [Run] measured.
type Report struct {
	Environment Environment
	Race        Race
	Stale       Stale
	Uncertain   Uncertain
	Growth      Growth
	Ways        Ways
}

// Environment is what the numbers depend on.
type Environment struct {
	Go   string
	OS   string
	Arch string
	CPUs int
	// RaceDetector says that the measuring process itself ran under the race
	// detector, which makes all times longer.
	RaceDetector bool
}

// section is one part of the report in words.
type section struct {
	Title string
	Rows  []row
	// Notes say what the article claims beyond this, and what a kubelet does.
	Notes []string
}

// row is one thing measured on both sides.
type row struct {
	What, Lazy, Eager string
}

// WriteText writes the report as a table for people.
func (r *Report) WriteText(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	p := &printer{w: t}
	// In the order of the article.
	for i, s := range []section{r.Race.section(), r.Stale.section(), r.Uncertain.section(), r.Growth.section(), r.Ways.section()} {
		if i > 0 {
			p.printf("\n")
		}
		p.printf("%s\tlazy (model)\teager (draconn)\n", s.Title)
		for _, row := range s.Rows {
			p.printf("  %s\t%s\t%s\n", row.What, row.Lazy, row.Eager)
		}
		for _, note := range s.Notes {
			p.printf("  * %s\n", note)
		}
		if p.err == nil {
			p.err = t.Flush() // each section has its own column widths
		}
	}
	e := r.Environment
	p.printf("\n%s %s/%s, %d CPUs%s\n", e.Go, e.OS, e.Arch, e.CPUs, map[bool]string{true: ", under the race detector: times are too long"}[e.RaceDetector])
	if p.err != nil {
		return p.err
	}
	return t.Flush()
}

// printer remembers the first error, so that a table's lines need no checks.
type printer struct {
	w   io.Writer
	err error
}

func (p *printer) printf(format string, a ...any) {
	if p.err == nil {
		_, p.err = fmt.Fprintf(p.w, format, a...)
	}
}

func (r Race) section() section {
	s := section{
		Title: "1 race on the health client",
		Rows: []row{
			{fmt.Sprintf("rounds of %d in which %d goroutines made more than one", r.Rounds, r.Goroutines), count(r.LazyMany), "0 (made by Open)"},
			{"health clients made at most", count(r.LazyMost), "1 per version"},
			{"the same, interrupted between look and assignment", count(r.LazyForced), "1 per version"},
			{"connections accepted per client, at most", "1", count(r.EagerConnections)},
		},
		Notes: []string{"kubelet: cannot happen. 1.34 and 1.35 hold a mutex and call from one goroutine; 1.36 and later make the client per stream"},
	}
	reports := row{"reports of the race detector", count(r.Detector.LazyReports), count(r.Detector.EagerReports)}
	if r.Detector.Where != "" {
		reports.Lazy += " (" + r.Detector.Where + ")"
	}
	if !r.Detector.Ran {
		reports.Lazy, reports.Eager = "not run", "not run"
		s.Notes = append(s.Notes, "race detector: "+r.Detector.Why)
	}
	s.Rows = append(s.Rows, reports)
	return s
}

func (s Stale) section() section {
	failed := fmt.Sprintf("%d", s.LazyFailed)
	if s.LazyError != "" {
		failed += ": " + s.LazyError
	}
	return section{
		Title: "2 stale health client after the plugin's restart",
		Rows: []row{
			{"prepare works again", yes(s.LazyPrepares), "yes"},
			{fmt.Sprintf("failed health calls of %d", s.Calls), failed, count(s.EagerFailed)},
			{"first health message after the plugin's start", "never", short(s.EagerBack)},
		},
		Notes: []string{"kubelet: cannot happen. Its connection is never replaced, gRPC reconnects inside it"},
	}
}

func (u Uncertain) section() section {
	return section{
		Title: "3 uncertain initialisation: health before the plugin",
		Rows: []row{
			{"first health call fails after", short(u.LazyFirst), short(u.EagerFailsAfter) + ": " + u.EagerError},
			{"a call that comes at the same time fails after", short(u.LazySecond), "the same"},
			{"health client after that", made(!u.LazyNil), "made"},
			{"health client when the plugin prepares claims", made(!u.LazyNilServing), "made"},
			{"plugin's start to a connection, without a call", "never", short(u.EagerReady)},
			{"next health call works", yes(u.LazyRecovers), yes(u.EagerServes)},
		},
		Notes: []string{
			"the article says that the client can stay nil for good; its own code makes it in the next health call that finds the plugin",
			"kubelet: 1.34 and later connect at registration and retry the health stream every 5 s",
		},
	}
}

func (g Growth) section() section {
	each := func(what string, of func(Grown) string) row {
		return row{what, of(g.Lazy) + " | " + of(g.Forgetful), of(g.Eager)}
	}
	return section{
		Title: fmt.Sprintf("4 growth over %d reconnects (broken connection closed | forgotten)", g.Reconnects),
		Rows: []row{
			each("gRPC connections in memory", func(of Grown) string { return count(of.Objects) }),
			each("goroutines more", func(of Grown) string { return count(of.Goroutines) }),
			each("memory more", func(of Grown) string { return kibibytes(of.Memory) }),
			each("connections open at the plugin", func(of Grown) string { return count(of.Open) }),
			each("time per reconnect", func(of Grown) string { return short(of.Took / time.Duration(max(1, g.Reconnects))) }),
		},
		Notes: []string{
			"the article's code closes what it replaces and keeps one closed connection, that of its health client: it does not accumulate. A client that forgets to close does",
			"kubelet: no connection leaks; what 1.37.2 leaks is the goroutine of a health stream (see scenarios/upstream)",
		},
	}
}

func (w Ways) section() section {
	absent := func(way Way) string {
		if way.AbsentError == "" {
			return short(way.Absent) + ", no error"
		}
		return short(way.Absent) + ": " + way.AbsentError
	}
	return section{
		Title: "5 ways to connect (blocking grpc.Dial | grpc.NewClient)",
		Rows: []row{
			{"construct, plugin absent", absent(w.Dial) + " | " + absent(w.NewClient), absent(w.Eager)},
			{"construct, plugin there", short(w.Dial.Construct) + " | " + short(w.NewClient.Construct), short(w.Eager.Construct)},
			{"until it is known to serve", "- | -", short(w.Eager.Ready)},
			{"first call after that", short(w.Dial.First) + " | " + short(w.NewClient.First), short(w.Eager.First)},
			{"a warm call", short(w.Warm), short(w.Warm)},
		},
		Notes: []string{"a blocking dial says that somebody accepted a connection, not that the plugin answers calls"},
	}
}

func count(n int) string { return fmt.Sprint(n) }

func yes(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

func made(b bool) string {
	if b {
		return "made"
	}
	return "nil"
}

func kibibytes(n int64) string { return fmt.Sprintf("%d KiB", n/1024) }

// short rounds to three digits or so.
func short(d time.Duration) string {
	switch {
	case d >= time.Second:
		return d.Round(10 * time.Millisecond).String()
	case d >= time.Millisecond:
		return d.Round(10 * time.Microsecond).String()
	default:
		return d.Round(100 * time.Nanosecond).String()
	}
}
