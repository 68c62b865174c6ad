package timeline

import (
	"os"
	"path/filepath"
	"testing"
)

// What scenarios keep is found by its name, and goes with the last lab; what
// else the lab remembers stays.
func TestKeptTimelinesGoTogether(t *testing.T) {
	state := filepath.Join(t.TempDir(), "state")
	t.Setenv("DRA_LAB_STATE", state)
	if err := RemoveKept(); err != nil {
		t.Errorf("remove none: %v", err)
	}
	other := filepath.Join(state, "clusters")
	if err := os.MkdirAll(other, 0o755); err != nil {
		t.Fatal(err)
	}
	var paths []string
	for _, name := range []string{"training", Last} {
		path, err := Kept(name)
		if err != nil {
			t.Fatal(err)
		}
		if err := newTimeline(name, "", nil, 0).Save(path); err != nil {
			t.Fatal(err)
		}
		paths = append(paths, path)
	}
	if err := RemoveKept(); err != nil {
		t.Fatal(err)
	}
	for _, path := range paths {
		if _, err := os.Stat(path); !os.IsNotExist(err) {
			t.Errorf("%s is still there: %v", path, err)
		}
	}
	if _, err := os.Stat(other); err != nil {
		t.Errorf("another directory of the lab went too: %v", err)
	}
}
