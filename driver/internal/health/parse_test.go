package health_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/dra-lab/dra-lab/driver/api"
	"github.com/dra-lab/dra-lab/driver/internal/device"
	"github.com/dra-lab/dra-lab/driver/internal/health"
)

func TestParseXIDs(t *testing.T) {
	for in, want := range map[string][]uint64{
		"default": health.DefaultRules().IgnoredXIDs,
		"none":    {},
		"13":      {13},
		"79,13":   {79, 13},
	} {
		got, err := health.ParseXIDs(in)
		if err != nil {
			t.Error(err)
		}
		if diff := cmp.Diff(want, got); diff != "" || got == nil {
			t.Errorf("%q (-want +got):\n%s", in, diff)
		}
	}
	for _, in := range []string{"", "13,", "13,13", "0", "-1", "1e3", "10000", "none,13", "13 31"} {
		if got, err := health.ParseXIDs(in); err == nil || !strings.Contains(err.Error(), "want each number") {
			t.Errorf("%q: got %v, %v", in, got, err)
		}
	}
}

func TestParseEffects(t *testing.T) {
	got, err := health.ParseEffects("temperature=NoExecute,xid=NoSchedule,leaked=None")
	if err != nil {
		t.Fatal(err)
	}
	want := map[health.Condition]health.Effect{health.Temperature: health.NoExecute, health.XID: health.NoSchedule, health.Leaked: health.NoTaint}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got, err := health.ParseEffects("default"); err != nil || len(got) > 0 {
		t.Errorf("default: %v, %v", got, err)
	}
	for in, want := range map[string]string{
		"":                              `condition ""`,
		"humidity=NoSchedule":           `condition "humidity", want one of [ecc fabric gpu-lost leaked pcie-generation pcie-width power recovery temperature unreadable xid]`,
		"xid":                           `effect ""`,
		"xid=noschedule":                `effect "noschedule"`,
		"xid=NoSchedule,xid=NoSchedule": "twice",
		"xid=NoSchedule,":               `condition ""`,
	} {
		if got, err := health.ParseEffects(in); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, %v, want an error with %q", in, got, err, want)
		}
	}
}

func TestXIDsThatAreIgnoredAreConfigurable(t *testing.T) {
	xids, err := health.ParseXIDs("79")
	if err != nil {
		t.Fatal(err)
	}
	h := begin(t)
	h.machine = health.NewMachine(health.Rules{IgnoredXIDs: xids}, device.GPU{Name: "gpu-0"})
	h.reads(good()).
		event(device.EventXID, 79).is(api.HealthHealthy, "").
		event(device.EventXID, 13).is(api.HealthUnhealthy, "XID 13")
	h = begin(t)
	h.machine = health.NewMachine(health.Rules{IgnoredXIDs: []uint64{}}, device.GPU{Name: "gpu-0"})
	h.reads(good()).event(device.EventXID, 31).is(api.HealthUnhealthy, "XID 31")
}

func TestConditionWithoutATaintIsStillTold(t *testing.T) {
	s := begin(t).reads(good()).event(device.EventXID, 79).is(api.HealthUnhealthy, "XID 79").machine.Status()
	rules := health.Rules{Effects: map[health.Condition]health.Effect{health.XID: health.NoTaint}}
	if got := rules.Taints(s); len(got) > 0 {
		t.Errorf("taints are %v", got)
	}
}
