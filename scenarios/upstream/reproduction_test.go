package upstream

import (
	"strings"
	"testing"
)

func TestConclude(t *testing.T) {
	bad := func(present bool) Sided { return Sided{Bad: true, Finding: Finding{Present: present}} }
	good := func(present bool) Sided { return Sided{Finding: Finding{Present: present}} }
	for name, c := range map[string]struct {
		sides []Sided
		want  Verdict
	}{
		"there on bad, absent on good":     {[]Sided{bad(true), good(false)}, Reproduced},
		"there on bad, no good version":    {[]Sided{bad(true), bad(true)}, Reproduced},
		"absent on one bad version":        {[]Sided{bad(true), bad(false), good(false)}, NotReproduced},
		"there on both":                    {[]Sided{bad(true), good(true)}, NotFixed},
		"absent on bad, there on good":     {[]Sided{bad(false), good(true)}, NotReproduced},
		"one side could not be tried":      {[]Sided{bad(true), {Error: "no such kubelet"}}, Unfinished},
		"absent on good, none bad to run":  {[]Sided{good(false), good(false)}, Absent},
		"there on good, none bad to run":   {[]Sided{good(false), good(true)}, NotFixed},
		"nothing was tried, so no verdict": {nil, Unfinished},
	} {
		t.Run(name, func(t *testing.T) {
			if got := conclude(c.sides); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

func TestEveryReproductionIsComplete(t *testing.T) {
	known := map[string]bool{}
	for _, r := range All() {
		if known[r.ID] {
			t.Errorf("%s: twice", r.ID)
		}
		known[r.ID] = true
		if r.Title == "" || r.Observable == "" || len(r.Links) == 0 || len(r.Versions()) == 0 || r.Run == nil || r.Bound <= 0 {
			t.Errorf("%s: incomplete: %+v", r.ID, r)
		}
		if len(r.Bad) == 0 && r.Note == "" {
			t.Errorf("%s: no bad version, and no note says why", r.ID)
		}
		for _, v := range r.Versions() {
			if !strings.HasPrefix(v, "v1.") {
				t.Errorf("%s: version %q", r.ID, v)
			}
		}
	}
	if _, err := Find([]string{"1"}); err == nil {
		t.Error("an unknown ID was found")
	}
}
