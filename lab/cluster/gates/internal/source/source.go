// Package source reads the feature gates of a Kubernetes version out of its Go
// source. It is used to write the tables of package gates, and by the test that
// keeps them true; nothing that ships needs it.
package source

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// A Gate is one feature gate as a Kubernetes version defines it.
type Gate struct {
	Name     string
	Stage    string // Alpha, Beta, GA or Deprecated
	Default  bool
	Locked   bool
	Requires []string // gates that must be on as well, sorted
}

// packages are the ones that define or register the gates of all components,
// relative to the module cache's k8s.io folder.
func packages(kubernetes string) []string {
	staging := "v0" + strings.TrimPrefix(kubernetes, "v1")
	return []string{
		"kubernetes@" + kubernetes + "/pkg/features",
		"apiserver@" + staging + "/pkg/features",
		"apiextensions-apiserver@" + staging + "/pkg/features",
		"controller-manager@" + staging + "/pkg/features",
		"component-base@" + staging + "/logs/api/v1",
		"component-base@" + staging + "/metrics/features",
		"component-base@" + staging + "/zpages/features",
		"client-go@" + staging + "/features",
	}
}

// Modules returns the modules that Read needs, as arguments to go mod download.
func Modules(kubernetes string) []string {
	var modules []string
	for _, p := range packages(kubernetes) {
		name, rest, _ := strings.Cut(p, "@")
		version, _, _ := strings.Cut(rest, "/")
		modules = append(modules, "k8s.io/"+name+"@"+version)
	}
	slices.Sort(modules)
	return slices.Compact(modules)
}

// Read returns the gates of a version such as "v1.37.2", sorted by name, from
// the module cache (the folder that go env GOMODCACHE prints). An error that is
// fs.ErrNotExist means that the modules are not there.
func Read(modcache, kubernetes string) ([]Gate, error) {
	r := reader{gates: make(map[string]Gate), names: make(map[string]string)}
	var registered []*ast.File
	// Names first: a map in one package has keys that another one defines.
	for _, p := range packages(kubernetes) {
		files, err := parseDir(filepath.Join(modcache, "k8s.io", filepath.FromSlash(p)))
		if err != nil {
			return nil, fmt.Errorf("read feature gates of %s: %w", kubernetes, err)
		}
		for _, f := range files {
			r.readNames(f)
		}
		// What this one registers itself, not every component knows: the
		// scheduler does not link it.
		if !strings.HasPrefix(p, "controller-manager@") {
			registered = append(registered, files...)
		}
	}
	for _, f := range registered {
		if err := r.readMaps(f); err != nil {
			return nil, fmt.Errorf("read feature gates of %s: %w", kubernetes, err)
		}
	}
	gates := make([]Gate, 0, len(r.gates))
	for _, g := range r.gates {
		gates = append(gates, g)
	}
	slices.SortFunc(gates, func(a, b Gate) int { return cmp.Compare(a.Name, b.Name) })
	return gates, nil
}

func parseDir(dir string) ([]*ast.File, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var files []*ast.File
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), "features.go") || strings.HasSuffix(e.Name(), "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(dir, e.Name()), nil, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		files = append(files, f)
	}
	return files, nil
}

type reader struct {
	names map[string]string // Go identifier to gate name
	gates map[string]Gate
}

// readNames collects the constants that may be names of features. Not all of
// them have the type Feature written down.
func (r *reader) readNames(f *ast.File) {
	ast.Inspect(f, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok || (spec.Type != nil && typeName(spec.Type) != "Feature") {
			return true
		}
		for i, name := range spec.Names {
			if i >= len(spec.Values) {
				break
			}
			if text, ok := stringOf(spec.Values[i]); ok {
				r.names[name.Name] = text
			}
		}
		return true
	})
}

// readMaps collects the maps from Feature to specs, and to other features.
func (r *reader) readMaps(f *ast.File) error {
	var err error
	ast.Inspect(f, func(n ast.Node) bool {
		lit, ok := n.(*ast.CompositeLit)
		if !ok || err != nil {
			return err == nil
		}
		m, ok := lit.Type.(*ast.MapType)
		if !ok || typeName(m.Key) != "Feature" {
			return true
		}
		for _, e := range lit.Elts {
			kv, ok := e.(*ast.KeyValueExpr)
			if !ok {
				continue
			}
			switch typeName(m.Value) {
			case "VersionedSpecs":
				err = r.readSpecs(kv)
			case "FeatureSpec":
				err = r.readSpec(kv.Key, kv.Value)
			default:
				err = r.readRequires(kv)
			}
			if err != nil {
				return false
			}
		}
		return false
	})
	return err
}

