package kubesource

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dra-lab/dra-lab/lab/internal/ui"
)

// writeCheckout makes a small checkout called name, with these files beside its
// go.mod, and returns where it is.
func writeCheckout(t *testing.T, name string, files map[string]string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), name)
	write(t, dir, "go.mod", upstreamGoMod)
	for file, content := range files {
		write(t, dir, file, content)
	}
	return dir
}

func write(t *testing.T, dir, name, content string) {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

func open(t *testing.T, dir, base string) Checkout {
	t.Helper()
	c, err := Open(t.Context(), dir, base)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestOpenRefuses(t *testing.T) {
	dir := writeCheckout(t, "kubernetes@v1.37.2", map[string]string{"pkg/a.go": "package pkg\n"})
	other := t.TempDir()
	write(t, other, "go.mod", "module example.com/other\n")
	for name, c := range map[string]struct{ dir, base, want string }{
		"nothing there":        {filepath.Join(dir, "none"), "", "there is no such directory"},
		"a file":               {filepath.Join(dir, "go.mod"), "", "it is not a directory"},
		"no module":            {filepath.Join(dir, "pkg"), "", "it has no go.mod"},
		"another module":       {other, "", `its go.mod is that of "example.com/other"`},
		"nobody knows of what": {writeCheckout(t, "mine", nil), "", "its name does not end with a version"},
		"a minor version":      {dir, "v1.37", `"v1.37" is not of the form v1.37.2`},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Open(t.Context(), c.dir, c.base)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("error is %v, want one with %q", err, c.want)
			}
			if ui.Hint(err) == "" || ui.Status(err) != ui.StatusUsage {
				t.Errorf("hint %q, status %d", ui.Hint(err), ui.Status(err))
			}
		})
	}
}

func TestVersionInName(t *testing.T) {
	for name, want := range map[string]string{
		"kubernetes@v1.37.2":        "v1.37.2",
		"kubernetes@v1.37.2-mended": "v1.37.2",
		"kubernetes-1.36.3":         "v1.36.3",
		"kubernetes-1.38.0-alpha.1": "v1.38.0-alpha.1",
		"kubernetes":                "",
		"release-1.37":              "",
		"v1.37.2.zip":               "",
	} {
		if got := versionInName(name); got != want {
			t.Errorf("versionInName(%q) = %q, want %q", name, got, want)
		}
	}
}

// A clone is based on the last tag before its commit, also when its name says
// something else. A copy inside of another repository is not.
func TestBaseOfClone(t *testing.T) {
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("SKIPPED: git is not installed")
	}
	dir := writeCheckout(t, "kubernetes-1.30.0", nil)
	run := func(args ...string) {
		t.Helper()
		args = append([]string{"-c", "user.name=a", "-c", "user.email=a@example.com", "-c", "commit.gpgSign=false", "-c", "tag.gpgSign=false"}, args...)
		if _, err := git(t.Context(), dir, args...); err != nil {
			t.Fatal(err)
		}
	}
	run("init", "--quiet")
	run("add", ".")
	run("commit", "--quiet", "--message=release")
	if got := open(t, dir, "").Base; got != "v1.30.0" {
		t.Errorf("without a tag it is based on %q, want what its name says", got)
	}
	run("tag", "v1.36.3")
	write(t, dir, "pkg/mend.go", "package pkg\n")
	run("add", ".")
	run("commit", "--quiet", "--message=mend")
	t.Setenv("GIT_DIR", "/nowhere") // as in a hook of another repository
	if got := open(t, dir, "").Base; got != "v1.36.3" {
		t.Errorf("it is based on %q, want the tag", got)
	}
	if got := open(t, dir, "v1.36.1").Base; got != "v1.36.1" {
		t.Errorf("it is based on %q, want what was said", got)
	}
	inside := filepath.Join(dir, "_copy", "kubernetes@v1.37.2")
	write(t, inside, "go.mod", upstreamGoMod)
	if got := open(t, inside, "").Base; got != "v1.37.2" {
		t.Errorf("a copy inside is based on %q, want what its name says", got)
	}
}

