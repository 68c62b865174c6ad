// Package ociruntime stands between a container engine and its OCI runtime on
// hosts that withhold some capabilities.
//
// Docker asks for every capability there is when it starts a privileged
// container, and the runtime fails on a host whose bounding set lacks one. This
// package takes what the host cannot give out of the request, and then becomes
// the real runtime. It asks for nothing that the engine did not ask for, and it
// changes nothing but capability lists.
package ociruntime

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/dra-lab/dra-lab/lab/host/capability"
)

// Verb is the hidden verb of the lab under which the engine calls Main.
const Verb = "oci-runtime"

// Main runs the OCI runtime args[0] with the arguments args[1:], as an engine
// calls it. It does not return when all is well, since the process becomes the
// runtime; else it complains on stderr, where engines look, and returns the
// exit status.
func Main(args []string) int {
	err := run(args, func(path string, argv []string) error {
		return unix.Exec(path, argv, os.Environ())
	})
	fmt.Fprintln(os.Stderr, "lab:", err)
	return 1
}

func run(args []string, exec func(path string, argv []string) error) error {
	if len(args) == 0 {
		return errors.New("start OCI runtime: no runtime named")
	}
	if file := capabilityFile(args[1:]); file != "" {
		bounding, err := capability.Bounding()
		if err != nil {
			return err
		}
		if err := restrictFile(file, bounding); err != nil {
			return err
		}
	}
	if err := exec(args[0], args); err != nil {
		return fmt.Errorf("start OCI runtime %q: %w", args[0], err)
	}
	return nil
}

// capabilityFile returns the file in which this call of the runtime finds the
// capabilities to set, or "" when it sets none.
func capabilityFile(args []string) string {
	for i := 0; i < len(args); i++ {
		switch arg := args[i]; arg {
		case "exec":
			// Without a process file, the container's own capabilities
			// count, and those went through here before.
			return flag(args[i+1:], "process", "p")
		case "create", "run", "restore":
			return filepath.Join(flag(args[i+1:], "bundle", "b"), "config.json")
		case "--root", "--log", "--log-format", "--criu", "--rootless":
			i++ // its value is no verb
		default:
			if !strings.HasPrefix(arg, "-") {
				return "" // another verb
			}
		}
	}
	return ""
}

// flag returns the value of the flag that has one of these names, or "".
func flag(args []string, names ...string) string {
	for i, arg := range args {
		if !strings.HasPrefix(arg, "-") {
			continue
		}
		name, value, joined := strings.Cut(strings.TrimLeft(arg, "-"), "=")
		if !slices.Contains(names, name) {
			continue
		}
		if joined {
			return value
		}
		if i+1 < len(args) {
			return args[i+1]
		}
	}
	return ""
}

// restrictFile takes the capabilities outside of the bounding set out of an
// OCI configuration or process file.
func restrictFile(path string, bounding capability.Set) error {
	old, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("read OCI file: %w", err)
	}
	text, err := restrict(old, bounding)
	if err != nil {
		return fmt.Errorf("restrict OCI file %q: %w", path, err)
	}
	if bytes.Equal(text, old) {
		return nil
	}
	// The runtime must never see half a file, so the new one is put in place
	// whole. No fsync: it is of no use after a crash.
	info, err := os.Stat(path)
	if err != nil {
		return fmt.Errorf("read OCI file: %w", err)
	}
	tmp, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".lab-*")
	if err != nil {
		return fmt.Errorf("write OCI file: %w", err)
	}
	_, err = tmp.Write(text)
	err = errors.Join(err, tmp.Chmod(info.Mode().Perm()), tmp.Close())
	if err == nil {
		err = os.Rename(tmp.Name(), path)
	}
	if err != nil {
		return fmt.Errorf("write OCI file %q: %w", path, errors.Join(err, os.Remove(tmp.Name())))
	}
	return nil
}

// restrict returns the OCI configuration (with a "process" in it) or process
// without the capabilities outside of the bounding set. It returns text itself
// if there is nothing to take out.
func restrict(text []byte, bounding capability.Set) ([]byte, error) {
	// Numbers stay as they are written: some do not fit a float64.
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	var document map[string]any
	if err := decoder.Decode(&document); err != nil {
		return nil, fmt.Errorf("parse: %w", err)
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("parse: text after the end")
	}
	process := document
	if inner, ok := document["process"].(map[string]any); ok {
		process = inner
	}
	lists, _ := process["capabilities"].(map[string]any)
	changed := false
	for kind, value := range lists {
		list, ok := value.([]any)
		if !ok {
			continue
		}
		kept := slices.DeleteFunc(slices.Clone(list), func(c any) bool {
			name, ok := c.(string)
			return ok && !bounding.Has(name)
		})
		if len(kept) != len(list) {
			lists[kind] = kept
			changed = true
		}
	}
	if !changed {
		return text, nil
	}
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(document); err != nil {
		return nil, fmt.Errorf("encode: %w", err)
	}
	return out.Bytes(), nil
}
