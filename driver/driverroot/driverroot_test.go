package driverroot_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dra-lab/dra-lab/driver/driverroot"
)

func TestReadNode(t *testing.T) {
	if n, err := driverroot.ReadNode("/dev/null"); err != nil || n != (driverroot.Node{Major: 1, Minor: 3}) {
		t.Errorf("/dev/null is %+v, %v", n, err)
	}
	path := filepath.Join(t.TempDir(), "node")
	for text, want := range map[string]driverroot.Node{
		"c 195 0\n":              {Major: 195, StandIn: true},
		"c 511 1":                {Major: 511, Minor: 1, StandIn: true},
		"c 4095 1048575":         {Major: 4095, Minor: 1<<20 - 1, StandIn: true},
		"":                       {},
		"b 8 0":                  {},
		"c 0 0":                  {},
		"c 4096 0":               {},
		"c 1 1048576":            {},
		"c 195 -1":               {},
		"c 195 0 0":              {},
		strings.Repeat("c ", 40): {},
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := driverroot.ReadNode(path)
		if got != want || (want == driverroot.Node{}) != errors.Is(err, driverroot.ErrNotDevice) {
			t.Errorf("%q is %+v, %v; want %+v", text, got, err, want)
		}
	}
	if _, err := driverroot.ReadNode(t.TempDir()); !errors.Is(err, driverroot.ErrNotDevice) {
		t.Errorf("a directory: %v", err)
	}
	if _, err := driverroot.ReadNode(filepath.Join(path, "none")); err == nil || errors.Is(err, driverroot.ErrNotDevice) {
		t.Errorf("nothing: %v", err)
	}
}
