package kubelets

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
)

const (
	modulePath    = "dra-lab.invalid/manager"
	kubernetes    = "k8s.io/kubernetes"
	pluginPackage = "pkg/kubelet/cm/dra/plugin"
)

// moduleFile derives the go.mod of a module that uses Kubernetes from outside.
// Upstream replaces k8s.io/api and its like by folders of its own tree, which a
// downloaded module lacks; Kubernetes v1.X.Y has published them as v0.X.Y.
func moduleFile(upstream []byte, version string) ([]byte, error) {
	minor, ok := strings.CutPrefix(version, "v1.")
	if !ok {
		return nil, fmt.Errorf("read version %q: it does not begin with v1", version)
	}
	var head, replaces bytes.Buffer
	for line := range strings.Lines(string(upstream)) {
		line = strings.TrimPrefix(strings.TrimSpace(line), "replace ")
		if strings.HasPrefix(line, "go ") || strings.HasPrefix(line, "godebug default=") {
			fmt.Fprintln(&head, line)
		}
		if module, _, ok := strings.Cut(line, " => ./staging/src/"); ok {
			fmt.Fprintf(&replaces, "replace %s => %s v0.%s\n", module, module, minor)
		}
	}
	if replaces.Len() == 0 {
		return nil, errors.New("derive module: upstream replaces nothing by ./staging")
	}
	var out bytes.Buffer
	fmt.Fprintf(&out, "module %s\n\n%s\nrequire %s %s\n", modulePath, &head, kubernetes, version)
	// Imported by the program itself. Without a version here, Go would look
	// for the newest.
	for _, module := range []string{"k8s.io/apiserver", "k8s.io/kubelet"} {
		fmt.Fprintf(&out, "require %s v0.0.0\n", module)
	}
	fmt.Fprintf(&out, "\n%s", &replaces)
	return out.Bytes(), nil
}

// newAPI says whether a version has the signatures of v1.37 and later.
func newAPI(version string) bool {
	var minor int
	if _, err := fmt.Sscanf(version, "v1.%d.", &minor); err != nil {
		return true
	}
	return minor >= 37
}
