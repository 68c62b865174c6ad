package nodeimage

import (
	"strings"
	"testing"

	"github.com/dra-lab/dra-lab/lab/host"
	"github.com/dra-lab/dra-lab/lab/internal/ui"
)

func TestShort(t *testing.T) {
	all := []need{
		{dir: "/cache", bytes: 6 * gigabyte, what: "compiling"},
		{dir: "/modules", bytes: 2 * gigabyte, what: "sources"},
		{dir: "/engine", bytes: 1500 * megabyte, what: "the image"},
	}
	one := func(free uint64) func(string) (filesystem, error) {
		return func(string) (filesystem, error) { return filesystem{id: 1, free: free}, nil }
	}
	// On one disk the needs add up: 9.46 GB.
	if err := short(all, one(10*gigabyte)); err != nil {
		t.Errorf("10 GB free: %v", err)
	}
	err := short(all, one(9*gigabyte))
	if err == nil {
		t.Fatal("9 GB free: fits")
	}
	for _, want := range []string{"9.5 GB", `"/cache"`, "9.0 GB free"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error %q lacks %s", err, want)
		}
	}
	if hint := ui.Hint(err); !strings.Contains(hint, "6.0 GB for compiling") || !strings.Contains(hint, "DRA_LAB_CACHE") {
		t.Errorf("hint is %q", hint)
	}

	// On two, each one counts for itself.
	two := func(dir string) (filesystem, error) {
		if dir == "/engine" {
			return filesystem{id: 2, free: gigabyte}, nil
		}
		return filesystem{id: 1, free: 100 * gigabyte}, nil
	}
	if err := short(all, two); err == nil || !strings.Contains(err.Error(), `"/engine"`) {
		t.Errorf("engine's disk full: %v", err)
	}
}

func TestNeedsFollowWhatIsCompiled(t *testing.T) {
	total := func(what compiling) (sum uint64) {
		for _, n := range needs("/cache", "/modules", "/engine", what) {
			sum += n.bytes
		}
		return sum
	}
	node, kubelet, nothing := total(compilingNode), total(compilingKubelet), total(compilingNothing)
	if node <= kubelet || kubelet <= nothing || nothing == 0 {
		t.Errorf("needs: %d, %d, %d", node, kubelet, nothing)
	}
	// Where the host's checks see room enough, no build is refused for lack of it.
	if node > host.ColdDisk {
		t.Errorf("a build asks for %s, the host's checks for %s", size(node), size(host.ColdDisk))
	}
}

func TestSize(t *testing.T) {
	for bytes, want := range map[uint64]string{700 * megabyte: "700 MB", gigabyte: "1.0 GB", 9685 * megabyte: "9.5 GB"} {
		if got := size(bytes); got != want {
			t.Errorf("size(%d) = %s, want %s", bytes, got, want)
		}
	}
}
