package kubelets

import (
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/dra-lab/dra-lab/lab/host"
	"github.com/dra-lab/dra-lab/lab/kubesource"
)

// Not a package of this module: it is compiled in a module per version.
//
//go:embed _manager
var programFiles embed.FS

// Kubelet is a version of the plugin manager.
type Kubelet struct {
	// Version is a released version of Kubernetes, "v1.37.2", or what the
	// checkout calls itself.
	Version string
	// Checkout, if not nil, is compiled instead of a release.
	Checkout *kubesource.Checkout
	// Patch, if not empty, is applied to a copy of the plugin package. It is
	// a unified diff without context lines.
	Patch []byte
}

// FromCheckout is the plugin manager of a Kubernetes checkout.
func FromCheckout(c kubesource.Checkout) Kubelet { return Kubelet{Version: c.Version(), Checkout: &c} }

// Name is what a column is called.
func (k Kubelet) Name() string {
	if len(k.Patch) > 0 {
		return k.Version + " mended"
	}
	return k.Version
}

// Build makes sure that k is compiled, as the first measurement does otherwise. The
// error is a [kubesource.CompileError] if a checkout does not compile.
func Build(ctx context.Context, k Kubelet) error {
	_, err := build(ctx, k)
	return err
}

// build returns the program that has the plugin manager of k. It is compiled on
// first use, which takes some minutes per version on two cores, and kept.
func build(ctx context.Context, k Kubelet) (string, error) {
	cache, err := host.CacheDir()
	if err != nil {
		return "", err
	}
	files, err := sources(k)
	if err != nil {
		return "", err
	}
	dir := filepath.Join(cache, "kubelets")
	family := "manager-"
	if k.Checkout != nil {
		family += k.Checkout.Key() + "-"
	}
	program := filepath.Join(dir, family+k.Version+"-"+digest(k, files))
	if _, err := os.Stat(program); err == nil {
		return program, nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("make %q: %w", dir, err)
	}
	work, err := os.MkdirTemp(dir, "unfinished-")
	if err != nil {
		return "", fmt.Errorf("make folder to build in: %w", err)
	}
	defer func() { _ = os.RemoveAll(work) }()
	if err := compile(ctx, work, filepath.Join(cache, "go-build"), k, files); err != nil {
		return "", fmt.Errorf("build plugin manager %s: %w", k.Name(), err)
	}
	// Only whole programs have the name: somebody else may build the same.
	if err := os.Rename(filepath.Join(work, "manager"), program); err != nil {
		return "", fmt.Errorf("keep plugin manager %s: %w", k.Name(), err)
	}
	if k.Checkout == nil {
		return program, nil
	}
	// Earlier states of the checkout will not come again.
	earlier, err := filepath.Glob(filepath.Join(dir, family+"*"))
	for _, old := range earlier {
		if old != program {
			err = errors.Join(err, os.Remove(old))
		}
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("remove earlier plugin manager of %q: %w", k.Checkout.Dir, err)
	}
	return program, nil
}

// sources returns the program's files for a version.
func sources(k Kubelet) (map[string][]byte, error) {
	names := []string{"main.go", "manager.go", "before_1_37.go"}
	if newAPI(k.Version) {
		names[2] = "since_1_37.go"
	}
	files := make(map[string][]byte, len(names))
	for _, name := range names {
		data, err := programFiles.ReadFile("_manager/" + name)
		if err != nil {
			return nil, fmt.Errorf("read program: %w", err)
		}
		if len(k.Patch) > 0 {
			data = []byte(strings.ReplaceAll(string(data),
				`"`+kubernetes+"/"+pluginPackage+`"`, `"`+modulePath+`/plugin"`))
		}
		files[name] = data
	}
	return files, nil
}

func digest(k Kubelet, files map[string][]byte) string {
	h := sha256.New()
	for _, name := range []string{"main.go", "manager.go", "before_1_37.go", "since_1_37.go"} {
		fmt.Fprintf(h, "%s %d\n%s", name, len(files[name]), files[name])
	}
	_, _ = h.Write(k.Patch) // a hash takes everything
	return hex.EncodeToString(h.Sum(nil))[:12]
}

