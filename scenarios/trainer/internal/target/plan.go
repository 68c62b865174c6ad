package target

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// The behaviours.
const (
	ok       = "ok"
	fail     = "fail"
	slow     = "slow"
	redirect = "redirect"
	large    = "large"
	exit     = "exit"
)

// step is what the target does from a time on, since its start.
type step struct {
	behaviour string
	delay     time.Duration // of slow
	location  string        // of redirect
	status    int           // of exit
	from      time.Duration
}

// plan is the steps in their order, the first from 0.
type plan []step

// parsePlan reads a plan.
func parsePlan(text string) (plan, error) {
	var p plan
	for word := range strings.SplitSeq(text, ",") {
		s, err := parseStep(word)
		if err != nil {
			return nil, fmt.Errorf("read step %q of the plan: %w", word, err)
		}
		switch {
		case len(p) == 0 && s.from != 0:
			return nil, fmt.Errorf("read plan: it begins with %s, want 0s", s.from)
		case len(p) > 0 && s.from <= p[len(p)-1].from:
			return nil, fmt.Errorf("read step %q of the plan: it is not after the one before it", word)
		}
		p = append(p, s)
	}
	return p, nil
}

func parseStep(word string) (s step, err error) {
	what, when, found := strings.Cut(word, "@")
	if !found {
		return s, fmt.Errorf("want BEHAVIOUR@TIME")
	}
	if s.from, err = time.ParseDuration(when); err != nil {
		return s, err
	}
	var value string
	s.behaviour, value, found = strings.Cut(what, "=")
	switch s.behaviour {
	case ok, fail, large:
		if found {
			return s, fmt.Errorf("%s takes no value", s.behaviour)
		}
	case slow:
		s.delay, err = time.ParseDuration(value)
	case redirect:
		if s.location = value; value == "" {
			err = fmt.Errorf("redirect needs a URL")
		}
	case exit:
		s.status, err = strconv.Atoi(value)
	default:
		err = fmt.Errorf("unknown behaviour, want ok, fail, slow, redirect, large or exit")
	}
	return s, err
}

// at is the step of a time since the start, and when the next one begins: 0 if
// there is none.
func (p plan) at(since time.Duration) (now step, next time.Duration) {
	now = p[0]
	for _, s := range p {
		if s.from > since {
			return now, s.from
		}
		now = s
	}
	return now, 0
}
