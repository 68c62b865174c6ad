package nodeimage

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/dra-lab/dra-lab/lab/internal/ui"
)

func TestParseVersion(t *testing.T) {
	for in, want := range map[string]string{
		"v1.37.2":       "v1.37.2",
		"1.36.3":        "v1.36.3",
		"v1.38.0-rc.1":  "v1.38.0-rc.1",
		"v1.37":         "",
		"v2.0.0":        "",
		"latest":        "",
		"":              "",
		"v1.37.2; true": "",
		"v1.037.2":      "",
	} {
		got, err := ParseVersion(in)
		if got != want || (err == nil) != (want != "") {
			t.Errorf("ParseVersion(%q) = %q, %v; want %q", in, got, err, want)
		}
		if err != nil && (ui.Status(err) != ui.StatusUsage || ui.Hint(err) == "") {
			t.Errorf("ParseVersion(%q): status %d, hint %q", in, ui.Status(err), ui.Hint(err))
		}
	}
}

// The texts are what Go 1.26 said.
func TestClassifyModuleError(t *testing.T) {
	const module, version = "k8s.io/kubernetes", "v1.99.0"
	for _, test := range []struct {
		name, text string
		want       error
	}{
		{
			"proxy without the version",
			"go: k8s.io/kubernetes@v1.99.0: reading https://proxy.example/k8s.io/kubernetes/@v/v1.99.0.info: 404 Not Found\n\tserver response: not found: k8s.io/kubernetes@v1.99.0: invalid version: unknown revision v1.99.0",
			ErrNoVersion,
		},
		{
			"proxy that serves selected versions",
			"go: k8s.io/kubernetes@v1.99.0: reading https://proxy.example/k8s.io/kubernetes/@v/v1.99.0.info: 403 Forbidden\n\tserver response: This module version is not available.",
			ErrNoVersion,
		},
		{
			"straight from the repository",
			"go: k8s.io/kubernetes@v1.99.0: invalid version: unknown revision v1.99.0",
			ErrNoVersion,
		},
		{"proxy switched off", "go: k8s.io/kubernetes@v1.99.0: module lookup disabled by GOPROXY=off", ErrNoNetwork},
		{
			"nobody at the proxy's address",
			`go: k8s.io/kubernetes@v1.99.0: Get "http://127.0.0.1:1/k8s.io/kubernetes/@v/v1.99.0.info": dial tcp 127.0.0.1:1: connect: connection refused`,
			ErrNoNetwork,
		},
		{
			"no name service",
			`go: k8s.io/kubernetes@v1.99.0: Get "https://proxy.example/k8s.io/kubernetes/@v/v1.99.0.info": dial tcp: lookup proxy.example: no such host`,
			ErrNoNetwork,
		},
		{"a dependency that is gone", "go: k8s.io/kubernetes@v1.99.0 requires\n\texample.com/x@v1.0.0: reading ...: 404 Not Found", nil},
		{"code that does not compile", "# k8s.io/api/core/v1\n../types.go:1:1: syntax error", nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			cause := ui.WithDetail(errors.New("exit status 1"), "output", test.text)
			err := classifyModuleError(module, version, cause)
			for _, sentinel := range []error{ErrNoVersion, ErrNoNetwork} {
				if got, want := errors.Is(err, sentinel), errors.Is(test.want, sentinel); got != want {
					t.Errorf("is %q: %t, want %t (%v)", sentinel, got, want, err)
				}
			}
			if !strings.Contains(err.Error(), module) {
				t.Errorf("%q does not name the module", err)
			}
		})
	}
}