// compile builds the program as dir/manager.
func compile(ctx context.Context, dir, buildCache string, k Kubelet, files map[string][]byte) error {
	source, goMod, err := k.source(ctx, dir, buildCache)
	if err != nil {
		return err
	}
	files["go.mod"] = goMod
	if len(k.Patch) > 0 {
		if err := copyPatched(filepath.Join(source, pluginPackage), filepath.Join(dir, "plugin"), k.Patch); err != nil {
			return err
		}
	}
	for name, data := range files {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o644); err != nil {
			return fmt.Errorf("write source: %w", err)
		}
	}
	// The flags are those of node images, so that both share what they can.
	_, err = goCommand(ctx, dir, buildCache, "build", "-trimpath", "-buildvcs=false",
		"-gcflags=all=-dwarf=false", "-ldflags=-s -w", "-o", "manager", ".")
	if k.Checkout == nil {
		return err
	}
	if failure := (*goError)(nil); errors.As(err, &failure) {
		if broken := k.Checkout.CompileError("the plugin manager", dir, failure.output); broken != nil {
			return broken
		}
	}
	if err != nil {
		return err
	}
	return k.Checkout.Unchanged()
}

// source says where the source of k lies, and derives the go.mod of a module that
// compiles it.
func (k Kubelet) source(ctx context.Context, dir, buildCache string) (string, []byte, error) {
	// Imported by the program itself.
	uses := []string{"k8s.io/apiserver", "k8s.io/kubelet"}
	if k.Checkout != nil {
		goMod, err := k.Checkout.Module(modulePath, uses...)
		return k.Checkout.Dir, goMod, err
	}
	released, err := download(ctx, dir, buildCache, k.Version)
	if err != nil {
		return "", nil, err
	}
	upstream, err := os.ReadFile(released.GoMod)
	if err != nil {
		return "", nil, fmt.Errorf("read upstream's go.mod: %w", err)
	}
	goMod, err := kubesource.ReleaseModule(modulePath, upstream, k.Version, uses...)
	if err != nil {
		return "", nil, fmt.Errorf("derive module: %w", err)
	}
	return released.Dir, goMod, nil
}

type downloaded struct{ GoMod, Dir, Error string }

func download(ctx context.Context, dir, buildCache, version string) (downloaded, error) {
	// Outside of any module, which is what dir is until it has a go.mod.
	out, err := goCommand(ctx, dir, buildCache, "mod", "download", "-json", kubernetes+"@"+version)
	var d downloaded
	if jsonErr := json.Unmarshal(out, &d); jsonErr == nil && d.Error != "" {
		return d, fmt.Errorf("download %s %s: %s", kubernetes, version, d.Error)
	}
	if err != nil {
		return d, err
	}
	if d.Dir == "" || d.GoMod == "" {
		return d, fmt.Errorf("download %s %s: go did not say where it lies", kubernetes, version)
	}
	return d, nil
}

// copyPatched copies a package without its tests and applies a patch.
func copyPatched(from, to string, patch []byte) error {
	entries, err := os.ReadDir(from)
	if err != nil {
		return fmt.Errorf("read package: %w", err)
	}
	files := map[string][]byte{}
	for _, e := range entries {
		if filepath.Ext(e.Name()) != ".go" || strings.HasSuffix(e.Name(), "_test.go") {
			continue
		}
		if files[e.Name()], err = os.ReadFile(filepath.Join(from, e.Name())); err != nil {
			return fmt.Errorf("read package: %w", err)
		}
	}
	if err := applyPatch(files, patch); err != nil {
		return err
	}
	if err := os.Mkdir(to, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("make package: %w", err)
	}
	for name, data := range files {
		if err := os.WriteFile(filepath.Join(to, name), data, 0o644); err != nil {
			return fmt.Errorf("write package: %w", err)
		}
	}
	return nil
}

// goCommand runs Go with settings of our own, so that a user's workspace and
// flags change nothing. Proxy and checksum database are the user's.
func goCommand(ctx context.Context, dir, buildCache string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOFLAGS=-mod=mod", "GOWORK=off", "GO111MODULE=on",
		"GOOS=", "GOARCH=", "GOEXPERIMENT=", "CGO_ENABLED=0", "GOCACHE="+buildCache, "GOTMPDIR="+dir)
	out, err := cmd.Output()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		return out, &goError{verb: args[0], output: string(exit.Stderr), err: err}
	}
	if err != nil {
		return out, fmt.Errorf("go %s: %w", args[0], err)
	}
	return out, nil
}

// goError is a run of Go that failed.
type goError struct {
	verb, output string
	err          error
}

func (e *goError) Error() string {
	return fmt.Sprintf("go %s: %v: %s", e.verb, e.err, lastLines(e.output, 5))
}

func (e *goError) Unwrap() error { return e.err }

func lastLines(s string, n int) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
