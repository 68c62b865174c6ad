package health

import (
	"slices"
	"strings"
	"time"
)

// damper holds on to problems that come and go. A problem that ends is over. One
// that comes back soon after that is believed to be over only when it has stayed
// away for a while: a GPU that is well every other moment is not one to send Pods
// to, and a taint that comes and goes with it would evict them again and again.
type damper struct {
	quiet time.Duration // how soon is soon, and how long is a while
	seen  map[Condition]episode
}

// episode is what is known of a condition that was there before.
type episode struct {
	problem  Problem
	there    bool
	ended    time.Time // when it was last seen to end
	flapping bool      // it came back soon after that
	repaired bool      // somebody has repaired the GPU since it came
}

// observe takes in what is wrong now, and returns what is not any more and is
// still held against the GPU, by condition.
func (d *damper) observe(problems []Problem, now time.Time) (held []Problem) {
	for _, p := range problems {
		e := d.seen[p.Condition]
		if !e.there && !e.ended.IsZero() && now.Sub(e.ended) < d.quiet {
			e.flapping = true
		}
		if e.flapping {
			p = flapping(p, e.problem.Since)
		}
		e.problem, e.there = p, true
		d.seen[p.Condition] = e
	}
	for c, e := range d.seen {
		if e.there && !slices.ContainsFunc(problems, func(p Problem) bool { return p.Condition == c }) {
			e.there, e.ended = false, now
			if e.repaired {
				delete(d.seen, c)
				continue
			}
		}
		switch {
		case e.there:
		case now.Sub(e.ended) >= d.quiet:
			delete(d.seen, c)
			continue
		case e.flapping:
			held = append(held, flapping(e.problem, e.problem.Since))
		}
		d.seen[c] = e
	}
	slices.SortFunc(held, func(a, b Problem) int { return strings.Compare(string(a.Condition), string(b.Condition)) })
	return held
}

// repair is told that the GPU was repaired. What is wrong with it ends because of
// that and not by itself, so that it does not count as coming and going; whoever
// repairs counts how often.
func (d *damper) repair() {
	for c, e := range d.seen {
		if !e.there {
			delete(d.seen, c)
			continue
		}
		e.repaired, e.flapping = true, false
		d.seen[c] = e
	}
}

// flapping is a problem as it is told while it comes and goes: the same whether it
// is there or away, and since when it does.
func flapping(p Problem, since time.Time) Problem {
	const words = " (it comes and goes)"
	p.Since = since
	p.Message = strings.TrimSuffix(p.Message, words) + words
	return p
}

// told is a problem that is there as it is to be told.
func (d *damper) told(p Problem) Problem {
	if e := d.seen[p.Condition]; e.there && e.flapping {
		return e.problem
	}
	return p
}

// settled is when the first of what is held may be over; zero if nothing is.
func (d *damper) settled() time.Time {
	var first time.Time
	for _, e := range d.seen {
		if over := e.ended.Add(d.quiet); e.flapping && !e.there && (first.IsZero() || over.Before(first)) {
			first = over
		}
	}
	return first
}
