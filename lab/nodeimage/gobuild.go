package nodeimage

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/dra-lab/dra-lab/lab/internal/ui"
	"github.com/dra-lab/dra-lab/lab/kubesource"
)

// A program is a set of commands out of one Go module.
type program struct {
	name     string // of the step
	title    string // what the user is told: "containerd v2.4.2"
	module   string
	version  string
	packages []string // relative to the module; "" is its root
	main     string   // source of a main package to build instead of packages
	tags     []string
	ldflags  string
	cgo      bool // linked statically against the host's C libraries
	staging  bool // Kubernetes: the module's replace block points into its own tree

	checkout *kubesource.Checkout // to build from instead of the module's version; may be nil
}

// step returns the step that builds p. Its output holds one file per package.
func (p program) step(tools goTools) step {
	return step{
		name:  p.name,
		title: "building " + p.title + " from source",
		inputs: slices.Concat(
			[]string{p.module, p.version, p.flags(), fmt.Sprint(p.cgo), p.main}, p.packages),
		make: func(ctx context.Context, out string, progress *ui.Step) error {
			return p.build(ctx, tools, out, progress)
		},
	}
}

// flags returns the flags of "go build" as one string, for the key.
func (p program) flags() string { return strings.Join(p.buildArgs(), " ") }

func (p program) buildArgs() []string {
	// Debug information would be thrown away by the linker (-s -w). Not making
	// it in the first place saves an eighth of the time and a fifth of the build cache.
	args := []string{"build", "-v", "-trimpath", "-buildvcs=false", "-gcflags=all=-dwarf=false"}
	if len(p.tags) > 0 {
		args = append(args, "-tags", strings.Join(p.tags, ","))
	}
	ldflags := "-s -w"
	if p.ldflags != "" {
		ldflags += " " + p.ldflags
	}
	if p.cgo {
		ldflags += " -extldflags -static"
	}
	return append(args, "-ldflags", ldflags)
}

func (p program) build(ctx context.Context, tools goTools, out string, progress *ui.Step) error {
	dir, err := work(out)
	if err != nil {
		return err
	}
	goMod := minimalModule(p.module, p.version)
	if p.staging {
		if goMod, err = p.stagingModule(ctx, tools, dir, progress); err != nil {
			return err
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "go.mod"), goMod, 0o644); err != nil {
		return err
	}
	args := append(p.buildArgs(), "-o", out+string(filepath.Separator))
	if p.main != "" {
		if err := os.WriteFile(filepath.Join(dir, "main.go"), []byte(p.main), 0o644); err != nil {
			return err
		}
		args = append(args, ".")
	}
	for _, pkg := range p.packages {
		args = append(args, strings.TrimSuffix(p.module+"/"+pkg, "/"))
	}
	cmd := tools.command(ctx, dir, p.cgo, args...)
	compiled := 0
	var said strings.Builder // without what is progress
	_, err = run(ctx, cmd, func(line string) {
		if pkg, ok := compiledPackage(line); ok {
			compiled++
			progress.Update(fmt.Sprintf("compiling %s (%d packages)", pkg, compiled))
		} else if what, ok := strings.CutPrefix(line, "go: downloading "); ok {
			progress.Update("downloading " + what)
		} else {
			said.WriteString(line + "\n")
		}
	})
	if err != nil {
		return p.notBuilt(dir, said.String(), err)
	}
	if p.checkout != nil {
		return p.checkout.Unchanged()
	}
	return nil
}

// compiledPackage recognises the lines that "go build -v" writes: one import
// path per package that it compiles.
func compiledPackage(line string) (string, bool) {
	if line == "" || strings.ContainsAny(line, " \t:#") {
		return "", false
	}
	return line, true
}

// minimalModule is a go.mod that needs nothing but one version of a module.
// The go line is the one that makes Go select the versions which the module
// itself lists.
func minimalModule(module, version string) []byte {
	return fmt.Appendf(nil, "module %s\n\ngo 1.26.0\n\nrequire %s %s\n", ownModule(module), module, version)
}

// ownModule names the module that builds another one.
func ownModule(module string) string {
	return "dra-lab.invalid/" + filepath.Base(strings.TrimSuffix(module, "/v2"))
}

// goTools runs the host's Go with settings of our own, so that what the user
// has set for other work (GOFLAGS, a workspace) changes nothing here. GOPROXY
// and the like are the user's.
type goTools struct {
	buildCache string // GOCACHE
}

// command returns "go args..." to be run in dir, or outside of any module if
// dir is "".
func (g goTools) command(ctx context.Context, dir string, cgo bool, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = dir
	if dir == "" {
		cmd.Dir = "/" // not where the user happens to stand: there may be a module
	}
	cmd.Env = append(os.Environ(),
		"GOFLAGS=-mod=mod",
		"GOWORK=off",
		"GO111MODULE=on",
		"GOOS=", "GOARCH=", "GOEXPERIMENT=",
		"CGO_ENABLED=0",
	)
	if g.buildCache != "" {
		cmd.Env = append(cmd.Env, "GOCACHE="+g.buildCache)
	}
	if cgo {
		cmd.Env = append(cmd.Env, "CGO_ENABLED=1")
	}
	if dir != "" {
		// A killed go build leaves its work directory: let it lie where we
		// clean up anyway.
		cmd.Env = append(cmd.Env, "GOTMPDIR="+dir)
	}
	return cmd
}

// goModule is what "go mod download -json" says about a module.
type goModule struct {
	Version, Dir, GoMod, Error string
}

// module downloads a module, if need be, and says where it lies.
func (g goTools) module(ctx context.Context, dir, module, version string) (goModule, error) {
	cmd := g.command(ctx, dir, false, "mod", "download", "-json", module+"@"+version)
	out, err := run(ctx, cmd, nil)
	var m goModule
	if jsonErr := json.Unmarshal([]byte(out), &m); jsonErr == nil && m.Error != "" {
		return goModule{}, classifyModuleError(module, version, errors.New(m.Error))
	}
	if err != nil {
		return goModule{}, classifyModuleError(module, version, err)
	}
	if m.Dir == "" {
		return goModule{}, fmt.Errorf("download %s %s: go did not say where it lies", module, version)
	}
	return m, nil
}
