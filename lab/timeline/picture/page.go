package picture

import (
	"embed"
	"errors"
	"fmt"
	"html/template"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/dra-lab/dra-lab/lab/timeline"
)

//go:embed page.html page.css page.js
var files embed.FS

// Lanes from left to right.
var lanes = []timeline.Component{
	timeline.User, timeline.APIServer, timeline.ControllerManager, timeline.Scheduler,
	timeline.Kubelet, timeline.Driver, timeline.GPU, timeline.Container,
}

const (
	laneWidth = 96 // of a lane, in CSS pixels
	rowHeight = 28

	// slower and slowest decide when the same event of two runs is marked as
	// later: by this factor, and by this time.
	slower  = 1.5
	slowest = 100 * time.Millisecond
)

// Write writes the picture of one run, or of two beside each other. It is an
// error to ask for none, for more, or for one that has no events.
func Write(w io.Writer, runs ...timeline.Timeline) error {
	p, err := newPage(runs)
	if err != nil {
		return err
	}
	t, err := template.ParseFS(files, "page.html")
	if err != nil {
		return fmt.Errorf("draw timeline: %w", err)
	}
	if err := t.Execute(w, p); err != nil {
		return fmt.Errorf("draw timeline: %w", err)
	}
	return nil
}

// page is what the template shows.
type page struct {
	Title    string
	Style    template.CSS
	Code     template.JS
	Runs     []head
	Lanes    []lane
	Width    int // of the drawing
	Pitch    int // of the lanes
	Rows     []row
	Measured []string // figures that the run has worked out
	Omitted  int      // events that are not shown
}

// head is what is said about a run as a whole.
type head struct {
	Letter, Title, Namespace, Origin string
	Took                             string
	Events, Faults, Warnings         int
}

type lane struct {
	Name string
	X    int
}

// row is an event, or a time in which nothing happened.
type row struct {
	Number         int
	Class          string
	Times          []when // of each run
	From, To, Text string
	Draw           drawing
	Facts          []fact
	Pause          string // how long nothing happened
	Waited         string // and why
	Mark           string // how the runs differ
}

// when is when an event came in a run.
type when struct {
	Since, After string
	Cause        string // what After is counted from
	Missing      bool
}

type fact struct{ Name, Value string }

// drawing is an arrow between two lanes, or a dot on one.
type drawing struct {
	Width, Height  int
	X1, X2, Middle int
	Tip            string // points of the arrow's head
	Dot, Arrow     bool
}

func newPage(runs []timeline.Timeline) (page, error) {
	if len(runs) != 1 && len(runs) != 2 {
		return page{}, fmt.Errorf("draw timeline: %d runs, want one or two", len(runs))
	}
	for _, r := range runs {
		if len(r.Events) == 0 {
			return page{}, errors.New("draw timeline: it has no events")
		}
	}
	style, err := files.ReadFile("page.css")
	if err != nil {
		return page{}, fmt.Errorf("draw timeline: %w", err)
	}
	code, err := files.ReadFile("page.js")
	if err != nil {
		return page{}, fmt.Errorf("draw timeline: %w", err)
	}
	p := page{Style: template.CSS(style), Code: template.JS(code)} //nolint:gosec // both are files of this package
	var titles []string
	for i, r := range runs {
		h := headOf(r)
		if len(runs) > 1 {
			h.Letter = string(rune('A' + i))
		}
		p.Runs = append(p.Runs, h)
		titles = append(titles, r.Title)
	}
	p.Title = strings.Join(titles, " / ")
	p.lay(runs)
	p.rows(runs)
	return p, nil
}

func headOf(t timeline.Timeline) head {
	h := head{
		Title: t.Title, Namespace: t.Namespace, Origin: t.Origin.Format("2006-01-02 15:04:05 MST"), Events: len(t.Events),
		Took: duration(t.Events[len(t.Events)-1].Time.Sub(t.Events[0].Time)),
	}
	for _, e := range t.Events {
		switch e.Kind {
		case timeline.FaultInjected:
			h.Faults++
		case timeline.Warning:
			h.Warnings++
		}
	}
	return h
}

// lay gives a place to each lane that has an event.
func (p *page) lay(runs []timeline.Timeline) {
	used := map[timeline.Component]bool{}
	for _, r := range runs {
		for _, e := range r.Events {
			from, to := e.Lane()
			used[from], used[to] = true, true
		}
	}
	for _, c := range lanes {
		if used[c] {
			p.Lanes = append(p.Lanes, lane{Name: string(c), X: len(p.Lanes)*laneWidth + laneWidth/2})
		}
	}
	p.Width, p.Pitch = len(p.Lanes)*laneWidth, laneWidth
}

