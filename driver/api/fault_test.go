package api_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dra-lab/dra-lab/driver/api"
)

func TestFaultFlaps(t *testing.T) {
	since := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	until := since.Add(7 * time.Second)
	f := api.Fault{Since: since, Until: &until, Flap: 2 * time.Second}
	for _, tc := range []struct {
		after  time.Duration
		on     bool
		active bool
		next   time.Duration // 0: never
	}{
		{-time.Second, true, true, 2 * time.Second}, // the clocks of node and lab differ
		{0, true, true, 2 * time.Second},
		{1999 * time.Millisecond, true, true, 2 * time.Second},
		{2 * time.Second, false, true, 4 * time.Second},
		{4 * time.Second, true, true, 6 * time.Second},
		{6 * time.Second, false, true, 7 * time.Second},
		{7 * time.Second, false, false, 0},
		{8 * time.Second, false, false, 0},
	} {
		at := since.Add(tc.after)
		next := time.Time{}
		if tc.next != 0 {
			next = since.Add(tc.next)
		}
		if on, active := f.On(at), f.Active(at); on != tc.on || active != tc.active {
			t.Errorf("after %s it is on: %v, active: %v", tc.after, on, active)
		}
		if got := f.Next(at); !got.Equal(next) {
			t.Errorf("after %s the next change is after %s, want %s", tc.after, got.Sub(since), tc.next)
		}
	}
	steady := api.Fault{Since: since}
	if !steady.On(since.Add(time.Hour)) || !steady.Next(since).IsZero() {
		t.Error("a fault that does not flap changes")
	}
}

func TestFaultsOfATarget(t *testing.T) {
	for _, kind := range api.FaultKinds() {
		f := api.Fault{ID: "a", Kind: kind, Code: 2}
		if f.Validate() != nil {
			f.Code = 0
		}
		if kind == api.FaultDriverKill {
			f.Step = api.KillSteps()[3]
		}
		data, err := api.Faults{Faults: []api.Fault{f}}.Encode()
		if err != nil {
			t.Fatal(err)
		}
		for _, target := range []api.FaultTarget{api.TargetGPU, api.TargetDriver, api.TargetNode} {
			_, err := api.ParseFaultsOf(target, data)
			if mine := api.Target(kind) == target; (err == nil) != mine {
				t.Errorf("kind %s of a %s: %v", kind, target, err)
			}
		}
	}
	if api.Target("fire") != "" {
		t.Error("an unknown kind has a target")
	}
}

func TestWhatAKindTakes(t *testing.T) {
	for _, tc := range []struct {
		fault api.Fault
		err   string // "" for none
	}{
		{api.Fault{Kind: api.FaultClockJump, Code: -3600}, ""},
		{api.Fault{Kind: api.FaultClockJump}, "takes -86400 to 86400"},
		{api.Fault{Kind: api.FaultPrepareFails, Times: 3, Flap: time.Second}, ""},
		{api.Fault{Kind: api.FaultPrepareFails, Times: -1}, "-1 times, want 0 to 1000"},
		{api.Fault{Kind: api.FaultPrepareSlow}, "takes 1 to 600"},
		{api.Fault{Kind: api.FaultXID, Code: 79, Times: 1}, "takes no number of times"},
		{api.Fault{Kind: api.FaultXID, Code: 79, Step: "prepare/bound"}, "takes no step"},
		{api.Fault{Kind: api.FaultDriverKill}, `unknown step ""`},
		{api.Fault{Kind: api.FaultDriverKill, Step: "prepare/bound", Times: 2}, ""},
		{api.Fault{Kind: api.FaultSocketLost, Flap: time.Second}, "cannot flap"},
		{api.Fault{Kind: api.FaultNodeReboot, Flap: time.Second}, "cannot flap"},
		{api.Fault{Kind: api.FaultPower, Flap: -time.Second}, "at least 100ms"},
	} {
		tc.fault.ID = "a"
		err := tc.fault.Validate()
		if tc.err == "" && err != nil || tc.err != "" && (err == nil || !strings.Contains(err.Error(), tc.err)) {
			t.Errorf("%+v: %v, want %q", tc.fault, err, tc.err)
		}
	}
	if kinds := api.FaultKinds(); !slices.IsSorted(kinds) || len(kinds) < 30 {
		t.Errorf("kinds are %v", kinds)
	}
}
