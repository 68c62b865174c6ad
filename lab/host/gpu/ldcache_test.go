package gpu

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// loaderCache makes a cache of libraries for this machine, as ldconfig writes
// it; old puts the table before it that compatible files have.
func loaderCache(old bool, libraries ...cached) []byte {
	var text, entries []byte
	base := uint32(cacheHeader + cacheEntry*len(libraries))
	add := func(s string) uint32 {
		at := base + uint32(len(text))
		text = append(append(text, s...), 0)
		return at
	}
	for _, l := range libraries {
		flags := abi("amd64")
		if strings.Contains(l.path, "i386") {
			flags = 3
		} else if onARM() {
			flags = abi("arm64")
		}
		entries = binary.LittleEndian.AppendUint32(entries, flags)
		entries = binary.LittleEndian.AppendUint32(entries, add(l.soname))
		entries = binary.LittleEndian.AppendUint32(entries, add(l.path))
		entries = append(entries, make([]byte, 12)...)
	}
	header := []byte(cacheMagic)
	header = binary.LittleEndian.AppendUint32(header, uint32(len(libraries)))
	header = binary.LittleEndian.AppendUint32(header, uint32(len(text)))
	header = append(header, make([]byte, cacheHeader-len(header))...)
	var out []byte
	if old {
		out = append([]byte(oldCacheMagic), 0)
		out = binary.LittleEndian.AppendUint32(out, 1)
		out = append(out, make([]byte, oldEntry+4)...) // aligned to 8
	}
	return slices.Concat(out, header, entries, text)
}

func onARM() bool { return abi("arm64") == wantedABI() }

func TestParseCache(t *testing.T) {
	want := []cached{{"libcuda.so.1", "/usr/lib/x/libcuda.so.1"}, {"libm.so.6", "/lib/libm.so.6"}}
	for _, old := range []bool{false, true} {
		data := loaderCache(old, want[0], cached{"libcuda.so.1", "/usr/lib/i386/libcuda.so.1"}, want[1])
		got, err := parseCache(data)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got, cmp.AllowUnexported(cached{})); diff != "" {
			t.Errorf("old %t (-want +got):\n%s", old, diff)
		}
		// Whatever is cut off, it says so or finds less.
		for n := range data {
			if got, err := parseCache(data[:n]); err == nil && len(got) > len(want) {
				t.Errorf("%d bytes of %d give %v", n, len(data), got)
			}
		}
	}
}

// The judge is the loader's own tool.
func TestParseCacheOfThisMachine(t *testing.T) {
	data, err := os.ReadFile("/etc/ld.so.cache")
	if errors.Is(err, os.ErrNotExist) {
		t.Skip("this machine has no loader cache: NOT TESTED against ldconfig")
	}
	if err != nil {
		t.Fatal(err)
	}
	entries, err := parseCache(data)
	if err != nil {
		t.Fatal(err)
	}
	program := "/sbin/ldconfig"
	out, err := exec.Command(program, "-p").Output()
	if err != nil {
		t.Skipf("%s -p: %v: NOT TESTED against ldconfig", program, err)
	}
	got := map[cached]bool{}
	for _, e := range entries {
		got[e] = true
	}
	want := map[cached]bool{}
	for line := range bytes.Lines(out) {
		name, path, ok := strings.Cut(strings.TrimSpace(string(line)), " => ")
		soname, kind, _ := strings.Cut(name, " ")
		if ok && (strings.Contains(kind, "x86-64") || strings.Contains(kind, "AArch64")) {
			want[cached{soname, path}] = true
		}
	}
	if len(want) == 0 {
		t.Fatal("ldconfig lists nothing")
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(cached{})); diff != "" {
		t.Errorf("libraries (-ldconfig +parsed):\n%s", diff)
	}
}

// The loader cache leads to a directory that nobody would guess.
func TestFindLibrariesByCache(t *testing.T) {
	root := t.TempDir()
	put := func(path string, data []byte) {
		path = filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	put("/odd/libcuda.so.570.1", nil)
	put("/odd/libnvidia-ml.so.570.1", nil)
	// Absolute, as packages make them: meant from the driver root.
	if err := os.Symlink("/odd/libcuda.so.570.1", filepath.Join(root, "odd/libcuda.so.1")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("loop", filepath.Join(root, "odd/loop")); err != nil {
		t.Fatal(err)
	}
	put("/etc/ld.so.cache", loaderCache(false, cached{"libcuda.so.1", "/odd/libcuda.so.1"},
		cached{"libnvidia-ml.so.1", "/odd/loop"}, cached{"libnvidia-ml.so.1", "/odd/libnvidia-ml.so.1"}))
	found, missing, others := tree(root).findLibraries("570.1")
	want := []Library{{"libnvidia-ml.so.1", "/odd/libnvidia-ml.so.570.1"}, {"libcuda.so.1", "/odd/libcuda.so.570.1"}}
	if diff := cmp.Diff(want, found); diff != "" || len(missing)+len(others) > 0 {
		t.Errorf("missing %v, others %v, found (-want +got):\n%s", missing, others, diff)
	}
}

func FuzzParseCache(f *testing.F) {
	f.Add(loaderCache(false, cached{"a", "/a"}))
	f.Add(loaderCache(true, cached{"a", "/a"}))
	f.Fuzz(func(t *testing.T, data []byte) {
		entries, err := parseCache(data)
		if err != nil && entries != nil {
			t.Error("entries and an error")
		}
	})
}

func FuzzParseInformation(f *testing.F) {
	f.Add("Model: x\nDevice Minor: 0\n")
	f.Fuzz(func(t *testing.T, text string) {
		if g, ok := parseInformation(text, "0000:17:00.0"); ok && (g.Minor < 0 || g.Minor > 255) {
			t.Errorf("minor %d", g.Minor)
		}
	})
}
