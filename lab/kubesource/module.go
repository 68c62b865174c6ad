package kubesource

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/mod/modfile"
)

// Module is the path of the module that Kubernetes is.
const Module = "k8s.io/kubernetes"

// ReleaseModule derives the go.mod of a module called name that compiles parts
// of a released version from outside; upstream is that version's go.mod. The
// code of the module may import what it names in uses, beside k8s.io/kubernetes
// itself: one of the modules that upstream replaces by folders of its own tree.
//
// Those folders, ./staging/src/k8s.io/api and its like, are no part of a
// downloaded module; Kubernetes v1.X.Y has published them as v0.X.Y.
func ReleaseModule(name string, upstream []byte, version string, uses ...string) ([]byte, error) {
	published, err := stagingVersion(version)
	if err != nil {
		return nil, err
	}
	return derive(name, upstream, version, "", uses, func(staged string) (string, string) { return staged, published })
}

// Module is [ReleaseModule] for a checkout. Of staged modules it takes the
// folders where they are, and else what was published with the version that the
// checkout is based on: a copy of the downloaded module does not have them.
func (c Checkout) Module(name string, uses ...string) ([]byte, error) {
	published, err := stagingVersion(c.Base)
	if err != nil {
		return nil, err
	}
	return derive(name, c.goMod, c.Base, c.Dir, uses, func(staged string) (string, string) {
		dir := filepath.Join(c.Dir, "staging", "src", filepath.FromSlash(staged))
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, ""
		}
		return staged, published
	})
}

// derive writes the module. dir, if not "", is where k8s.io/kubernetes lies;
// place says by what to replace a staged module.
func derive(name string, upstream []byte, version, dir string, uses []string, place func(staged string) (path, version string)) ([]byte, error) {
	from, err := modfile.Parse("go.mod", upstream, nil)
	if err != nil {
		return nil, err
	}
	to := &modfile.File{Syntax: &modfile.FileSyntax{}}
	if err := to.AddModuleStmt(name); err != nil {
		return nil, err
	}
	if from.Go != nil {
		if err := to.AddGoStmt(from.Go.Version); err != nil {
			return nil, err
		}
	}
	for _, setting := range from.Godebug {
		if err := to.AddGodebug(setting.Key, setting.Value); err != nil {
			return nil, err
		}
	}
	// A checkout is required as the version that it is based on: the compiler
	// then finds in its cache what both have in common.
	if err := to.AddRequire(Module, version); err != nil {
		return nil, err
	}
	for _, used := range uses {
		// Without a version here, Go would look for the newest.
		if err := to.AddRequire(used, "v0.0.0"); err != nil {
			return nil, err
		}
	}
	if dir != "" {
		if err := to.AddReplace(Module, "", dir, ""); err != nil {
			return nil, err
		}
	}
	staged := 0
	for _, replace := range from.Replace {
		if !strings.HasPrefix(replace.New.Path, "./staging/src/") {
			continue
		}
		path, version := place(replace.Old.Path)
		if err := to.AddReplace(replace.Old.Path, "", path, version); err != nil {
			return nil, err
		}
		staged++
	}
	if staged == 0 {
		return nil, errors.New("go.mod replaces nothing by ./staging")
	}
	return to.Format()
}

// stagingVersion turns v1.37.2 into v0.37.2.
func stagingVersion(version string) (string, error) {
	rest, ok := strings.CutPrefix(version, "v1.")
	if !ok {
		return "", fmt.Errorf("version %q does not start with v1", version)
	}
	return "v0." + rest, nil
}
