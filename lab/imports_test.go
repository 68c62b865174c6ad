package main

import (
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/dra-lab/dra-lab/"

// The rooms of the project and what they may import of each other: scenarios
// over the lab, the lab over manifests and the driver's public packages,
// the driver over nothing. Files are parsed here rather than asked of the go
// command, whose answer a test cache can outlive.
var allowed = []struct {
	from string
	to   []string
}{
	{from: "scenarios/trainer", to: []string{"scenarios/trainer", "driver/api", "lab/timeline/workload"}},
	{from: "scenarios", to: []string{"scenarios", "lab", "manifests", "driver/api", "driver/draconn", "driver/driverroot"}},
	{from: "lab", to: []string{"lab", "manifests", "driver/api", "driver/draconn", "driver/driverroot"}},
	{from: "driver/api/v1alpha1", to: []string{"driver/api"}},
	{from: "driver/api", to: nil},
	{from: "driver/draconn", to: []string{"driver/draconn"}},
	{from: "driver/driverroot", to: []string{"driver/driverroot"}},
	{from: "driver", to: []string{"driver"}},
	{from: "manifests", to: nil},
	{from: "scripts", to: []string{"manifests"}},
}

func TestImportsKeepTheRooms(t *testing.T) {
	root := ".."
	files := 0
	err := filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if base := d.Name(); name != root && (strings.HasPrefix(base, ".") || base == "testdata" || base == "bin") {
				return fs.SkipDir
			}
			return nil
		}
		if filepath.Ext(name) != ".go" {
			return nil
		}
		files++
		rel, err := filepath.Rel(root, name)
		if err != nil {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		for _, spec := range file.Imports {
			imported, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				return err
			}
			inner, ours := strings.CutPrefix(imported, module)
			if ours && !mayImport(path.Dir(filepath.ToSlash(rel)), inner) {
				t.Errorf("%s imports %s, which its room may not", rel, inner)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if files < 20 {
		t.Fatalf("looked at %d files only: wrong folder?", files)
	}
}

func mayImport(from, to string) bool {
	for _, rule := range allowed {
		if !within(from, rule.from) {
			continue
		}
		if within(to, from) {
			return true // below itself
		}
		for _, room := range rule.to {
			if within(to, room) {
				return true
			}
		}
		return false
	}
	return false // a room that nobody wrote a rule for
}

func within(dir, room string) bool {
	return dir == room || strings.HasPrefix(dir, room+"/")
}

func TestMayImport(t *testing.T) {
	for _, c := range []struct {
		from, to string
		want     bool
	}{
		{"scenarios", "lab/fault", true},
		{"lab", "scenarios", false},
		{"lab/install", "manifests", true},
		{"driver/internal/plugin", "lab/host", false},
		{"driver/internal/plugin", "driver/draconn", true},
		{"driver/api", "driver/draconn", false},
		{"lab/cluster", "driver/api", true},
		{"scenarios/trainer", "lab/host", false},
		{"extra", "lab/host", false},
	} {
		if got := mayImport(c.from, c.to); got != c.want {
			t.Errorf("mayImport(%q, %q) = %v, want %v", c.from, c.to, got, c.want)
		}
	}
}
