package workload

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestLineSurvivesItsEncoding(t *testing.T) {
	want := Line{
		Time: time.Date(2026, 1, 2, 3, 4, 5, 678, time.UTC), Event: EventDone, Rank: 1, World: 2, Step: 600,
		Loss: 0.25, FirstLoss: 1.5, Accuracy: 0.75, Weights: "abc", Devices: "gpu-0=GPU-1", Detail: "a \"quote\"",
	}
	data, err := want.Encode()
	if err != nil {
		t.Fatal(err)
	}
	got, ok := Parse(data)
	if !ok {
		t.Fatalf("Parse(%s) is no event", data)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("line changed (-want +got):\n%s", diff)
	}
}

func TestEncodeRefusesAnOverlongLine(t *testing.T) {
	if _, err := (Line{Event: EventFailed, Detail: strings.Repeat("x", maxLineBytes)}).Encode(); err == nil {
		t.Error("Encode accepted a line over the limit")
	}
}

func TestParsePassesOverOtherOutput(t *testing.T) {
	for name, line := range map[string]string{
		"empty":             "",
		"text":              "hello",
		"other JSON":        `{"report":{"time":"2026-01-02T03:04:05Z","step":"prepared"}}`,
		"cut off":           `{"workload":{"time":"2026-01-02T03:04:05Z","event":"do`,
		"without event":     `{"workload":{"time":"2026-01-02T03:04:05Z"}}`,
		"without time":      `{"workload":{"event":"done"}}`,
		"type mismatch":     `{"workload":{"time":"2026-01-02T03:04:05Z","event":"done","step":"many"}}`,
		"longer than a log": `{"workload":{"event":"` + strings.Repeat("x", maxLineBytes) + `"}}`,
	} {
		if got, ok := Parse([]byte(line)); ok {
			t.Errorf("%s: Parse gave %+v, want no event", name, got)
		}
	}
}
