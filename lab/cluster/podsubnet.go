package cluster

import (
	"errors"
	"hash/fnv"
	"io/fs"
	"net/netip"
	"os"
	"slices"

	"sigs.k8s.io/kind/pkg/apis/config/v1alpha4"
	"sigs.k8s.io/yaml"
)

// Nodes of all clusters are neighbours on one network and answer there for their
// Pods. So Pods of two clusters must not have the same addresses, or a cluster's
// node reaches the other's Pod. The ranges are /18, for 64 nodes, out of
// 10.128.0.0/10, which has 256 of them and neither kind's default for Services
// nor the engine's bridges.
const (
	podSubnetBits  = 18
	podSubnetCount = 256
)

func podSubnetNumber(i uint32) netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(128 + i/4), byte(i % 4 * 64), 0}), podSubnetBits)
}

// choosePodSubnet returns the range of Pod addresses for the cluster called
// name: always the same one, unless it overlaps with one that is taken.
func choosePodSubnet(name string, taken []netip.Prefix) netip.Prefix {
	h := fnv.New32a()
	_, _ = h.Write([]byte(name)) // a hash takes everything
	first := h.Sum32() % podSubnetCount
	for i := range uint32(podSubnetCount) {
		subnet := podSubnetNumber((first + i) % podSubnetCount)
		if !slices.ContainsFunc(taken, subnet.Overlaps) {
			return subnet
		}
	}
	return podSubnetNumber(first) // 256 clusters are more than a machine carries
}

// podSubnet returns the range for a cluster of ours: the one it has, or one that
// no other cluster of this state directory has.
func (m *maker) podSubnet() (string, error) {
	if m.found.complete() {
		if subnet, ok := plannedSubnet(m.found.state.Plan); ok {
			return subnet.String(), nil
		}
	}
	base, err := clustersDir()
	if err != nil {
		return "", err
	}
	entries, err := os.ReadDir(base)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	var taken []netip.Prefix
	for _, e := range entries {
		dir, err := stateDirOf(e.Name())
		if err != nil || e.Name() == m.Name {
			continue // no cluster of ours has such a name
		}
		other, ok, err := dir.read()
		if err != nil {
			return "", err
		}
		if subnet, planned := plannedSubnet(other.Plan); ok && planned {
			taken = append(taken, subnet)
		}
	}
	return choosePodSubnet(m.Name, taken).String(), nil
}

// plannedSubnet returns the range of Pod addresses that a recorded plan has.
func plannedSubnet(plan string) (netip.Prefix, bool) {
	var config v1alpha4.Cluster
	if err := yaml.Unmarshal([]byte(plan), &config); err != nil {
		return netip.Prefix{}, false
	}
	subnet, err := netip.ParsePrefix(config.Networking.PodSubnet)
	return subnet, err == nil
}
