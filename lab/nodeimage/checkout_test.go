package nodeimage

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dra-lab/dra-lab/lab/internal/ui"
	"github.com/dra-lab/dra-lab/lab/kubesource"
)

// checkout makes a small Kubernetes whose kubelet has this main function, with a
// staged module where versions are kept.
func checkout(t *testing.T, main string) kubesource.Checkout {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "kubernetes@v1.36.3")
	for name, content := range map[string]string{
		"go.mod": "module k8s.io/kubernetes\n\ngo 1.26.0\n\nrequire k8s.io/component-base v0.0.0\n\n" +
			"replace k8s.io/component-base => ./staging/src/k8s.io/component-base\n",
		"cmd/kubelet/kubelet.go":                            "package main\n\nimport \"k8s.io/component-base/version\"\n\nfunc main() {\n" + main + "\n}\n",
		"staging/src/k8s.io/component-base/go.mod":          "module k8s.io/component-base\n\ngo 1.26.0\n",
		"staging/src/k8s.io/component-base/version/base.go": "package version\n\nvar gitVersion, gitMinor string\n\nfunc String() string { return gitVersion + \" \" + gitMinor }\n",
	} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	c, err := kubesource.Open(t.Context(), dir, "")
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// A checkout's own staged modules are compiled, and its kubelet says what it is
// made from.
func TestKubeletFromCheckout(t *testing.T) {
	goAlone(t, "off")
	s := newTestStore(t)
	c := checkout(t, "\tprint(version.String())")
	st := checkoutProgram(c).step(goTools{})
	dir, err := s.do(t.Context(), st)
	if err != nil {
		t.Fatalf("%v\n%s", err, ui.Detail(err))
	}
	out, err := exec.CommandContext(t.Context(), filepath.Join(dir, "kubelet")).CombinedOutput()
	if got, want := string(out), c.Version()+" 36"; err != nil || got != want {
		t.Errorf("the kubelet says %q, %v, want %q", got, err, want)
	}
	edited := c
	edited.Digest = "0123456789"
	if checkoutProgram(edited).step(goTools{}).key() == st.key() {
		t.Error("the kubelet of an edited checkout has the same key")
	}
}

func TestCheckoutThatDoesNotCompile(t *testing.T) {
	goAlone(t, "off")
	s := newTestStore(t)
	c := checkout(t, "\tprint(version.Strong())\n\tprint(version.Weak())")
	_, err := s.do(t.Context(), checkoutProgram(c).step(goTools{}))
	if broken := (*kubesource.CompileError)(nil); !errors.As(err, &broken) {
		t.Fatalf("error is %v, want one of the compiler", err)
	}
	if want := `compile the kubelet from "` + c.Dir + `": cmd/kubelet/kubelet.go:6:16: undefined: version.Strong`; !strings.HasSuffix(err.Error(), want) {
		t.Errorf("error is %q, want %q at its end", err, want)
	}
	if want := "cmd/kubelet/kubelet.go:7:16: undefined: version.Weak"; !strings.Contains(ui.Detail(err), want) || ui.Hint(err) == "" {
		t.Errorf("detail is %q, want %q in it; hint %q", ui.Detail(err), want, ui.Hint(err))
	}
	wantEmpty(t, s)
}

func TestCheckoutOptions(t *testing.T) {
	c := checkout(t, "")
	o, err := Options{Checkout: &c}.complete()
	if err != nil {
		t.Fatal(err)
	}
	if o.Kubernetes != DefaultKubernetes || o.Kubelet != c.Version() {
		t.Errorf("the image is for %s with kubelet %s", o.Kubernetes, o.Kubelet)
	}
	if got, want := builtRef(o.Kubernetes, o.Kubelet), "dra-lab/node:v1.37.2-kubelet-v1.36.3-lab."+c.Digest; got != want {
		t.Errorf("it is called %q, want %q", got, want)
	}
	if _, err := (Options{Kubernetes: "v1.35.4", Checkout: &c}).complete(); err == nil || ui.Hint(err) == "" {
		t.Errorf("a checkout that is newer than the control plane: %v", err)
	}
	// Based on the same version it is another kubelet still.
	if o, err := (Options{Kubernetes: "v1.36.3", Checkout: &c}).complete(); err != nil || o.Kubelet != c.Version() {
		t.Errorf("kubelet %q, %v", o.Kubelet, err)
	}
}
