package cluster

import (
	"errors"
	"fmt"
	"path"
	"path/filepath"
	"regexp"
	"slices"

	"sigs.k8s.io/kind/pkg/apis/config/v1alpha4"

	"github.com/dra-lab/dra-lab/lab/host"
	"github.com/dra-lab/dra-lab/lab/internal/ui"
	"github.com/dra-lab/dra-lab/lab/nodeimage"
	"github.com/dra-lab/dra-lab/lab/passthrough"
)

const (
	// SharedDir is where every node has the cluster's shared directory.
	SharedDir = "/var/lib/dra-lab/shared"
	// nodeFilesDir is where every node has the files that Plan made for it.
	nodeFilesDir = "/kind/dra-lab"

	sharedSubdir    = "shared"
	nodeFilesSubdir = "node"
)

// PlanInput is all that Plan decides by.
type PlanInput struct {
	Name string
	// Config is the user's, from ParseConfig; nil is one control plane and two
	// workers. Plan does not change it.
	Config *v1alpha4.Cluster
	// Image is for the nodes that the config names no image for.
	Image nodeimage.Image
	// Images has the facts of the images that the config names, by the names
	// that it has for them.
	Images map[string]nodeimage.Image
	// Restrictions is what the host withholds.
	Restrictions host.Restrictions
	// Dir is the cluster's state directory, absolute: what the plan mounts into
	// the nodes lies there.
	Dir string
	// PodSubnet is for a cluster whose Pod network Plan makes and whose config
	// names no range; "" is kind's default.
	PodSubnet string
	// GPUs are the host's, for its workers; nil is none.
	GPUs *passthrough.Source
}

// An Addition is something that the plan has and the user's config has not.
type Addition struct {
	What, Why string
	// Files must be on the host before the cluster is made.
	Files []File
}

func (a Addition) String() string { return fmt.Sprintf("%s: %s", a.What, a.Why) }

// A File is a file on the host that nodes have mounted.
type File struct {
	Path string // absolute
	Data string
	Mode uint32 // permission bits
}

// Plan returns the kind config to make a cluster from, and what it added to the
// user's. The result depends on nothing but the input. An error names what of
// the input cannot be had, with the cure as its hint.
func Plan(in PlanInput) (*v1alpha4.Cluster, []Addition, error) {
	p, err := newPlan(in)
	if err != nil {
		return nil, nil, fmt.Errorf("plan cluster %q: %w", in.Name, err)
	}
	for _, step := range []func() error{p.addGates, p.addNetwork, p.addHost, p.addGPUs, p.addMounts} {
		if err := step(); err != nil {
			return nil, nil, fmt.Errorf("plan cluster %q: %w", in.Name, err)
		}
	}
	return p.config, p.additions, nil
}

type plan struct {
	in        PlanInput
	config    *v1alpha4.Cluster
	nodes     []plannedNode // as config.Nodes
	additions []Addition
}

type plannedNode struct {
	name  string
	image nodeimage.Image
}

func newPlan(in PlanInput) (*plan, error) {
	if err := CheckName(in.Name); err != nil {
		return nil, err
	}
	if !filepath.IsAbs(in.Dir) {
		return nil, fmt.Errorf("state directory %q is not absolute", in.Dir)
	}
	p := &plan{in: in, config: in.Config.DeepCopy()}
	if p.config == nil {
		p.config = DefaultConfig()
	}
	p.config.TypeMeta = v1alpha4.TypeMeta{Kind: configKind, APIVersion: configAPIVersion}
	if given := p.config.Name; given != "" && given != in.Name {
		p.add(Addition{What: "name: " + in.Name, Why: fmt.Sprintf("--name says so, the config says %q", given)})
	}
	p.config.Name = in.Name
	if len(p.config.Nodes) == 0 {
		p.config.Nodes = []v1alpha4.Node{{Role: v1alpha4.ControlPlaneRole}}
	}
	count := make(map[v1alpha4.NodeRole]int)
	for i := range p.config.Nodes {
		n := &p.config.Nodes[i]
		if n.Role == "" {
			n.Role = v1alpha4.ControlPlaneRole
		}
		count[n.Role]++
		image, err := p.image(n)
		if err != nil {
			return nil, err
		}
		p.nodes = append(p.nodes, plannedNode{name: nodeName(in.Name, n.Role, count[n.Role]), image: image})
	}
	v1alpha4.SetDefaultsCluster(p.config)
	return p, nil
}

