package cluster

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/dra-lab/dra-lab/lab/host"
)

// A phase is how far a cluster's creation got.
type phase string

const (
	phaseCreating phase = "creating"
	phaseFailed   phase = "failed" // kept for a look, because of Options.Retain
	phaseReady    phase = "ready"
)

// state is what is remembered of a cluster, in its state directory. Everything
// that decides whether it is ours is on its containers; this is the rest.
type state struct {
	Name    string    `json:"name"`
	Phase   phase     `json:"phase"`
	Since   time.Time `json:"since"`
	Version string    `json:"kubernetes"`
	// Plan is the kind config it was made from, as YAML.
	Plan string `json:"plan"`
	// Merged is what was done to the user's kubeconfig.
	Merged merged `json:"merged"`
}

// clustersDir is the directory with the state directories of all clusters.
func clustersDir() (string, error) {
	base, err := host.StateDir()
	if err != nil {
		return "", err
	}
	return filepath.Join(base, "clusters"), nil
}

// stateDir is the state directory of one cluster.
type stateDir string

func stateDirOf(name string) (stateDir, error) {
	if err := CheckName(name); err != nil {
		return "", err
	}
	base, err := clustersDir()
	if err != nil {
		return "", err
	}
	return stateDir(filepath.Join(base, name)), nil
}

func (d stateDir) name() string       { return filepath.Base(string(d)) }
func (d stateDir) file() string       { return filepath.Join(string(d), "state.json") }
func (d stateDir) shared() string     { return filepath.Join(string(d), sharedSubdir) }
func (d stateDir) kubeconfig() string { return filepath.Join(string(d), "kubeconfig") }
func (d stateDir) failure() string    { return filepath.Join(string(d), "failure.log") }

// read returns the state, and false if there is none. A damaged one counts as
// none: it is not what ownership rests on.
func (d stateDir) read() (state, bool, error) {
	data, err := os.ReadFile(d.file())
	if errors.Is(err, fs.ErrNotExist) {
		return state{}, false, nil
	}
	if err != nil {
		return state{}, false, fmt.Errorf("read state of cluster %q: %w", d.name(), err)
	}
	var s state
	if err := json.Unmarshal(data, &s); err != nil || s.Name != d.name() {
		return state{}, false, nil
	}
	return s, true, nil
}

// write replaces the state, so that a crash leaves the old or the new one.
func (d stateDir) write(s state) error {
	data, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	if err := host.WriteFile(d.file(), append(data, '\n'), 0o600); err != nil {
		return fmt.Errorf("write state of cluster %q: %w", s.Name, err)
	}
	return nil
}

// prepare makes the directories, and the files of a plan. Files of an earlier
// plan are removed; the shared directory stays as it is.
func (d stateDir) prepare(additions []Addition) error {
	if err := os.RemoveAll(filepath.Join(string(d), nodeFilesSubdir)); err != nil {
		return err
	}
	if err := os.Remove(d.failure()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.MkdirAll(d.shared(), 0o755); err != nil {
		return err
	}
	// Pods write there, as whatever user they run.
	if err := os.Chmod(d.shared(), 0o777); err != nil { //nolint:gosec // on purpose, see above
		return err
	}
	for _, a := range additions {
		for _, f := range a.Files {
			if err := os.MkdirAll(filepath.Dir(f.Path), 0o755); err != nil {
				return err
			}
			if err := host.WriteFile(f.Path, []byte(f.Data), fs.FileMode(f.Mode)); err != nil {
				return err
			}
		}
	}
	return nil
}

// remove removes all of it, and the directory above if it was the last.
func (d stateDir) remove() error {
	if err := os.RemoveAll(string(d)); err != nil {
		return err
	}
	_ = os.Remove(filepath.Dir(string(d))) // fails unless it is empty
	return nil
}
