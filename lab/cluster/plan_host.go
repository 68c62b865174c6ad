package cluster

import (
	_ "embed" // for the file below
	"slices"

	"github.com/dra-lab/dra-lab/lab/cluster/gates"
)

// limitsDropIn is what containerd's unit gets on a restricted host.
//
//go:embed files/limits.conf
var limitsDropIn string

const whyRestricted = "this host withholds CAP_SYS_RESOURCE from containers"

// addHost works around what the host withholds.
func (p *plan) addHost() error {
	if p.in.Restrictions.CapSysResource {
		p.config.ContainerdConfigPatches = append(p.config.ContainerdConfigPatches,
			containerdPatch("", "restrict_oom_score_adj = true")...)
		p.add(Addition{What: "containerd: restrict_oom_score_adj = true", Why: whyRestricted})
		// Images of ours have no such limits in the first place.
		if slices.ContainsFunc(p.nodes, func(n plannedNode) bool { return !n.image.Built }) {
			host := p.hostPath("limits.conf")
			p.mountEverywhere(host, "/etc/systemd/system/containerd.service.d/20-dra-lab-limits.conf")
			p.add(Addition{
				What: "containerd's unit: no raised limits", Why: whyRestricted,
				Files: []File{{Path: host, Data: limitsDropIn, Mode: 0o644}},
			})
		}
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
