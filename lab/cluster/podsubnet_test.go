package cluster

import (
	"net/netip"
	"testing"
)

// Two labs on one machine once reached each other's Pods: both had kind's
// default range.
func TestPodSubnetsOfClustersDoNotOverlap(t *testing.T) {
	var taken []netip.Prefix
	for i := range podSubnetCount {
		name := string(rune('a'+i%26)) + string(rune('a'+i/26))
		subnet := choosePodSubnet(name, taken)
		for _, other := range taken {
			if subnet.Overlaps(other) {
				t.Fatalf("cluster %d got %s, which overlaps with %s", i, subnet, other)
			}
		}
		taken = append(taken, subnet)
	}
	all := netip.MustParsePrefix("10.128.0.0/10")
	for _, subnet := range taken {
		if !all.Overlaps(subnet) || subnet.Bits() != podSubnetBits || subnet != subnet.Masked() {
			t.Errorf("%s is not a /%d of %s", subnet, podSubnetBits, all)
		}
	}
}

func TestPodSubnetStays(t *testing.T) {
	first := choosePodSubnet("dra-lab", nil)
	if again := choosePodSubnet("dra-lab", []netip.Prefix{podSubnetNumber(0)}); again != first {
		t.Errorf("got %s, then %s", first, again)
	}
	if next := choosePodSubnet("dra-lab", []netip.Prefix{first}); next == first {
		t.Errorf("got %s, which is taken", next)
	}
}

func TestPlannedSubnet(t *testing.T) {
	if got, ok := plannedSubnet("networking:\n  podSubnet: 10.1.0.0/16\n"); !ok || got.String() != "10.1.0.0/16" {
		t.Errorf("got %s, %t", got, ok)
	}
	for _, plan := range []string{"", "networking: {podSubnet: nonsense}", "- no\n  config"} {
		if got, ok := plannedSubnet(plan); ok {
			t.Errorf("plan %q: got %s", plan, got)
		}
	}
}
