package cluster

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"sigs.k8s.io/kind/pkg/apis/config/v1alpha4"

	"github.com/dra-lab/dra-lab/driver/driverroot"
	"github.com/dra-lab/dra-lab/lab/internal/ui"
)

// addGPUs gives the workers their parts of the host's GPUs; all nodes, when
// there are no workers. Nodes are privileged, so what they lack of a GPU is the
// user-mode half of its driver. They get it in one folder, together with the
// device nodes that say which GPUs are theirs.
func (p *plan) addGPUs() error {
	if p.in.GPUs == nil {
		return nil
	}
	var takers []int
	for i, n := range p.config.Nodes {
		if n.Role == v1alpha4.WorkerRole {
			takers = append(takers, i)
		}
	}
	if len(takers) == 0 {
		for i := range p.config.Nodes {
			takers = append(takers, i)
		}
	}
	for i, share := range p.in.GPUs.Split(len(takers)) {
		n := &p.config.Nodes[takers[i]]
		name := p.nodes[takers[i]].name
		if m := slices.IndexFunc(n.ExtraMounts, func(m v1alpha4.Mount) bool { return below(m.ContainerPath, driverroot.Dir) }); m >= 0 {
			return ui.WithHint(fmt.Errorf("nodes[%d] mounts %s, which the lab needs for GPUs", takers[i], n.ExtraMounts[m].ContainerPath),
				"mount %s somewhere else in the node", n.ExtraMounts[m].HostPath)
		}
		if len(share.GPUs) == 0 {
			p.add(Addition{What: "no GPU for node " + name, Why: "this host has fewer than there are nodes for them"})
			continue
		}
		for _, m := range share.Mounts {
			n.ExtraMounts = append(n.ExtraMounts, v1alpha4.Mount{HostPath: m.Host, ContainerPath: m.Node, Readonly: m.ReadOnly})
		}
		p.add(Addition{
			What: fmt.Sprintf("%s below %s of node %s", share, driverroot.Dir, name),
			Why:  "its driver publishes these GPUs and no others",
		})
	}
	return nil
}

func below(inside, dir string) bool {
	inside = path.Clean(inside)
	return inside == dir || strings.HasPrefix(inside, dir+"/")
}