// image sets a node's image if the user did not, and returns what is known of it.
func (p *plan) image(n *v1alpha4.Node) (nodeimage.Image, error) {
	if n.Image == "" {
		if p.in.Image.Ref == "" {
			return nodeimage.Image{}, errors.New("no node image was given")
		}
		n.Image = p.in.Image.Ref
		return p.in.Image, nil
	}
	image, ok := p.in.Images[n.Image]
	if !ok {
		return nodeimage.Image{}, fmt.Errorf("nothing is known of node image %q", n.Image)
	}
	return image, nil
}

// nodeName is how kind names the count-th node of a role, from 1.
func nodeName(cluster string, role v1alpha4.NodeRole, count int) string {
	if count == 1 {
		return fmt.Sprintf("%s-%s", cluster, role)
	}
	return fmt.Sprintf("%s-%s%d", cluster, role, count)
}

// controlPlane returns the first control-plane node: its image decides the
// version of the control plane.
func (p *plan) controlPlane() plannedNode {
	i := slices.IndexFunc(p.config.Nodes, func(n v1alpha4.Node) bool { return n.Role == v1alpha4.ControlPlaneRole })
	return p.nodes[max(i, 0)]
}

func (p *plan) add(a Addition) { p.additions = append(p.additions, a) }

// hostPath returns the path on the host of a file that nodes have in
// nodeFilesDir.
func (p *plan) hostPath(name string) string {
	return filepath.Join(p.in.Dir, nodeFilesSubdir, filepath.FromSlash(name))
}

// addMounts mounts the shared directory everywhere, and the files that other
// steps made, if any.
func (p *plan) addMounts() error {
	mounts := []v1alpha4.Mount{{HostPath: filepath.Join(p.in.Dir, sharedSubdir), ContainerPath: SharedDir}}
	if slices.ContainsFunc(p.additions, func(a Addition) bool { return len(a.Files) > 0 }) {
		mounts = append(mounts, v1alpha4.Mount{
			HostPath: filepath.Join(p.in.Dir, nodeFilesSubdir), ContainerPath: nodeFilesDir, Readonly: true,
		})
	}
	for i := range p.config.Nodes {
		n := &p.config.Nodes[i]
		for _, m := range n.ExtraMounts {
			if slices.ContainsFunc(mounts, func(ours v1alpha4.Mount) bool { return path.Clean(m.ContainerPath) == ours.ContainerPath }) {
				return ui.WithHint(fmt.Errorf("nodes[%d] mounts %s, which the lab needs itself", i, m.ContainerPath),
					"mount %s somewhere else in the node", m.HostPath)
			}
		}
		n.ExtraMounts = append(n.ExtraMounts, mounts...)
	}
	p.add(Addition{
		What: "directory " + SharedDir + ", shared by all nodes",
		Why:  "the training job's checkpoints outlive a node",
	})
	return nil
}

// CheckName refuses names that a cluster cannot have. Node names are made from
// it and must be host names.
func CheckName(name string) error {
	const most = 63 - len("-control-plane9")
	ok := regexp.MustCompile(`^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$`).MatchString(name)
	if !ok || len(name) > most {
		return ui.WithHint(fmt.Errorf("%q is not a cluster name", name),
			"use at most %d of a-z, 0-9, - and ., with a letter or number first and last", most)
	}
	return nil
}
