// Package gputest makes driver roots for tests: folders that look like the root
// of a host with GPUs. Files stand for device nodes, and a shell script for
// nvidia-smi.
package gputest

import (
	"bytes"
	_ "embed" // for the tree
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"
)

//go:embed base.txtar
var base []byte

// Root makes the driver root of a host with two GPUs that nothing is wrong with,
// and applies changes to it. A change is an archive in txtar's format: its files
// are added, and lines of its comment are operations: "rm PATH", "mkdir PATH"
// and "link PATH TARGET". Other lines say what it is about.
func Root(tb testing.TB, changes ...[]byte) string {
	tb.Helper()
	root := tb.TempDir()
	if err := Make(root, changes...); err != nil {
		tb.Fatal(err)
	}
	return root
}

// Make is Root for callers that have no testing.TB. The directory has to be
// empty, or not to be there.
func Make(root string, changes ...[]byte) error {
	for _, change := range append([][]byte{base}, changes...) {
		if err := apply(root, txtar.Parse(change)); err != nil {
			return err
		}
	}
	return nil
}

func apply(root string, a *txtar.Archive) error {
	for line := range strings.Lines(string(a.Comment)) {
		fields := strings.Fields(line)
		if len(fields) < 2 {
			continue
		}
		path := filepath.Join(root, fields[1])
		var err error
		switch {
		case len(fields) == 2 && fields[0] == "rm":
			if _, err = os.Lstat(path); err == nil { // one that removes nothing changes nothing
				err = os.RemoveAll(path)
			}
		case len(fields) == 2 && fields[0] == "mkdir":
			err = os.MkdirAll(path, 0o755)
		case len(fields) == 3 && fields[0] == "link":
			if err = makeRoom(path); err == nil {
				err = os.Symlink(fields[2], path)
			}
		}
		if err != nil {
			return fmt.Errorf("change driver root: %w", err)
		}
	}
	for _, f := range a.Files {
		path := filepath.Join(root, f.Name)
		mode := os.FileMode(0o644)
		if bytes.HasPrefix(f.Data, []byte("#!")) {
			mode = 0o755
		}
		err := makeRoom(path)
		if err == nil {
			err = os.WriteFile(path, f.Data, mode)
		}
		if err != nil {
			return fmt.Errorf("change driver root: %w", err)
		}
	}
	return nil
}

// makeRoom makes the directory of a file, which must not be there then: it could
// be a link to another.
func makeRoom(path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
		return err
	}
	return nil
}
