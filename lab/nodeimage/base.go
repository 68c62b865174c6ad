package nodeimage

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/dra-lab/dra-lab/lab/internal/ui"
)

// The node's entry point, its containerd configuration and its units are
// kind's own. They belong to the version of kind that go.mod requires.
const (
	kindModule  = "sigs.k8s.io/kind"
	kindVersion = "v0.33.0"
)

//go:embed files/containerd-limits.conf
var containerdLimits string

// baseStep makes what kind adds to Debian: its files, from its Go module, with
// the units that a node runs enabled and with containerd's unit and defaults
// adjusted so that they work on restricted hosts, too. The output is laid over
// the root file system.
func baseStep(tools goTools, containerd step, containerdDir string) step {
	return step{
		name:   "base",
		title:  "adding kind's base files",
		inputs: []string{kindModule, kindVersion, containerdLimits, containerd.key(), "3"},
		make: func(ctx context.Context, out string, _ *ui.Step) error {
			dir, err := work(out)
			if err != nil {
				return err
			}
			kind, err := tools.module(ctx, dir, kindModule, kindVersion)
			if err != nil {
				return err
			}
			if err := copyKindFiles(filepath.Join(kind.Dir, "images/base/files"), out); err != nil {
				return fmt.Errorf("copy kind's base files: %w", err)
			}
			if err := tolerantContainerd(out); err != nil {
				return err
			}
			if err := enableUnits(out, "kubelet", "containerd", "undo-mount-hacks"); err != nil {
				return err
			}
			return containerSpec(ctx, filepath.Join(containerdDir, "ctr"), out)
		},
	}
}

// copyKindFiles copies the tree of kind's base files: scripts executable, all
// else readable.
func copyKindFiles(from, to string) error {
	return filepath.WalkDir(from, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		rel, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		mode := fs.FileMode(0o644)
		if dir := filepath.Dir(rel); dir == "usr/local/bin" || dir == "kind/bin" {
			mode = 0o755
		}
		return copyFile(path, filepath.Join(to, rel), mode)
	})
}

// tolerantContainerd moves what needs CAP_SYS_RESOURCE out of containerd's
// unit into a drop-in that may fail, and tells containerd to keep the OOM
// scores of containers in the range that it may set. With containerd itself at
// -999, as on ordinary hosts, that range is everything Kubernetes asks for.
func tolerantContainerd(root string) error {
	unit := filepath.Join(root, "etc/systemd/system/containerd.service")
	data, err := os.ReadFile(unit)
	if err != nil {
		return err
	}
	if err := writeFile(unit, withoutLimits(data), 0o644); err != nil {
		return err
	}
	dropIn := filepath.Join(root, "etc/systemd/system/containerd.service.d/10-limits.conf")
	if err := writeFile(dropIn, []byte(containerdLimits), 0o644); err != nil {
		return err
	}
	config := filepath.Join(root, containerdConfig)
	data, err = os.ReadFile(config)
	if err != nil {
		return err
	}
	tolerant := bytes.Replace(data,
		[]byte("restrict_oom_score_adj = false"), []byte("restrict_oom_score_adj = true"), 1)
	if bytes.Equal(tolerant, data) {
		return errors.New("kind's containerd configuration does not set restrict_oom_score_adj")
	}
	return writeFile(config, tolerant, 0o644)
}

const containerdConfig = "etc/containerd/config.toml"

// withoutLimits returns a systemd unit without the settings that only a
// process with CAP_SYS_RESOURCE may make.
func withoutLimits(unit []byte) []byte {
	var out []byte
	for line := range bytes.Lines(unit) {
		if bytes.HasPrefix(line, []byte("Limit")) || bytes.HasPrefix(line, []byte("OOMScoreAdjust=")) {
			continue
		}
		out = append(out, line...)
	}
	return out
}

// withSandboxImage returns containerd's configuration with another image for
// the process that holds a Pod's namespaces: the one that is in the node.
func withSandboxImage(config []byte, image string) ([]byte, error) {
	setting := regexp.MustCompile(`(?m)^(\s*sandbox_image\s*=\s*)".*"$`)
	if !setting.Match(config) {
		return nil, errors.New("kind's containerd configuration does not set sandbox_image")
	}
	return setting.ReplaceAll(config, []byte(`${1}"`+image+`"`)), nil
}

// enableUnits does what "systemctl enable" does for units wanted by
// multi-user.target.
func enableUnits(root string, units ...string) error {
	dir := filepath.Join(root, "etc/systemd/system/multi-user.target.wants")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, unit := range units {
		unit += ".service"
		if err := os.Symlink("/etc/systemd/system/"+unit, filepath.Join(dir, unit)); err != nil {
			return fmt.Errorf("enable unit %q: %w", unit, err)
		}
	}
	// kubeadm's packages would bring this directory; without it the kubelet complains.
	return os.MkdirAll(filepath.Join(root, "etc/kubernetes/manifests"), 0o755)
}

// containerSpec writes the OCI spec that containers in the node start from:
// containerd's default with kind's hook, and without limits of its own.
func containerSpec(ctx context.Context, ctr, root string) error {
	out, err := run(ctx, exec.CommandContext(ctx, ctr, "oci", "spec"), nil)
	if err != nil {
		return err
	}
	spec, err := nodeSpec([]byte(out))
	if err != nil {
		return fmt.Errorf("derive the base spec of containers: %w", err)
	}
	return writeFile(filepath.Join(root, "etc/containerd/cri-base.json"), spec, 0o644)
}

// nodeSpec changes an OCI runtime spec for containers inside a node.
func nodeSpec(defaults []byte) ([]byte, error) {
	var spec map[string]any
	if err := json.Unmarshal(defaults, &spec); err != nil {
		return nil, err
	}
	process, ok := spec["process"].(map[string]any)
	if !ok {
		return nil, errors.New("containerd's default spec has no process")
	}
	delete(process, "rlimits")
	spec["hooks"] = map[string]any{
		"createContainer": []any{map[string]any{"path": "/kind/bin/mount-product-files.sh"}},
	}
	return json.MarshalIndent(spec, "", "\t")
}

// imageTag returns the tag of an image reference, "" if it has none.
func imageTag(ref string) string {
	ref, _, _ = strings.Cut(ref, "@")
	i := strings.LastIndexByte(ref, ':')
	if i < 0 || strings.Contains(ref[i:], "/") {
		return ""
	}
	return ref[i+1:]
}
