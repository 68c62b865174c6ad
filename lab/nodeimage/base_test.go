package nodeimage

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// The base files come from the kind that the lab creates clusters with.
func TestKindVersionIsTheLabs(t *testing.T) {
	goMod, err := os.ReadFile("../../go.mod")
	if err != nil {
		t.Fatal(err)
	}
	if want := kindModule + " " + kindVersion; !regexp.MustCompile(`(?m)^\s*` + regexp.QuoteMeta(want) + `$`).Match(goMod) {
		t.Errorf("go.mod does not require %s", want)
	}
	if kindReleases()[kindDefault()] == "" {
		t.Errorf("no digest for kind's default image, %s", kindDefault())
	}
}

// On kind's own files: what restricted hosts refuse is out of the unit, and
// the settings that the recipe changes are there to be changed.
func TestTolerantContainerd(t *testing.T) {
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", kindModule).Output()
	if err != nil {
		t.Skipf("SKIPPED: kind's module is not at hand: %v", err)
	}
	root := t.TempDir()
	if err := copyKindFiles(filepath.Join(strings.TrimSpace(string(out)), "images/base/files"), root); err != nil {
		t.Fatal(err)
	}
	if err := tolerantContainerd(root); err != nil {
		t.Fatal(err)
	}
	unit, err := os.ReadFile(filepath.Join(root, "etc/systemd/system/containerd.service"))
	if err != nil {
		t.Fatal(err)
	}
	if regexp.MustCompile(`(?m)^(Limit|OOMScoreAdjust)`).Match(unit) {
		t.Errorf("the unit still asks for limits:\n%s", unit)
	}
	if !bytes.Contains(unit, []byte("ExecStart=/usr/local/bin/containerd\n")) {
		t.Errorf("the unit does not start containerd:\n%s", unit)
	}
	config, err := os.ReadFile(filepath.Join(root, containerdConfig))
	if err != nil {
		t.Fatal(err)
	}
	config, err = withSandboxImage(config, "registry.k8s.io/pause:3.10.2")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`sandbox_image = "registry.k8s.io/pause:3.10.2"`, "restrict_oom_score_adj = true"} {
		if strings.Count(string(config), want) != 1 {
			t.Errorf("containerd's configuration lacks %s:\n%s", want, config)
		}
	}
	info, err := os.Stat(filepath.Join(root, "usr/local/bin/entrypoint"))
	if err != nil || info.Mode().Perm() != 0o755 {
		t.Errorf("entry point: %v, %v", info.Mode(), err)
	}
}

func TestWithoutLimits(t *testing.T) {
	unit := "[Service]\nExecStart=/x\nLimitNOFILE=infinity\n# LimitCORE stays in a comment\nTasksMax=infinity\nOOMScoreAdjust=-999\n"
	want := "[Service]\nExecStart=/x\n# LimitCORE stays in a comment\nTasksMax=infinity\n"
	if diff := cmp.Diff(want, string(withoutLimits([]byte(unit)))); diff != "" {
		t.Errorf("unit (-want +got):\n%s", diff)
	}
}

func TestWithSandboxImageWantsTheSetting(t *testing.T) {
	if got, err := withSandboxImage([]byte("version = 4\n"), "x"); err == nil {
		t.Errorf("accepted: %s", got)
	}
}

func TestNodeSpec(t *testing.T) {
	got, err := nodeSpec([]byte(`{"ociVersion":"1.3.0","process":{"cwd":"/","rlimits":[{"type":"RLIMIT_NOFILE"}]},"linux":{}}`))
	if err != nil {
		t.Fatal(err)
	}
	var spec map[string]any
	if err := json.Unmarshal(got, &spec); err != nil {
		t.Fatal(err)
	}
	want := map[string]any{
		"ociVersion": "1.3.0",
		"process":    map[string]any{"cwd": "/"},
		"linux":      map[string]any{},
		"hooks": map[string]any{
			"createContainer": []any{map[string]any{"path": "/kind/bin/mount-product-files.sh"}},
		},
	}
	if diff := cmp.Diff(want, spec); diff != "" {
		t.Errorf("spec (-want +got):\n%s", diff)
	}
	if _, err := nodeSpec([]byte(`{}`)); err == nil {
		t.Error("a spec without a process is accepted")
	}
}
