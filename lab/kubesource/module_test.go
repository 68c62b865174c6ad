package kubesource

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const upstreamGoMod = `// This is a generated file.
module k8s.io/kubernetes

go 1.26.0

godebug default=go1.26

require (
	bitbucket.org/bertimus9/systemstat v0.5.0
	k8s.io/api v0.0.0
)

replace (
	k8s.io/api => ./staging/src/k8s.io/api
	k8s.io/client-go => ./staging/src/k8s.io/client-go
)
`

func TestReleaseModule(t *testing.T) {
	got, err := ReleaseModule("dra-lab.invalid/kubernetes", []byte(upstreamGoMod), "v1.37.2", "k8s.io/api")
	if err != nil {
		t.Fatal(err)
	}
	want := `module dra-lab.invalid/kubernetes

go 1.26.0

godebug default=go1.26

require (
	k8s.io/kubernetes v1.37.2
	k8s.io/api v0.0.0
)

replace k8s.io/api => k8s.io/api v0.37.2

replace k8s.io/client-go => k8s.io/client-go v0.37.2
`
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Errorf("go.mod (-want +got):\n%s", diff)
	}
	for name, c := range map[string]struct{ goMod, version string }{
		"nothing is staged":           {"module k8s.io/kubernetes\n", "v1.37.2"},
		"not a version of Kubernetes": {upstreamGoMod, "0.37.2"},
		"not a go.mod":                {"<html>", "v1.37.2"},
	} {
		if _, err := ReleaseModule("m", []byte(c.goMod), c.version); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// A clone has the staged modules; what it lacks was published.
func TestCheckoutModule(t *testing.T) {
	dir := writeCheckout(t, "kubernetes@v1.37.2", map[string]string{"staging/src/k8s.io/api/go.mod": "module k8s.io/api\n"})
	c := open(t, dir, "")
	got, err := c.Module("m")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"require k8s.io/kubernetes v1.37.2\n",
		"replace k8s.io/kubernetes => " + c.Dir + "\n",
		"replace k8s.io/api => " + filepath.Join(c.Dir, "staging/src/k8s.io/api") + "\n",
		"replace k8s.io/client-go => k8s.io/client-go v0.37.2\n",
	} {
		if !strings.Contains(string(got), want) {
			t.Errorf("go.mod lacks %q:\n%s", want, got)
		}
	}
}

func TestStagingVersion(t *testing.T) {
	for in, want := range map[string]string{"v1.37.2": "v0.37.2", "v1.38.0-beta.0": "v0.38.0-beta.0", "v2.0.0": ""} {
		if got, err := stagingVersion(in); got != want || (err == nil) != (want != "") {
			t.Errorf("stagingVersion(%s) = %q, %v", in, got, err)
		}
	}
}
