package cluster

import (
	_ "embed" // for the files below
	"fmt"
	"slices"
	"strings"

	"sigs.k8s.io/kind/pkg/apis/config/v1alpha4"

	"github.com/dra-lab/dra-lab/lab/internal/ui"
)

// Files that nodes get. As embedded files they can be read, and linted, as what
// they are; nothing writes these variables.
var (
	//go:embed files/network.sh
	networkScript string
	//go:embed files/network.conf
	networkDropIn string
	//go:embed files/cni.conflist
	cniTemplate string
)

const kubeletDropIns = "/etc/systemd/system/kubelet.service.d"

// addNetwork gives Pods a network where the node images bring none.
//
// Three parts do it, none of which needs a component in the cluster or anything
// from outside of a node, so that it is there before the kubelet is and after
// every restart:
//   - containerd writes the CNI configuration itself, from a template, when the
//     kubelet tells it the node's range of Pod addresses;
//   - the range of all Pods is made a neighbour on the nodes' network, and each
//     node answers for its own Pods (proxy ARP): no node has to know the others;
//   - what leaves the cluster leaves it with the node's address.
func (p *plan) addNetwork() error {
	if p.config.Networking.DisableDefaultCNI {
		return nil // the user brings one
	}
	without := slices.IndexFunc(p.nodes, func(n plannedNode) bool { return !n.image.DefaultCNI })
	if without < 0 {
		return nil // kind brings one, from the image
	}
	image := p.nodes[without].image.Ref
	if family := p.config.Networking.IPFamily; family != v1alpha4.IPv4Family {
		return ui.WithHint(
			fmt.Errorf("networking.ipFamily is %q, and node image %q brings no Pod network", family, image),
			"use ipFamily: ipv4, or a node image with a default CNI, such as kindest/node")
	}
	p.config.Networking.DisableDefaultCNI = true
	if p.in.PodSubnet != "" && (p.in.Config == nil || p.in.Config.Networking.PodSubnet == "") {
		p.config.Networking.PodSubnet = p.in.PodSubnet
	}
	p.config.ContainerdConfigPatches = append(p.config.ContainerdConfigPatches,
		containerdPatch("cni", `conf_template = "/run/dra-lab/cni.conflist"`)...)
	script := strings.ReplaceAll(networkScript, "@POD_SUBNET@", p.config.Networking.PodSubnet)
	files := []File{
		{Path: p.hostPath("network.sh"), Data: script, Mode: 0o755},
		{Path: p.hostPath("network.conf"), Data: networkDropIn, Mode: 0o644},
		{Path: p.hostPath("cni.conflist"), Data: cniTemplate, Mode: 0o644},
	}
	for i := range p.config.Nodes {
		n := &p.config.Nodes[i]
		n.ExtraMounts = append(n.ExtraMounts, v1alpha4.Mount{
			HostPath: p.hostPath("network.conf"), ContainerPath: kubeletDropIns + "/20-dra-lab-network.conf", Readonly: true,
		})
	}
	p.add(Addition{
		What:  "a Pod network of plain routes for " + p.config.Networking.PodSubnet,
		Why:   fmt.Sprintf("node image %q brings none", image),
		Files: files,
	})
	return nil
}

// containerdPatch returns patches of containerd's CRI configuration for all
// versions of the file; kind applies the one that fits.
func containerdPatch(table, text string) []string {
	patch := func(version int, plugin string) string {
		if table != "" {
			plugin += "." + table
		}
		return fmt.Sprintf("version = %d\n[plugins.%s]\n%s\n", version, plugin, text)
	}
	return []string{
		patch(2, `"io.containerd.grpc.v1.cri"`),
		patch(3, `"io.containerd.cri.v1.runtime"`),
		patch(4, `"io.containerd.cri.v1.runtime"`),
	}
}
