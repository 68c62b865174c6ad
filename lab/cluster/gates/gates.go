// Package gates knows which feature gates each Kubernetes version has, and
// decides which of them the lab turns on. It is pure.
//
// A gate that a component does not know, or a locked one that is set against its
// lock, or one whose requirement is off, keeps that component from starting.
// None of them says so where a user would look. So the lab never guesses: the
// tables in this package are written from the sources of each version, and what
// a user asks for is checked against them before anything is started.
package gates

import (
	"embed"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/dra-lab/dra-lab/lab/cluster/internal/nearest"
)

//go:generate go run ./internal/generate tables v1.34.4 v1.35.4 v1.36.3 v1.37.2

// The one package-level variable: embedding needs it. Nothing writes it.
//
//go:embed tables/*.txt
var tables embed.FS

// ErrUnsupported means that there is no table for a Kubernetes version.
var ErrUnsupported = errors.New("unsupported Kubernetes version")

// A Stage is how mature a gate is.
type Stage string

// The stages, as Kubernetes names them.
const (
	Alpha      Stage = "Alpha"
	Beta       Stage = "Beta"
	GA         Stage = "GA"
	Deprecated Stage = "Deprecated"
)

// A Gate is one feature gate of one Kubernetes version.
type Gate struct {
	Name    string
	Stage   Stage
	Default bool
	// Locked gates can only be set to their default.
	Locked bool
	// Requires names the gates that must be on where this one is.
	Requires []string
}

// A Table has the gates of one Kubernetes minor version. It is read-only, and
// safe for concurrent use.
type Table struct {
	minor string
	gates map[string]Gate
	names []string // sorted
}

// Minors returns the minor versions that there are tables for, oldest first.
func Minors() []string {
	entries, err := tables.ReadDir("tables")
	if err != nil {
		panic(err) // embedded: cannot fail
	}
	var minors []string
	for _, e := range entries {
		minors = append(minors, strings.TrimSuffix(e.Name(), ".txt"))
	}
	return minors
}

// Minor returns "1.37" of "v1.37.2", and false if it is no such version.
func Minor(version string) (string, bool) {
	parts := strings.SplitN(strings.TrimPrefix(version, "v"), ".", 3)
	if len(parts) < 2 {
		return "", false
	}
	for _, p := range parts[:2] {
		if _, err := strconv.ParseUint(p, 10, 16); err != nil {
			return "", false
		}
	}
	return parts[0] + "." + parts[1], true
}

// For returns the table for a version such as "v1.37.2". The error is
// ErrUnsupported if there is none.
func For(version string) (*Table, error) {
	minor, ok := Minor(version)
	if !ok {
		return nil, fmt.Errorf("%w %q", ErrUnsupported, version)
	}
	data, err := tables.ReadFile("tables/" + minor + ".txt")
	if err != nil {
		return nil, fmt.Errorf("%w %q", ErrUnsupported, version)
	}
	return parse(minor, string(data)), nil
}

// parse reads a table as package source writes it; a table is part of the
// program, so anything else in it is a mistake of ours.
func parse(minor, text string) *Table {
	t := &Table{minor: minor, gates: make(map[string]Gate)}
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) == 0 || fields[0] == "#" {
			continue
		}
		if len(fields) < 3 {
			panic(fmt.Sprintf("feature gates of %s: bad line %q", minor, line))
		}
		g := Gate{Name: fields[0], Stage: Stage(fields[1]), Default: fields[2] == "on"}
		for _, f := range fields[3:] {
			switch key, value, _ := strings.Cut(f, "="); key {
			case "locked":
				g.Locked = true
			case "requires":
				g.Requires = strings.Split(value, ",")
			default:
				panic(fmt.Sprintf("feature gates of %s: bad line %q", minor, line))
			}
		}
		t.gates[g.Name] = g
	}
	t.names = slices.Sorted(maps.Keys(t.gates))
	return t
}

// Minor returns the table's minor version, such as "1.37".
func (t *Table) Minor() string { return t.minor }

// Gate returns the gate with that name.
func (t *Table) Gate(name string) (Gate, bool) {
	g, ok := t.gates[name]
	return g, ok
}

// All returns all gates, sorted by name.
func (t *Table) All() []Gate {
	all := make([]Gate, 0, len(t.names))
	for _, name := range t.names {
		all = append(all, t.gates[name])
	}
	return all
}

// Nearest returns the known gate whose name is most like name, or "".
func (t *Table) Nearest(name string) string { return nearest.Word(name, t.names) }

// Knows reports whether components of this version accept the name: gates, and
// the two names that stand for all gates of a stage.
func (t *Table) Knows(name string) bool {
	_, ok := t.gates[name]
	return ok || name == allAlpha || name == allBeta
}

const (
	allAlpha = "AllAlpha"
	allBeta  = "AllBeta"
)

// Set is which gates are set to what.
type Set map[string]bool

// On reports whether a gate is on under a set. A gate that this version does not
// have is off.
func (t *Table) On(set Set, name string) bool {
	g, ok := t.gates[name]
	if !ok {
		return false
	}
	if on, ok := set[name]; ok {
		return on
	}
	// Kubernetes does not let the names for a whole stage move a locked gate.
	if on, ok := set[allAlpha]; ok && g.Stage == Alpha && !g.Locked {
		return on
	}
	if on, ok := set[allBeta]; ok && g.Stage == Beta && !g.Locked {
		return on
	}
	return g.Default
}
