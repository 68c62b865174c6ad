package kubesource

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// digest hashes what kubelets are compiled from: every file that Go may compile
// or embed, by its contents, so that touching a file or checking out another
// branch and back changes nothing. Tests and what has nothing to do with Go
// (API descriptions, documentation) are left out, as are vendored modules: Go
// takes those from its own cache here.
func digest(dir string) (string, error) {
	sum := sha256.New()
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		switch {
		case entry.IsDir() && rel != "." && foreignDir(rel):
			return fs.SkipDir
		case entry.IsDir(), foreignFile(entry.Name()):
			return nil
		}
		return addFile(sum, path, rel)
	})
	if err != nil {
		return "", err
	}
	return hex.EncodeToString(sum.Sum(nil))[:8], nil
}

// foreignDir says of a directory below the checkout that nothing of a kubelet
// is inside.
func foreignDir(rel string) bool {
	switch rel {
	case "CHANGELOG", "LICENSES", "api", "build", "cluster", "docs", "hack", "logo", "test":
		return true
	}
	name := filepath.Base(rel)
	// Go itself skips the first two.
	return strings.HasPrefix(name, ".") || strings.HasPrefix(name, "_") || name == "testdata" || name == "vendor"
}

func foreignFile(name string) bool {
	return strings.HasPrefix(name, ".") || strings.HasPrefix(name, "_") || strings.HasSuffix(name, "_test.go") ||
		strings.HasSuffix(name, ".md") || strings.HasSuffix(name, ".orig") || strings.HasSuffix(name, "~") || name == "OWNERS"
}

// addFile adds a file, which may be reached by a symbolic link. Links to
// directories are none to Go.
func addFile(sum hash.Hash, path, rel string) (err error) {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && !info.Mode().IsRegular() {
		return nil // a link to nowhere, an editor's lock: Go compiles neither
	}
	if err != nil {
		return err
	}
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	fmt.Fprintf(sum, "%q %d\n", rel, info.Size())
	_, err = io.Copy(sum, f)
	return err
}
