// Package passthrough divides the real GPUs of a host among the nodes of a
// cluster. It decides only: which files of the host a node has to have mounted,
// and where. Nodes are privileged, so what they lack besides is nothing: they
// need no container toolkit, no hook, and nothing is installed in them.
//
// A node's driver keeps to the device nodes in its folder, [driverroot.Dir]. That
// divides GPUs between drivers, not between programs: a privileged node sees all
// devices of the host, and a privileged Pod on it, too.
package passthrough

import (
	"fmt"
	"slices"
	"strings"

	"github.com/dra-lab/dra-lab/driver/driverroot"
	"github.com/dra-lab/dra-lab/lab/host/gpu"
	"github.com/dra-lab/dra-lab/lab/internal/ui"
)

// Source is what a host gives to nodes. It does not change.
type Source struct {
	driver    string // version
	gpus      []gpuNode
	shared    []Mount
	libraries []Mount
}

type gpuNode struct {
	gpu.GPU
	mount Mount
}

// Mount is a file of the host in a node.
type Mount struct {
	Host, Node string // absolute paths
	ReadOnly   bool
}

// New finds the files that belong to these GPUs, which are some of those in f. A
// path that no container engine can mount is an error.
func New(f gpu.Facts, gpus []gpu.GPU) (*Source, error) {
	s := &Source{driver: f.Driver}
	for _, library := range f.Libraries {
		m, err := mount(f, library.Path, driverroot.Library(driverroot.Dir, library.Soname), true)
		if err != nil {
			return nil, err
		}
		s.libraries = append(s.libraries, m)
	}
	for _, name := range driverroot.SharedNodes() {
		if _, ok := f.Nodes["/dev/"+name]; !ok {
			continue
		}
		m, err := mount(f, "/dev/"+name, driverroot.Device(driverroot.Dir, name), false)
		if err != nil {
			return nil, err
		}
		s.shared = append(s.shared, m)
	}
	for _, g := range gpus {
		m, err := mount(f, g.Node(), driverroot.Device(driverroot.Dir, driverroot.GPUNode(g.Minor)), false)
		if err != nil {
			return nil, err
		}
		s.gpus = append(s.gpus, gpuNode{g, m})
	}
	return s, nil
}

func mount(f gpu.Facts, inside, node string, readOnly bool) (Mount, error) {
	path, err := f.HostPath(inside)
	if err != nil {
		return Mount{}, fmt.Errorf("find %q of the driver root: %w", inside, err)
	}
	if strings.ContainsAny(path, ":,\n") {
		return Mount{}, ui.WithHint(fmt.Errorf("mount %q into nodes: no container engine takes such a path", path), "move the driver root elsewhere")
	}
	return Mount{Host: path, Node: node, ReadOnly: readOnly}, nil
}

// String is for messages.
func (s *Source) String() string {
	var models []string
	for _, g := range s.gpus {
		models = append(models, g.Model)
	}
	return fmt.Sprintf("%d with NVIDIA driver %s (%s)", len(s.gpus), s.driver, strings.Join(slices.Compact(models), ", "))
}

// Share is what one node gets. Without GPUs it has no mounts either.
type Share struct {
	GPUs   []gpu.GPU
	Mounts []Mount
}

// String is for messages.
func (s Share) String() string {
	libraries := 0
	var devices []string
	for _, m := range s.Mounts {
		if m.ReadOnly {
			libraries++
		} else {
			devices = append(devices, m.Host)
		}
	}
	return fmt.Sprintf("%s and %d libraries", strings.Join(devices, ", "), libraries)
}

// Split divides the GPUs among nodes, as evenly as it goes, in the order of
// their addresses: neighbours on the bus stay together. With more nodes than
// GPUs the last nodes get none.
func (s *Source) Split(nodes int) []Share {
	shares := make([]Share, nodes)
	rest := s.gpus
	for i := range shares {
		// Rounded up, so that earlier nodes have what does not divide.
		n := (len(rest) + nodes - i - 1) / (nodes - i)
		if n == 0 {
			break
		}
		for _, g := range rest[:n] {
			shares[i].GPUs = append(shares[i].GPUs, g.GPU)
			shares[i].Mounts = append(shares[i].Mounts, g.mount)
		}
		shares[i].Mounts = slices.Concat(shares[i].Mounts, s.shared, s.libraries)
		rest = rest[n:]
	}
	return shares
}
