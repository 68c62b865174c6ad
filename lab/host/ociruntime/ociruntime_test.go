package ociruntime

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/dra-lab/dra-lab/lab/host/capability"
)

// sysResourceMissing is the bounding set of the hosts that this package is for.
const sysResourceMissing = capability.Set(0x1fffeffffff)

func TestCapabilityFile(t *testing.T) {
	for name, tc := range map[string]struct {
		args []string
		want string
	}{
		"create":                        {[]string{"--root", "/run/exec", "--log-format", "json", "create", "--bundle", "/b", "--pid-file", "/p", "id"}, "/b/config.json"},
		"run, bundle with =":            {[]string{"run", "-bundle=/b", "id"}, "/b/config.json"},
		"create in the bundle":          {[]string{"create", "id"}, "config.json"},
		"short flag":                    {[]string{"create", "-b", "/b", "id"}, "/b/config.json"},
		"exec":                          {[]string{"--root", "/r", "exec", "--process", "/p.json", "--detach", "id"}, "/p.json"},
		"exec of a command line":        {[]string{"exec", "id", "true"}, ""},
		"anything else passes":          {[]string{"--root", "/r", "kill", "--all", "id", "9"}, ""},
		"an id that looks like a verb":  {[]string{"--root", "create", "state", "run"}, ""},
		"no arguments":                  {nil, ""},
		"flag without its value is bad": {[]string{"exec", "--process"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			if got := capabilityFile(tc.args); got != tc.want {
				t.Errorf("capabilityFile(%q) = %q, want %q", tc.args, got, tc.want)
			}
		})
	}
}

// A container's config and an exec's process file lose what the host cannot
// give and nothing else.
func TestRestrict(t *testing.T) {
	for name, tc := range map[string]struct{ in, want string }{
		"config": {
			`{"ociVersion":"1.0.2","process":{"args":["a<b"],"capabilities":{"bounding":["CAP_KILL","CAP_SYS_RESOURCE"],"permitted":["CAP_SYS_RESOURCE"]}},"linux":{"resources":{"memory":{"limit":9223372036854775807}}}}`,
			`{"ociVersion":"1.0.2","process":{"args":["a<b"],"capabilities":{"bounding":["CAP_KILL"],"permitted":[]}},"linux":{"resources":{"memory":{"limit":9223372036854775807}}}}`,
		},
		"process": {
			`{"cwd":"/","capabilities":{"effective":["CAP_SYS_RESOURCE","CAP_BPF","CAP_FUTURE"]}}`,
			`{"cwd":"/","capabilities":{"effective":["CAP_BPF","CAP_FUTURE"]}}`,
		},
		"nothing to take out": {
			`{"process" : {"capabilities":{"bounding":["CAP_KILL"]}}}`,
			`{"process" : {"capabilities":{"bounding":["CAP_KILL"]}}}`,
		},
		"no capabilities": {`{"process":{}}`, `{"process":{}}`},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := restrict([]byte(tc.in), sysResourceMissing)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(decode(t, []byte(tc.want)), decode(t, got)); diff != "" {
				t.Errorf("restrict (-want +got):\n%s", diff)
			}
			if tc.in == tc.want && string(got) != tc.in {
				t.Errorf("rewrote a file that needs no change: %s", got)
			}
		})
	}
}

func decode(t *testing.T, text []byte) any {
	t.Helper()
	var v any
	if err := json.Unmarshal(text, &v); err != nil {
		t.Fatalf("decode %s: %v", text, err)
	}
	return v
}

func TestRestrictRefusesBrokenFiles(t *testing.T) {
	for _, text := range []string{"", "{", "[]", `{} {}`} {
		if _, err := restrict([]byte(text), sysResourceMissing); err == nil {
			t.Errorf("restrict(%q) went through", text)
		}
	}
}

// The file is replaced whole: same name and mode, nothing left beside it.
func TestRestrictFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "config.json")
	if err := os.WriteFile(path, []byte(`{"process":{"capabilities":{"bounding":["CAP_SYS_RESOURCE"]}}}`), 0o640); err != nil {
		t.Fatal(err)
	}
	if err := restrictFile(path, sysResourceMissing); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := string(text), "{\"process\":{\"capabilities\":{\"bounding\":[]}}}\n"; got != want {
		t.Errorf("file = %q, want %q", got, want)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if len(entries) != 1 || info.Mode().Perm() != 0o640 {
		t.Errorf("%d entries, mode %v; want one, 0640", len(entries), info.Mode())
	}
}

func TestRun(t *testing.T) {
	gone := errors.New("gone")
	var argv []string
	exec := func(path string, a []string) error { argv = append([]string{path}, a...); return gone }

	// A call that sets no capabilities reaches the runtime as it is.
	err := run([]string{"/sbin/runc", "--root", "/r", "state", "id"}, exec)
	if !errors.Is(err, gone) {
		t.Errorf("run = %v, want %v", err, gone)
	}
	if diff := cmp.Diff([]string{"/sbin/runc", "/sbin/runc", "--root", "/r", "state", "id"}, argv); diff != "" {
		t.Errorf("argv (-want +got):\n%s", diff)
	}

	// A bundle that cannot be read never reaches the runtime.
	argv = nil
	if err := run([]string{"/sbin/runc", "create", "--bundle", filepath.Join(t.TempDir(), "no")}, exec); !errors.Is(err, os.ErrNotExist) || argv != nil {
		t.Errorf("run = %v with argv %q, want a missing file and no exec", err, argv)
	}
	if err := run(nil, exec); err == nil {
		t.Error("run without a runtime went through")
	}
}
