package kubelets

import (
	"fmt"

	"github.com/dra-lab/dra-lab/lab/kubesource"
)

const (
	modulePath    = "dra-lab.invalid/manager"
	kubernetes    = kubesource.Module
	pluginPackage = "pkg/kubelet/cm/dra/plugin"
)

// newAPI says whether a version has the signatures of v1.37 and later.
func newAPI(version string) bool {
	var minor int
	if _, err := fmt.Sscanf(version, "v1.%d.", &minor); err != nil {
		return true
	}
	return minor >= 37
}
