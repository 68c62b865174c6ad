package kubelets

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dra-lab/dra-lab/lab/host"
	"github.com/dra-lab/dra-lab/lab/kubesource"
	"github.com/dra-lab/dra-lab/scenarios/upstream/healthstream"
)

// Given a copy of v1.37.2, when somebody mends it, then what is measured is the
// mended one; when somebody breaks it, then the error is where.
func TestCheckout(t *testing.T) {
	const version = "v1.37.2" // what TestReleasedVersions compiles, so that most is compiled
	dir := copyRelease(t, version)
	plugin := filepath.Join(dir, pluginPackage)
	files := map[string][]byte{}
	for _, path := range glob(t, filepath.Join(plugin, "*.go")) {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		files[filepath.Base(path)] = data
	}
	if err := applyPatch(files, healthstream.Mend); err != nil {
		t.Fatal(err)
	}
	for name, data := range files {
		if err := os.WriteFile(filepath.Join(plugin, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	k := openKubelet(t, dir)
	churn, err := MeasureChurn(t.Context(), k, Options{Progress: func(what string) { t.Log(what) }}, true)
	if err != nil {
		t.Fatal(err)
	}
	if churn.Left > 0 {
		t.Errorf("the mended one left %d health streams", churn.Left)
	}

	if err := os.WriteFile(filepath.Join(plugin, "broken.go"), []byte("package plugin\n\nvar _ = fails()\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	err = Build(t.Context(), openKubelet(t, dir))
	broken := (*kubesource.CompileError)(nil)
	if !errors.As(err, &broken) {
		t.Fatalf("the broken one: %v, want an error of the compiler", err)
	}
	if got, want := broken.Lines[0], pluginPackage+"/broken.go:3:9: undefined: fails"; got != want || broken.Dir != k.Checkout.Dir {
		t.Errorf("error is at %q of %q, want %q of %q", got, broken.Dir, want, k.Checkout.Dir)
	}
	// One that did not compile takes nothing away, and the next one does.
	for _, program := range glob(t, filepath.Join(managers(t), "manager-"+k.Checkout.Key()+"-*")) {
		if !strings.Contains(program, k.Version) {
			t.Errorf("there is %s", program)
		}
		t.Cleanup(func() { _ = os.Remove(program) }) // nobody will ask for it again
	}
}

// copyRelease copies what a release's kubelet is compiled from.
func copyRelease(t *testing.T, version string) string {
	t.Helper()
	cache, err := host.CacheDir()
	if err != nil {
		t.Fatal(err)
	}
	released, err := download(t.Context(), t.TempDir(), filepath.Join(cache, "go-build"), version)
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "kubernetes@"+version)
	for _, part := range []string{"pkg", "cmd", "third_party"} {
		if err := os.CopyFS(filepath.Join(dir, part), os.DirFS(filepath.Join(released.Dir, part))); err != nil {
			t.Fatal(err)
		}
	}
	goMod, err := os.ReadFile(released.GoMod)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "go.mod"), goMod, 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

func openKubelet(t *testing.T, dir string) Kubelet {
	t.Helper()
	c, err := kubesource.Open(t.Context(), dir, "")
	if err != nil {
		t.Fatal(err)
	}
	return FromCheckout(c)
}

func managers(t *testing.T) string {
	t.Helper()
	cache, err := host.CacheDir()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(cache, "kubelets")
}

func glob(t *testing.T, pattern string) []string {
	t.Helper()
	found, err := filepath.Glob(pattern)
	if err != nil || len(found) == 0 {
		t.Fatalf("%s: %v, found %d", pattern, err, len(found))
	}
	return found
}