// moduleProxy serves versions of Kubernetes the way a Go module proxy does, as
// far as asking for versions goes, and points Go at itself.
func moduleProxy(t *testing.T, versions ...string) {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		file, ok := strings.CutPrefix(r.URL.Path, "/k8s.io/kubernetes/@v/")
		version := strings.TrimSuffix(file, ".info")
		switch {
		case ok && file == "list":
			_, _ = w.Write([]byte(strings.Join(versions, "\n")))
		case ok && slices.Contains(versions, version):
			_, _ = w.Write([]byte(`{"Version":"` + version + `","Time":"2026-01-01T00:00:00Z"}`))
		case ok && strings.HasSuffix(file, ".mod"):
			_, _ = w.Write([]byte("module k8s.io/kubernetes\n"))
		default:
			http.Error(w, "not found: unknown revision", http.StatusNotFound)
		}
	}))
	t.Cleanup(server.Close)
	goAlone(t, server.URL)
}

// goAlone gives Go an empty module cache and the proxy of the test.
func goAlone(t *testing.T, proxy string) {
	t.Helper()
	if _, err := exec.LookPath("go"); err != nil {
		t.Skip("SKIPPED: Go is not installed")
	}
	t.Setenv("GOPROXY", proxy)
	t.Setenv("GONOSUMDB", "*")
	modules, err := os.MkdirTemp("", "modules-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := removeAll(modules); err != nil { // Go makes it read-only
			t.Error(err)
		}
	})
	t.Setenv("GOMODCACHE", modules)
	t.Setenv("GOTOOLCHAIN", "local")
}

func TestVersionThatDoesNotExist(t *testing.T) {
	moduleProxy(t, "v1.34.4", "v1.36.1", "v1.36.3", "v1.37.2", "v1.38.0-beta.0")
	err := goTools{}.checkKubernetes(t.Context(), "v1.37.9")
	if !errors.Is(err, ErrNoVersion) || !strings.Contains(err.Error(), "v1.37.9") {
		t.Errorf("error is %v", err)
	}
	if hint := ui.Hint(err); !strings.Contains(hint, "v1.37.2") || !strings.Contains(hint, "go list -m -versions k8s.io/kubernetes") {
		t.Errorf("hint is %q", hint)
	}
}

func TestVersionWithoutNetwork(t *testing.T) {
	goAlone(t, "off")
	err := goTools{}.checkKubernetes(t.Context(), "v1.37.2")
	if !errors.Is(err, ErrNoNetwork) || errors.Is(err, ErrNoVersion) {
		t.Errorf("error is %v", err)
	}
	if !strings.Contains(ui.Hint(err), "GOPROXY") {
		t.Errorf("hint is %q", ui.Hint(err))
	}
}

func TestNearest(t *testing.T) {
	served := []string{"v1.13.0", "v1.34.4", "v1.35.4", "v1.36.1", "v1.36.3", "v1.37.2", "v1.38.0-beta.0"}
	for wanted, want := range map[string]string{
		"v1.36.9": "v1.37.2 v1.36.3 v1.36.1 v1.35.4",
		"v1.99.0": "v1.38.0-beta.0 v1.37.2 v1.36.3 v1.36.1",
		"v1.34.0": "v1.36.3 v1.36.1 v1.35.4 v1.34.4",
	} {
		got := strings.Join(nearest(wanted, served, 4), " ")
		if got != want {
			t.Errorf("nearest(%s) = %s, want %s", wanted, got, want)
		}
	}
	if got := nearest("v1.37.2", nil, 4); len(got) != 0 {
		t.Errorf("nearest of nothing = %v", got)
	}
}

func TestClosest(t *testing.T) {
	served := []string{"v1.14.3", "v1.14.7", "v1.15.0", "v1.16.0-rc.1"}
	for wanted, want := range map[string]string{
		"v1.14.3": "v1.14.3", // itself
		"v1.14.4": "v1.14.7", // later patches of its minor version
		"v1.14.9": "v1.14.7", // else an earlier one
		"v1.12.1": "v1.14.3", // nothing earlier
		"v1.17.0": "v1.15.0", // nothing later, and no release candidates
	} {
		if got := closest(wanted, served); got != want {
			t.Errorf("closest(%s) = %s, want %s", wanted, got, want)
		}
	}
	if got := closest("v1.14.3", nil); got != "" {
		t.Errorf("closest of nothing = %q", got)
	}
}
