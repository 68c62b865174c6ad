package cdi

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	specs "tags.cncf.io/container-device-interface/specs-go"

	"github.com/dra-lab/dra-lab/driver/api"
)

// extension tells runtimes how to read a file. JSON, because it is the quicker
// of the two that they know.
const extension = ".json"

// temporary is appended while a file is written. No runtime takes such a name
// for a spec.
const temporary = ".tmp"

// Dir is the directory where the runtime looks for specs. It is shared with
// other drivers; only files with this driver's prefix are ever touched. It is
// safe for concurrent use on different claims.
type Dir struct{ path, kind string }

// NewDir uses the directory at path, which need not exist yet.
func NewDir(path string) *Dir { return NewKindDir(path, api.CDIKind) }

// NewKindDir is NewDir for specs of another kind than api.CDIKind.
func NewKindDir(path, kind string) *Dir { return &Dir{path: path, kind: kind} }

// prefix begins the names of the driver's files, as CDI recommends for specs
// that come and go: vendor-class_id.
func (d *Dir) prefix() string {
	return strings.ReplaceAll(d.kind, "/", "-") + "_"
}

// Path is where the spec of a claim lies.
func (d *Dir) Path(claimUID string) string {
	return filepath.Join(d.path, d.prefix()+claimUID+extension)
}

// Write puts the spec of a claim in place, whole, over any older one; one that
// is just like it may stay. It does not wait for the disk: the files are made
// anew when the driver starts.
func (d *Dir) Write(claimUID string, spec *specs.Spec) error {
	data, err := json.Marshal(spec)
	if err != nil {
		return fmt.Errorf("encode CDI spec of claim %s: %w", claimUID, err)
	}
	name := d.Path(claimUID)
	// A driver that starts writes the specs of all claims, and mostly finds them:
	// reading takes a fifth of the time.
	if have, err := os.ReadFile(name); err == nil && bytes.Equal(have, data) {
		return nil
	}
	tmp := name + temporary
	err = os.WriteFile(tmp, data, 0o644)
	if errors.Is(err, fs.ErrNotExist) {
		if err := os.MkdirAll(d.path, 0o755); err != nil {
			return fmt.Errorf("write CDI spec: %w", err)
		}
		err = os.WriteFile(tmp, data, 0o644)
	}
	if err == nil {
		err = os.Rename(tmp, name)
	}
	if err != nil {
		return fmt.Errorf("write CDI spec: %w", errors.Join(err, os.Remove(tmp)))
	}
	return nil
}

// Remove takes the spec of a claim away, and what an interrupted Write left of
// it. A missing one is not an error.
func (d *Dir) Remove(claimUID string) error {
	name := d.Path(claimUID)
	for _, file := range []string{name, name + temporary} {
		if err := os.Remove(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove CDI spec: %w", err)
		}
	}
	return nil
}

// Claims lists, in order, the claims that have a spec or part of one.
func (d *Dir) Claims() ([]string, error) {
	entries, err := os.ReadDir(d.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list CDI specs: %w", err)
	}
	var uids []string
	for _, e := range entries {
		rest, ours := strings.CutPrefix(strings.TrimSuffix(e.Name(), temporary), d.prefix())
		uid, spec := strings.CutSuffix(rest, extension)
		if ours && spec {
			uids = append(uids, uid)
		}
	}
	slices.Sort(uids)
	return slices.Compact(uids), nil
}