// readSpecs takes the last spec of a gate that holds by default: sources list
// them by version, and list none that is newer than themselves. One that asks for
// a minimum compatibility version does not hold: components keep compatible with
// the version before theirs unless a flag says otherwise.
func (r *reader) readSpecs(kv *ast.KeyValueExpr) error {
	name, err := r.name(kv.Key)
	if err != nil {
		return err
	}
	specs, ok := kv.Value.(*ast.CompositeLit)
	if !ok || len(specs.Elts) == 0 {
		return fmt.Errorf("gate %s: no list of specs", name)
	}
	for _, spec := range slices.Backward(specs.Elts) {
		if !hasField(spec, "MinCompatibilityVersion") {
			return r.readSpec(kv.Key, spec)
		}
	}
	return fmt.Errorf("gate %s: no spec holds by default", name)
}

func hasField(e ast.Expr, name string) bool {
	lit, ok := e.(*ast.CompositeLit)
	return ok && slices.ContainsFunc(lit.Elts, func(e ast.Expr) bool {
		kv, ok := e.(*ast.KeyValueExpr)
		return ok && typeName(kv.Key) == name
	})
}

func (r *reader) readSpec(key, value ast.Expr) error {
	name, err := r.name(key)
	if err != nil {
		return err
	}
	spec, ok := value.(*ast.CompositeLit)
	if !ok {
		return fmt.Errorf("gate %s: its spec is no literal", name)
	}
	gate := r.gates[name]
	gate.Name = name
	gate.Stage, gate.Default, gate.Locked = "", false, false
	for _, e := range spec.Elts {
		field, ok := e.(*ast.KeyValueExpr)
		if !ok {
			return fmt.Errorf("gate %s: the spec has no field names", name)
		}
		switch typeName(field.Key) {
		case "Default":
			gate.Default, err = boolOf(field.Value)
		case "LockToDefault":
			gate.Locked, err = boolOf(field.Value)
		case "PreRelease":
			gate.Stage = typeName(field.Value)
		}
		if err != nil {
			return fmt.Errorf("gate %s: %w", name, err)
		}
	}
	r.gates[name] = gate
	return nil
}

func (r *reader) readRequires(kv *ast.KeyValueExpr) error {
	name, err := r.name(kv.Key)
	if err != nil {
		return err
	}
	list, ok := kv.Value.(*ast.CompositeLit)
	if !ok {
		return fmt.Errorf("gate %s: what it requires is no literal", name)
	}
	gate := r.gates[name]
	gate.Name = name
	for _, e := range list.Elts {
		required, err := r.name(e)
		if err != nil {
			return err
		}
		gate.Requires = append(gate.Requires, required)
	}
	slices.Sort(gate.Requires)
	gate.Requires = slices.Compact(gate.Requires)
	r.gates[name] = gate
	return nil
}

func (r *reader) name(e ast.Expr) (string, error) {
	if literal, ok := stringOf(e); ok {
		return literal, nil
	}
	identifier := typeName(unconverted(e))
	name, ok := r.names[identifier]
	if !ok {
		return "", fmt.Errorf("gate %s: its name is not defined", identifier)
	}
	return name, nil
}

// typeName returns the identifier of an expression, without its package.
func typeName(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.SelectorExpr:
		return e.Sel.Name
	}
	return ""
}

// unconverted returns x of Feature(x), and e if it is no such conversion.
func unconverted(e ast.Expr) ast.Expr {
	if call, ok := e.(*ast.CallExpr); ok && typeName(call.Fun) == "Feature" && len(call.Args) == 1 {
		return call.Args[0]
	}
	return e
}

func stringOf(e ast.Expr) (string, bool) {
	lit, ok := unconverted(e).(*ast.BasicLit)
	if !ok || lit.Kind != token.STRING {
		return "", false
	}
	text, err := strconv.Unquote(lit.Value)
	return text, err == nil
}

func boolOf(e ast.Expr) (bool, error) {
	switch typeName(e) {
	case "true":
		return true, nil
	case "false":
		return false, nil
	}
	return false, fmt.Errorf("not a literal true or false")
}
