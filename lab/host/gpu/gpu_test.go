package gpu_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/dra-lab/dra-lab/lab/host/gpu"
	"github.com/dra-lab/dra-lab/lab/host/gpu/gputest"
)

var update = flag.Bool("update", false, "write the golden files")

// Each case is a driver root with one fault, and what is made of it. Run with
// -update after a change that is meant, and read the difference.
func TestJudgeGolden(t *testing.T) {
	cases, err := filepath.Glob("testdata/cases/*.txtar")
	if err != nil || len(cases) < 12 {
		t.Fatalf("%d cases, %v", len(cases), err)
	}
	for _, file := range cases {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			change, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			// What is wrong may be with the engine instead.
			e := gpu.Engine{Rootless: bytes.Contains(change, []byte("\nengine rootless\n")), Remote: bytes.Contains(change, []byte("\nengine remote\n"))}
			facts := gpu.Look(t.Context(), gputest.Root(t, change))
			got := describe(gpu.Judge(facts, e, "sudo "))
			// What was decided survives the way through JSON.
			data, err := json.Marshal(facts)
			if err != nil {
				t.Fatal(err)
			}
			var back gpu.Facts
			if err := json.Unmarshal(data, &back); err != nil {
				t.Fatal(err)
			}
			if again := describe(gpu.Judge(back, e, "sudo ")); again != got {
				t.Errorf("from JSON:\n%s", cmp.Diff(got, again))
			}
			golden := strings.TrimSuffix(file, ".txtar") + ".golden"
			if *update {
				if err := os.WriteFile(golden, []byte(got), 0o644); err != nil { //nolint:gosec // a test file
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", golden, diff)
			}
		})
	}
}

func describe(v gpu.Verdict) string {
	var b strings.Builder
	switch {
	case v.Absent:
		b.WriteString("no GPU here\n")
	case len(v.GPUs) == 0:
		b.WriteString("nothing is passed through\n")
	}
	for _, g := range v.GPUs {
		fmt.Fprintf(&b, "passes %s as %s: %s %s\n", g.BusID, g.Node(), g.Model, g.UUID)
	}
	for _, f := range v.Findings {
		kind := "note"
		if f.Stops {
			kind = "STOP"
		}
		fmt.Fprintf(&b, "\n%s: %s\n  means: %s\n  cure: %s\n", kind, f.Found, f.Means, f.Cure)
	}
	return b.String()
}

// This machine has a root, too: nothing there may make it fail, and nobody's
// file passes for a device.
func TestLookAtThisMachine(t *testing.T) {
	f := gpu.Look(t.Context(), "")
	for path, n := range f.Nodes {
		if n.StandIn {
			t.Errorf("%s is a file", path)
		}
	}
	v := gpu.Judge(f, gpu.Engine{}, "")
	if v.Absent != (len(v.GPUs) == 0 && len(v.Findings) == 0) {
		t.Errorf("verdict %+v", v)
	}
}

func TestFindingsHaveACure(t *testing.T) {
	files, err := filepath.Glob("testdata/cases/*.golden")
	if err != nil || len(files) < 12 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			if _, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(value) == "" {
				t.Errorf("%s: %q says nothing", file, line)
			}
		}
	}
}
