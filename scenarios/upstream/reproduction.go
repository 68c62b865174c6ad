package upstream

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/dra-lab/dra-lab/scenarios/kubelets"
)

// Reproduction is one issue and how to see it.
type Reproduction struct {
	ID         string   `json:"id"` // the number of the issue or pull request that names it
	Title      string   `json:"title"`
	Links      []string `json:"links"`
	Bad        []string `json:"bad"`            // versions that have it, as released; none: all are too old to be run
	Good       []string `json:"good,omitempty"` // none: no version without it yet, or intended
	Observable string   `json:"observable"`     // what is there on bad versions, in a few words
	// Note says what the title does not: that it is intended, for example.
	Note string `json:"note,omitempty"`
	// Bound is for the steps on one kubelet, without builds.
	Bound time.Duration `json:"bound"`
	// Package says that the plugin manager alone is enough, without a cluster.
	Package bool `json:"package"`
	// Run does the steps on one kubelet. An error means that they could not
	// be done, which says nothing about the issue.
	Run func(context.Context, *Side) (Finding, error) `json:"-"`
}

// Versions are those that it runs on, the bad ones first.
func (r Reproduction) Versions() []string { return slices.Concat(r.Bad, r.Good) }

// Finding is what was seen on one kubelet.
type Finding struct {
	Present  bool     `json:"present"`
	Evidence []string `json:"evidence"` // sentences and log lines
}

func (f *Finding) add(format string, a ...any) {
	f.Evidence = append(f.Evidence, fmt.Sprintf(format, a...))
}

// Sided is a finding with its version, or why there is none.
type Sided struct {
	Version string        `json:"version"`
	Bad     bool          `json:"bad"`             // expected to have it
	Asked   bool          `json:"asked,omitempty"` // nothing is expected: somebody wants to know
	Dir     string        `json:"dir,omitempty"`   // of the checkout that it is compiled from
	Finding Finding       `json:"finding"`
	Error   string        `json:"error,omitempty"`
	Took    time.Duration `json:"took"`
}

// Verdict is the conclusion.
type Verdict string

// The verdicts. Unfinished means that some side could not be tried.
const (
	Reproduced    Verdict = "reproduced"     // there on all bad versions and on no good one
	NotReproduced Verdict = "not reproduced" // absent on a bad version
	NotFixed      Verdict = "not fixed"      // there on a good version
	Absent        Verdict = "absent"         // on all good versions, and no bad one was to be run
	Unfinished    Verdict = "unfinished"
)

// Expected reports whether a verdict is what the reproduction promises.
func (v Verdict) Expected() bool { return v == Reproduced || v == Absent }

// Result is a reproduction that was run.
type Result struct {
	Reproduction
	Sides   []Sided `json:"sides"`
	Verdict Verdict `json:"verdict"`
}

// Passed reports whether the reproduction shows what it promises, and whether
// kubelets that were asked about do not have the issue.
func (r Result) Passed() bool {
	return r.Verdict.Expected() && !slices.ContainsFunc(r.Sides, func(s Sided) bool {
		return s.Asked && (s.Error != "" || s.Finding.Present)
	})
}

// conclude is about the reproduction's own versions.
func conclude(sides []Sided) Verdict {
	sides = slices.DeleteFunc(slices.Clone(sides), func(s Sided) bool { return s.Asked })
	switch {
	case slices.ContainsFunc(sides, func(s Sided) bool { return s.Error != "" }) || len(sides) == 0:
		return Unfinished
	case slices.ContainsFunc(sides, func(s Sided) bool { return s.Bad && !s.Finding.Present }):
		return NotReproduced
	case slices.ContainsFunc(sides, func(s Sided) bool { return !s.Bad && s.Finding.Present }):
		return NotFixed
	case !slices.ContainsFunc(sides, func(s Sided) bool { return s.Bad }):
		return Absent
	}
	return Reproduced
}

