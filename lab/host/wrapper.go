package host

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/dra-lab/dra-lab/lab/host/ociruntime"
)

// installRuntime puts an OCI runtime below dir that takes capabilities the host
// withholds out of what the engine asks for, and then is runc. It returns its
// path.
//
// The runtime is a copy of the running program under its content's name,
// because containers outlive the program: it may be rebuilt or deleted while
// they run, and every later exec into one goes through the runtime that started
// it.
func installRuntime(dir, runc string) (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("find own program: %w", err)
	}
	sum, err := hashFile(self)
	if err != nil {
		return "", err
	}
	dir = filepath.Join(dir, sum)
	program := filepath.Join(dir, "lab")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("install OCI runtime: %w", err)
	}
	if have, err := hashFile(program); err != nil || have != sum {
		if err := copyFile(self, program, 0o755); err != nil {
			return "", fmt.Errorf("install OCI runtime: %w", err)
		}
	}
	script := filepath.Join(dir, "runtime")
	if err := writeFile(script, []byte(runtimeScript(program, runc)), 0o755); err != nil {
		return "", fmt.Errorf("install OCI runtime: %w", err)
	}
	return script, nil
}

// runtimeScript is the runtime that the engine calls. Most calls set no
// capabilities and go straight to runc, which keeps them fast.
func runtimeScript(program, runc string) string {
	return fmt.Sprintf(`#!/bin/sh
for arg in "$@"; do
	case "$arg" in
	create | run | restore | exec) exec %[1]s %[3]s %[2]s "$@" ;;
	esac
done
exec %[2]s "$@"
`, shellQuote(program), shellQuote(runc), ociruntime.Verb)
}

// shellQuote makes one word of text for a POSIX shell.
func shellQuote(text string) string {
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
}

func hashFile(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", fmt.Errorf("hash file: %w", err)
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", fmt.Errorf("hash file %q: %w", path, err)
	}
	return hex.EncodeToString(h.Sum(nil))[:16], nil
}

func copyFile(from, to string, mode os.FileMode) error {
	f, err := os.Open(from)
	if err != nil {
		return fmt.Errorf("copy file: %w", err)
	}
	defer f.Close()
	return replaceFile(to, f, mode)
}

// writeFile writes a whole file or none. One that has this content already is
// left alone.
func writeFile(path string, text []byte, mode os.FileMode) error {
	if old, err := os.ReadFile(path); err == nil && bytes.Equal(old, text) {
		return nil
	}
	return replaceFile(path, bytes.NewReader(text), mode)
}

func replaceFile(path string, content io.Reader, mode os.FileMode) error {
	tmp, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*")
	if err != nil {
		return fmt.Errorf("write file: %w", err)
	}
	_, err = io.Copy(tmp, content)
	err = errors.Join(err, tmp.Chmod(mode), tmp.Sync(), tmp.Close())
	if err == nil {
		err = os.Rename(tmp.Name(), path)
	}
	if err != nil {
		return fmt.Errorf("write file %q: %w", path, errors.Join(err, os.Remove(tmp.Name())))
	}
	return nil
}