func TestVersionFollowsContents(t *testing.T) {
	dir := writeCheckout(t, "kubernetes@v1.37.2", map[string]string{
		"pkg/kubelet/a.go": "package kubelet\n", "pkg/kubelet/a.txt": "embedded\n",
		"staging/src/k8s.io/api/b.go": "package api\n", "pkg/_nothing/c.go": "no Go\n",
	})
	first := open(t, dir, "")
	if !strings.HasPrefix(first.Version(), "v1.37.2+lab.") || len(first.Digest) != 8 {
		t.Errorf("it is called %q", first.Version())
	}
	if err := first.Unchanged(); err != nil {
		t.Error(err)
	}
	for name, content := range map[string]string{
		"pkg/kubelet/a_test.go": "package kubelet\n", "test/e2e/e.go": "package e2e\n", "vendor/x/x.go": "package x\n",
		".git/HEAD": "ref\n", "pkg/kubelet/testdata/d.go": "package d\n", "pkg/kubelet/a.go.orig": "package\n", "README.md": "read me\n",
		"pkg/_nothing/c.go": "still no Go\n",
	} {
		write(t, dir, name, content)
		if now := open(t, dir, ""); now.Version() != first.Version() {
			t.Errorf("%s is no part of a kubelet, but with it the version is %s", name, now.Version())
		}
	}
	seen := map[string]bool{first.Version(): true}
	for _, edit := range []struct{ name, content string }{
		{"pkg/kubelet/a.go", "package kubelet // edited\n"},
		{"pkg/kubelet/a.txt", "embedded, edited\n"},
		{"staging/src/k8s.io/api/b.go", "package api // edited\n"},
		{"cmd/kubelet/new.go", "package main\n"},
		{"go.mod", upstreamGoMod + "\n"},
	} {
		write(t, dir, edit.name, edit.content)
		now := open(t, dir, "")
		if seen[now.Version()] {
			t.Errorf("after an edit of %s it is called %s again", edit.name, now.Version())
		}
		seen[now.Version()] = true
	}
	if err := first.Unchanged(); err == nil || ui.Hint(err) == "" {
		t.Errorf("after edits it counts as unchanged: %v", err)
	}
	// And back.
	write(t, dir, "pkg/kubelet/a.go", "package kubelet\n")
	write(t, dir, "pkg/kubelet/a.txt", "embedded\n")
	write(t, dir, "staging/src/k8s.io/api/b.go", "package api\n")
	write(t, dir, "go.mod", upstreamGoMod)
	if err := os.Remove(filepath.Join(dir, "cmd/kubelet/new.go")); err != nil {
		t.Fatal(err)
	}
	if err := first.Unchanged(); err != nil {
		t.Error(err)
	}
}

// A copy that was made of links is read through them.
func TestLinkedFilesCount(t *testing.T) {
	dir := writeCheckout(t, "kubernetes@v1.37.2", map[string]string{"pkg/_origin": "package pkg\n"})
	if err := os.Symlink("_origin", filepath.Join(dir, "pkg", "a.go")); err != nil {
		t.Fatal(err)
	}
	first := open(t, dir, "")
	write(t, dir, "pkg/_origin", "package pkg // edited\n")
	if open(t, dir, "").Digest == first.Digest {
		t.Error("an edit behind a link goes unnoticed")
	}
	link := filepath.Join(t.TempDir(), "mine")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	if got, want := open(t, link, "").Key(), first.Key(); got != want {
		t.Errorf("by a link its key is %s, want %s", got, want)
	}
}

func TestCompileError(t *testing.T) {
	c := open(t, writeCheckout(t, "kubernetes@v1.37.2", nil), "")
	ranIn := filepath.Join(c.Dir, "..", "work")
	err := c.CompileError("the kubelet", ranIn, "go: downloading example.com/m v1.0.0\n# k8s.io/kubernetes/pkg/a\n"+
		"../kubernetes@v1.37.2/pkg/a/a.go:3:5: undefined: x\n\tas it seems\n"+c.Dir+"/pkg/a/a.go:4:5: undefined: y\nmain.go:1:1: z\n")
	if err == nil {
		t.Fatal("no error")
	}
	if got, want := err.Error(), `compile the kubelet from "`+c.Dir+`": pkg/a/a.go:3:5: undefined: x`; got != want {
		t.Errorf("error is %q, want %q", got, want)
	}
	if got, want := ui.Detail(err), "pkg/a/a.go:3:5: undefined: x\npkg/a/a.go:4:5: undefined: y"; got != want {
		t.Errorf("detail is %q, want %q", got, want)
	}
	if ui.Hint(err) == "" {
		t.Error("no hint")
	}
	if err := c.CompileError("the kubelet", ranIn, "main.go:3:2: module lookup disabled by GOPROXY=off\ngo: example.com/m@v1.0.0: dial tcp: no route to host\n"); err != nil {
		t.Errorf("a network that is away counts as %v", err)
	}
}
