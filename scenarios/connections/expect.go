package connections

import (
	"fmt"
	"time"
)

// Deviations compares the report with what is expected of it and returns a
// sentence for every difference: none, if the lazy model fails in all the ways
// that it can and the eager connection in none. Of times only those are compared
// that are far apart on any machine.
func (r *Report) Deviations() []string {
	var d deviations
	race := r.Race
	d.unless(race.LazyForced == race.Goroutines, "interrupted lazy goroutines made %d health clients, want one each, %d", race.LazyForced, race.Goroutines)
	d.unless(race.EagerConnections == 1, "the eager client made %d connections, want 1", race.EagerConnections)
	if race.Detector.Ran {
		d.unless(race.Detector.LazyReports > 0, "the race detector found nothing in the lazy client")
		d.unless(race.Detector.EagerReports == 0, "the race detector reported %d races in the eager client", race.Detector.EagerReports)
	}

	stale := r.Stale
	d.unless(stale.LazyPrepares, "the lazy client does not prepare after the plugin's restart")
	d.unless(stale.LazyFailed == stale.Calls, "%d of %d lazy health calls failed after the plugin's restart, want all", stale.LazyFailed, stale.Calls)
	d.unless(stale.EagerFailed == 0, "%d of %d eager health calls failed after the plugin's restart, want none", stale.EagerFailed, stale.Calls)

	u := r.Uncertain
	d.unless(u.LazyNil && u.LazyNilServing, "the lazy client has a health client after a failed first use")
	d.unless(u.LazyRecovers, "the lazy client has no health client after a successful use")
	d.unless(u.LazyFirst >= u.DialTimeout, "the first lazy call failed after %v, want not before its dial's timeout, %v", u.LazyFirst, u.DialTimeout)
	d.unless(u.LazySecond >= 2*u.DialTimeout, "the second lazy call failed after %v, want not before two timeouts of %v", u.LazySecond, u.DialTimeout)
	d.unless(u.EagerFailsAfter < u.DialTimeout, "the first eager call took %v to fail, want it to fail at once", u.EagerFailsAfter)
	d.unless(u.EagerServes, "the eager client does not serve after a failed first use")

	g := r.Growth
	d.unless(g.Lazy.Objects == 2, "the lazy client keeps %d connections in memory, want 2: the one in use and that of its health client", g.Lazy.Objects)
	d.unless(g.Forgetful.Objects == g.Reconnects+1, "the forgetful client keeps %d connections in memory, want all %d", g.Forgetful.Objects, g.Reconnects+1)
	d.unless(g.Forgetful.Goroutines >= g.Reconnects, "the forgetful client keeps %d goroutines, want at least one per connection, %d", g.Forgetful.Goroutines, g.Reconnects)
	for name, of := range map[string]Grown{"lazy": g.Lazy, "eager": g.Eager} {
		d.unless(of.Goroutines <= few, "the %s client has %d goroutines more after %d reconnects, want none but a few", name, of.Goroutines, g.Reconnects)
		d.unless(of.Open == 1, "the %s client has %d connections open at the plugin, want 1", name, of.Open)
		d.unless(of.Memory < some, "the %s client's process has %d bytes of memory more after %d reconnects, want less than %d", name, of.Memory, g.Reconnects, some)
	}

	w := r.Ways
	d.unless(w.Dial.Absent >= w.DialTimeout, "a blocking dial of an absent plugin took %v, want its timeout, %v", w.Dial.Absent, w.DialTimeout)
	d.unless(w.Dial.AbsentError != "", "a blocking dial of an absent plugin succeeded")
	for name, way := range map[string]Way{"NewClient": w.NewClient, "the eager client": w.Eager} {
		d.unless(way.Absent < atOnce && way.AbsentError == "", "constructing %s with an absent plugin took %v (%s), want it at once", name, way.Absent, way.AbsentError)
	}
	d.unless(w.Eager.First < w.NewClient.First, "the first eager call took %v, want less than the %v of a client that connects first", w.Eager.First, w.NewClient.First)
	return d
}

const (
	// few goroutines may be on their way out when they are counted.
	few = 10
	// some bytes are what pools and stacks may take without being a leak: a
	// small part of what 10,000 forgotten connections take.
	some = 8 << 20
	// atOnce is what constructing a client without waiting may take on a
	// machine that is busy.
	atOnce = 100 * time.Millisecond
)

type deviations []string

func (d *deviations) unless(ok bool, format string, a ...any) {
	if !ok {
		*d = append(*d, fmt.Sprintf(format, a...))
	}
}