// Bench provides the kubelets of a run.
type Bench interface {
	// Side returns a kubelet of a version, for one reproduction. Its close
	// takes away what the reproduction made.
	Side(ctx context.Context, r Reproduction, version string) (*Side, error)
}

// Run runs a reproduction on all its versions at the same time, and on kubelets
// that somebody asks about beside them.
func Run(ctx context.Context, r Reproduction, bench Bench, asked ...kubelets.Kubelet) Result {
	all, sides := r.sides(asked)
	result := Result{Reproduction: r, Sides: sides}
	group := errgroup.Group{} // one side's failure is no reason to stop the others
	if r.Package {
		group.SetLimit(1) // each uses the whole machine
	}
	for i, k := range all {
		group.Go(func() error {
			s := &result.Sides[i]
			start := time.Now()
			finding, err := runSide(ctx, r, bench, k)
			s.Finding, s.Took = finding, time.Since(start)
			if err != nil {
				s.Error = err.Error()
			}
			return nil
		})
	}
	_ = group.Wait() // errors are in the sides
	result.Verdict = conclude(result.Sides)
	return result
}

// sides returns the kubelets that a run is about, and what is known of each
// before it.
func (r Reproduction) sides(asked []kubelets.Kubelet) (all []kubelets.Kubelet, sides []Sided) {
	for _, version := range r.Versions() {
		all = append(all, kubelets.Kubelet{Version: version})
		sides = append(sides, Sided{Version: version, Bad: slices.Contains(r.Bad, version)})
	}
	for _, k := range asked {
		if slices.Contains(r.Versions(), k.Version) {
			continue // it is there anyway
		}
		s := Sided{Version: k.Version, Asked: true}
		if k.Checkout != nil {
			s.Dir = k.Checkout.Dir
		}
		all, sides = append(all, k), append(sides, s)
	}
	return all, sides
}

func runSide(ctx context.Context, r Reproduction, bench Bench, k kubelets.Kubelet) (f Finding, err error) {
	s, err := bench.Side(ctx, r, k.Version)
	if err != nil {
		return f, err
	}
	s.checkout = k.Checkout
	defer func() {
		closed := s.close(context.WithoutCancel(ctx))
		if err == nil && closed != nil {
			err = fmt.Errorf("tidy up: %w", closed)
		}
	}()
	ctx, cancel := context.WithTimeoutCause(ctx, r.Bound, fmt.Errorf("not within %s", r.Bound))
	defer cancel()
	return r.Run(ctx, s)
}

// Find returns the reproductions with these IDs, in their order; without IDs,
// all.
func Find(ids []string) ([]Reproduction, error) {
	all := All()
	if len(ids) == 0 {
		return all, nil
	}
	found := make([]Reproduction, 0, len(ids))
	for _, id := range ids {
		i := slices.IndexFunc(all, func(r Reproduction) bool { return r.ID == strings.TrimPrefix(id, "#") })
		if i < 0 {
			var known []string
			for _, r := range all {
				known = append(known, r.ID)
			}
			return nil, fmt.Errorf("unknown reproduction %q, have %s", id, strings.Join(known, ", "))
		}
		found = append(found, all[i])
	}
	return found, nil
}

// All lists the reproductions: first those that need no cluster.
func All() []Reproduction {
	return []Reproduction{
		lazyHealthClient(), idleDeadlock(), lostHealthStream(),
		unimplementedHealth(), duplicateDevices(), attachDuringUnprepare(), unprepareInUse(),
		stuckAfterFailedPrepare(), expiryNotPushed(), terminatingWithoutDriver(),
		noHealthForTemplates(), noHealthForNames(), fixedHealthTimeout(), oldEndpoint(),
		invertedErrorLabel(), slicesAfterKill(), lostCDISpec(),
	}
}

func issue(n string) string { return "https://github.com/kubernetes/kubernetes/issues/" + n }
func pull(n string) string  { return "https://github.com/kubernetes/kubernetes/pull/" + n }