func (p *page) rows(runs []timeline.Timeline) {
	subjects := make([]timeline.Subjects, len(runs))
	var pairs []pair
	for i, r := range runs {
		subjects[i] = r.Subjects()
	}
	if len(runs) == 1 {
		for i := range runs[0].Events {
			pairs = append(pairs, pair{i, -1})
		}
	} else {
		pairs = align(runs[0].Events, runs[1].Events)
		for _, r := range runs {
			p.Omitted += max(0, len(r.Events)-maxAligned)
		}
	}
	last := make([]int, len(runs)) // the event before, of each run
	for i := range last {
		last[i] = -1
	}
	for _, pr := range pairs {
		indices := []int{pr.a, pr.b}[:len(runs)]
		var event timeline.Event
		var times []when
		var after []time.Duration
		for k, i := range indices {
			if i < 0 {
				times = append(times, when{Missing: true})
				continue
			}
			e := runs[k].Events[i]
			if event.Kind == "" {
				event = e
				if why := p.waitedFor(runs[k], last[k], i); why.Pause != "" {
					p.Rows = append(p.Rows, why)
				}
			}
			w := when{Since: since(runs[k].Since(e))}
			if c, ok := cause(runs[k].Events, subjects[k], i); ok {
				d := e.Time.Sub(c.Time)
				w.After, w.Cause = duration(d), strings.ReplaceAll(string(c.Kind), "-", " ")
				after = append(after, d)
			}
			times = append(times, w)
			last[k] = i
		}
		p.Rows = append(p.Rows, p.row(event, times, indices, after))
		if event.Kind == timeline.Measured {
			p.Measured = append(p.Measured, strings.TrimPrefix(event.Text, "measured: "))
		}
	}
	for i := range p.Rows {
		p.Rows[i].Number = i + 1
	}
}

// waitedFor is the row of a time in which nothing happened.
func (p *page) waitedFor(t timeline.Timeline, before, i int) row {
	if before < 0 {
		return row{}
	}
	a, b := t.Events[before], t.Events[i]
	if b.Time.Sub(a.Time) < pause {
		return row{}
	}
	return row{Class: "pause", Pause: duration(b.Time.Sub(a.Time)), Waited: waited(a, b), Draw: p.draw("", "")}
}

func (p *page) row(e timeline.Event, times []when, indices []int, after []time.Duration) row {
	from, to := e.Lane()
	r := row{
		Class: class(e), Times: times, From: string(from), Text: e.Text, Draw: p.draw(from, to),
		Facts: facts(e),
	}
	if to != from {
		r.To = string(to)
	}
	if len(indices) == 2 {
		switch {
		case indices[1] < 0:
			r.Mark, r.Class = "only in A", r.Class+" only a"
		case indices[0] < 0:
			r.Mark, r.Class = "only in B", r.Class+" only b"
		case len(after) == 2 && later(after[0], after[1]):
			r.Mark, r.Class = "slower in B", r.Class+" slower"
		case len(after) == 2 && later(after[1], after[0]):
			r.Mark, r.Class = "slower in A", r.Class+" slower"
		}
	}
	return r
}

// later reports whether b is worth a mark beside a.
func later(a, b time.Duration) bool { return b-a > slowest && float64(b) > slower*float64(a) }

// class is how a row looks.
func class(e timeline.Event) string {
	switch e.Kind {
	case timeline.FaultAsked, timeline.FaultInjected, timeline.GPUEvent, timeline.DeviceTainted:
		return "event fault"
	case timeline.PrepareFailed, timeline.UnprepareFailed, timeline.PodFailed, timeline.JobFailed, timeline.Warning,
		timeline.PodUnschedulable, timeline.ContainerWaiting:
		return "event bad"
	case timeline.PodReady, timeline.PodSucceeded, timeline.JobCompleted, timeline.FaultCleared, timeline.DeviceUntaint:
		return "event good"
	case timeline.Remark, timeline.Measured:
		return "event note"
	case timeline.PrepareStep, timeline.UnprepareStep, timeline.DriverStep:
		return "event step"
	}
	return "event"
}

func facts(e timeline.Event) []fact {
	var all []fact
	for _, f := range []fact{
		{"kind", string(e.Kind)},
		{"node", e.Node}, {"Pod", e.Pod}, {"claim", e.Claim}, {"device", e.Device}, {"detail", e.Detail},
		{"time from", string(e.Source)}, {"at", e.Time.Format("15:04:05.000000")},
	} {
		if f.Value != "" {
			all = append(all, f)
		}
	}
	if e.Duration > 0 {
		all = append(all, fact{"took", duration(e.Duration)})
	}
	return all
}

func (p *page) draw(from, to timeline.Component) drawing {
	d := drawing{Width: p.Width, Height: rowHeight, Middle: rowHeight / 2}
	x := func(c timeline.Component) (int, bool) {
		i := slices.IndexFunc(p.Lanes, func(l lane) bool { return l.Name == string(c) })
		if i < 0 {
			return 0, false
		}
		return p.Lanes[i].X, true
	}
	x1, known1 := x(from)
	x2, known2 := x(to)
	switch {
	case !known1 || !known2: // a remark has no lane
	case x1 == x2:
		d.Dot, d.X1 = true, x1
	default:
		const head = 8
		back := x2 - head
		if x2 < x1 {
			back = x2 + head
		}
		d.Arrow, d.X1, d.X2 = true, x1, back
		d.Tip = fmt.Sprintf("%d,%d %d,%d %d,%d", x2, d.Middle, back, d.Middle-5, back, d.Middle+5)
	}
	return d
}

// since is a time since the origin as people read it, "+1.234 s".
func since(d time.Duration) string { return fmt.Sprintf("%+.3f s", d.Seconds()) }

// duration is how long something took, with three digits at the most.
func duration(d time.Duration) string {
	switch {
	case d < 0:
		return "0"
	case d < time.Millisecond:
		return fmt.Sprintf("%d µs", d.Microseconds())
	case d < 10*time.Millisecond:
		return fmt.Sprintf("%.1f ms", float64(d)/float64(time.Millisecond))
	case d < time.Second:
		return fmt.Sprintf("%d ms", d.Milliseconds())
	case d < 10*time.Second:
		return fmt.Sprintf("%.2f s", d.Seconds())
	}
	return fmt.Sprintf("%.1f s", d.Seconds())
}
