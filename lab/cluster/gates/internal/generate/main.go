// Command generate writes the tables of package gates: go generate runs it.
//
// It needs the Go command and the modules' sources, which it downloads into the
// module cache.
package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/dra-lab/dra-lab/lab/cluster/gates/internal/source"
)

func main() {
	if len(os.Args) < 3 {
		fmt.Fprintln(os.Stderr, "usage: generate DIR VERSION...")
		os.Exit(2)
	}
	for _, version := range os.Args[2:] {
		if err := generate(os.Args[1], version); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
}

func generate(dir, version string) error {
	temp, err := os.MkdirTemp("", "gates")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(temp) }()
	// Outside of this module, so that its go.mod stays as it is.
	download := exec.Command("go", append([]string{"mod", "download"}, source.Modules(version)...)...)
	download.Dir, download.Stderr = temp, os.Stderr
	if err := os.WriteFile(filepath.Join(temp, "go.mod"), []byte("module none\n"), 0o600); err != nil {
		return err
	}
	if err := download.Run(); err != nil {
		return fmt.Errorf("download the modules of Kubernetes %s: %w", version, err)
	}
	modcache, err := exec.Command("go", "env", "GOMODCACHE").Output()
	if err != nil {
		return fmt.Errorf("find the module cache: %w", err)
	}
	gates, err := source.Read(strings.TrimSpace(string(modcache)), version)
	if err != nil {
		return err
	}
	var table bytes.Buffer
	if err := source.Write(&table, version, gates); err != nil {
		return err
	}
	minor := strings.Join(strings.Split(strings.TrimPrefix(version, "v"), ".")[:2], ".")
	return os.WriteFile(filepath.Join(dir, minor+".txt"), table.Bytes(), 0o644) //nolint:gosec // source code
}
