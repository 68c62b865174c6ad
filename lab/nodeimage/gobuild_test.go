package nodeimage

import (
	"archive/zip"
	"bytes"
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dra-lab/dra-lab/lab/internal/ui"
)

func TestCompiledPackage(t *testing.T) {
	for line, want := range map[string]bool{
		"k8s.io/api/core/v1": true,
		"errors":             true,
		"go: downloading golang.org/x/net v0.50.0": false,
		"# k8s.io/api/core/v1":                     false,
		"./main.go:3:8: undefined: x":              false,
		"":                                         false,
	} {
		if _, got := compiledPackage(line); got != want {
			t.Errorf("compiledPackage(%q) = %t", line, got)
		}
	}
}

func TestVersionFlags(t *testing.T) {
	got := kubernetesVersionFlags("v1.37.2")
	for _, want := range []string{".gitVersion=v1.37.2", ".gitMajor=1", ".gitMinor=37", ".buildDate=1970-01-01T00:00:00Z"} {
		if !strings.Contains(got, "-X k8s.io/component-base/version"+want) {
			t.Errorf("%q lacks %q", got, want)
		}
	}
}

func TestProgramKeyFollowsFlags(t *testing.T) {
	base := program{name: "p", module: "example.com/m", version: "v1.0.0", packages: []string{"a"}}
	changed := map[string]program{}
	for what, change := range map[string]func(*program){
		"version": func(p *program) { p.version = "v1.0.1" },
		"package": func(p *program) { p.packages = []string{"b"} },
		"tags":    func(p *program) { p.tags = []string{"x"} },
		"flags":   func(p *program) { p.ldflags = "-X a.b=c" },
		"cgo":     func(p *program) { p.cgo = true },
		"main":    func(p *program) { p.main = "package main" },
	} {
		p := base
		change(&p)
		changed[what] = p
	}
	for what, p := range changed {
		if p.step(goTools{}).key() == base.step(goTools{}).key() {
			t.Errorf("another %s, same key", what)
		}
	}
	if base.step(goTools{}).key() != base.step(goTools{buildCache: "/elsewhere"}).key() {
		t.Error("where the compiler keeps its cache changes the key")
	}
}

// What users have set for their own work must not change what is built.
func TestGoIsIndependentOfTheUser(t *testing.T) {
	t.Setenv("GOFLAGS", "-mod=vendor")
	t.Setenv("GOWORK", "/nowhere/go.work")
	t.Setenv("GOARCH", "wasm")
	out, err := run(t.Context(), goTools{buildCache: "/cache"}.command(t.Context(), "", false,
		"env", "GOFLAGS", "GOWORK", "CGO_ENABLED", "GOCACHE"), nil)
	if errors.Is(err, exec.ErrNotFound) {
		t.Skip("SKIPPED: Go is not installed")
	}
	if err != nil {
		t.Fatal(err)
	}
	if got, want := strings.Join(strings.Fields(out), " "), "-mod=mod off 0 /cache"; got != want {
		t.Errorf("go env says %q, want %q", got, want)
	}
}

// sources serves a module, and points Go at itself. It calls onDownload, if
// that is not nil, when somebody comes for the module's files.
func sources(t *testing.T, files map[string]string, onDownload func(*http.Request)) {
	t.Helper()
	const module, version = "dra-lab.example/tool", "v1.2.3"
	var archive bytes.Buffer
	zw := zip.NewWriter(&archive)
	for name, content := range files {
		w, err := zw.Create(module + "@" + version + "/" + name)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(content)); err != nil {
			t.Fatal(err)
		}
	}
	if err := zw.Close(); err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch strings.TrimPrefix(r.URL.Path, "/"+module+"/@v/"+version) {
		case ".info":
			_, _ = w.Write([]byte(`{"Version":"` + version + `"}`))
		case ".mod":
			_, _ = w.Write([]byte(files["go.mod"]))
		case ".zip":
			if onDownload != nil {
				onDownload(r)
			}
			_, _ = w.Write(archive.Bytes())
		default:
			http.NotFound(w, r)
		}
	}))
	t.Cleanup(server.Close)
	goAlone(t, server.URL)
}

// Somebody presses Ctrl-C while Go downloads what it is to compile. The next
// build starts that step again, and no other.
func TestInterruptedCompilation(t *testing.T) {
	interrupt := errors.New("interrupted")
	ctx, cancel := context.WithCancelCause(t.Context())
	sources(t, map[string]string{
		"go.mod":           "module dra-lab.example/tool\n\ngo 1.24\n",
		"part/part.go":     "package part\n\nconst Text = \"built\"\n",
		"cmd/tool/main.go": "package main\n\nimport \"dra-lab.example/tool/part\"\n\nfunc main() { print(part.Text) }\n",
	}, func(r *http.Request) {
		if ctx.Err() == nil {
			cancel(interrupt)
			<-r.Context().Done() // until Go is gone
		}
	})
	s := newTestStore(t)
	st := program{
		name: "tool", title: "tool", module: "dra-lab.example/tool", version: "v1.2.3", packages: []string{"cmd/tool"},
	}.step(goTools{}) // the user's build cache, which has Go's own packages from the second run on

	if _, err := s.do(ctx, st); !errors.Is(err, interrupt) {
		t.Fatalf("interrupted: %v", err)
	}
	wantEmpty(t, s)
	if s.has(st) {
		t.Fatal("the store has the output of an interrupted step")
	}

	dir, err := s.do(t.Context(), st)
	if err != nil {
		t.Fatalf("resumed: %v\n%s", err, ui.Detail(err))
	}
	out, err := exec.CommandContext(t.Context(), filepath.Join(dir, "tool")).CombinedOutput()
	if err != nil || string(out) != "built" {
		t.Errorf("the program says %q, %v", out, err)
	}
}
