package capability

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParseBounding(t *testing.T) {
	for name, tc := range map[string]struct {
		status  string
		missing []string
		fails   bool
	}{
		"all of them":    {status: "Name:\tx\nCapBnd:\t000001ffffffffff\n"},
		"one short":      {status: "CapBnd:\t000001fffeffffff\n", missing: []string{"CAP_SYS_RESOURCE"}},
		"two short":      {status: "CapBnd:\t000001fffedfffff\n", missing: []string{"CAP_SYS_ADMIN", "CAP_SYS_RESOURCE"}},
		"no such line":   {status: "CapEff:\t0\n", fails: true},
		"no hexadecimal": {status: "CapBnd:\tnone\n", fails: true},
	} {
		t.Run(name, func(t *testing.T) {
			set, err := parseBounding(strings.NewReader(tc.status))
			if (err != nil) != tc.fails {
				t.Fatalf("parseBounding error = %v, want one: %t", err, tc.fails)
			}
			if tc.fails {
				return
			}
			if diff := cmp.Diff(tc.missing, set.Missing(40)); diff != "" {
				t.Errorf("Missing (-want +got):\n%s", diff)
			}
		})
	}
}

// A kernel that knows fewer capabilities does not lack the newer ones.
func TestMissingStopsAtLast(t *testing.T) {
	if got := Set(1<<37 - 1).Missing(36); got != nil {
		t.Errorf("Missing(36) = %v, want none", got)
	}
}

func TestHas(t *testing.T) {
	set := Set(1 << 21)
	if !set.Has("CAP_SYS_ADMIN") || set.Has("CAP_SYS_RESOURCE") {
		t.Errorf("Has is wrong for %b", set)
	}
	if !set.Has("CAP_OF_TOMORROW") {
		t.Error("an unknown capability counts as missing; the kernel should judge it")
	}
}

// On the machine that runs the test there is a bounding set.
func TestBounding(t *testing.T) {
	if _, err := Bounding(); err != nil {
		t.Error(err)
	}
	if last, err := Last(); err != nil || last < 30 {
		t.Errorf("Last = %d, %v", last, err)
	}
}
