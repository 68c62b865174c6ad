package cluster

import (
	"slices"

	"github.com/dra-lab/dra-lab/lab/cluster/gates"
)

const (
	whyRestricted    = "this host withholds CAP_SYS_RESOURCE from containers"
	whyUserNamespace = "containers of this host run in a user namespace"
)

// addHost works around what the host withholds. Some well-known workarounds are
// left out because they were seen not to be needed: systemd starts containerd
// without the limits that kind's unit asks for if it may not raise them, and
// kube-proxy leaves the limits of connection tracking alone since kind sets
// maxPerCore to 0.
func (p *plan) addHost() error {
	if p.in.Restrictions.CapSysResource {
		p.config.ContainerdConfigPatches = append(p.config.ContainerdConfigPatches,
			containerdPatch("", "restrict_oom_score_adj = true")...)
		p.add(Addition{What: "containerd: restrict_oom_score_adj = true", Why: whyRestricted})
	}
	if p.in.Restrictions.CgroupV1 && slices.ContainsFunc(p.nodes, refusesCgroupV1) {
		p.config.KubeadmConfigPatches = append(p.config.KubeadmConfigPatches,
			mustYAML(map[string]any{"kind": "KubeletConfiguration", "failCgroupV1": false}))
		p.add(Addition{
			What: "kubelet: failCgroupV1: false",
			Why:  "this host has control groups version 1, which kubelets from 1.35 on refuse by default",
		})
	}
	return nil
}

// refusesCgroupV1 reports whether a node's kubelet does so by default.
func refusesCgroupV1(n plannedNode) bool {
	minor, ok := gates.Minor(n.image.Kubelet)
	return ok && minor >= "1.35" // all supported ones have two digits
}
