package slices

import (
	stdslices "slices"
	"strconv"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/dra-lab/dra-lab/driver/internal/device"
	"github.com/dra-lab/dra-lab/driver/internal/health"
)

// Counters of a GPU in MIG mode. Each memory slice is one of its own, because a
// partition has the slices of its place and no others. The engines for media
// are one, since only one partition can have them.
const (
	counterCompute = "compute-slices"
	counterMedia   = "media-engines"
	counterMemory  = "memory-slice-" // and the number
)

// counterSets has one set for each GPU in MIG mode, of the GPU's name.
func counterSets(gpus []device.GPU) []resourceapi.CounterSet {
	var sets []resourceapi.CounterSet
	for _, gpu := range gpus {
		if len(gpu.Partitions) > 0 {
			sets = append(sets, resourceapi.CounterSet{Name: gpu.Name, Counters: whole(gpu)})
		}
	}
	return sets
}

// consume says of the devices of a GPU in MIG mode, the whole first and then its
// partitions, what they take of its counters.
func consume(devices []resourceapi.Device, gpu device.GPU) {
	for i := range devices {
		counters := whole(gpu)
		if i > 0 {
			counters = part(gpu.Partitions[i-1])
		}
		devices[i].ConsumesCounters = []resourceapi.DeviceCounterConsumption{{CounterSet: gpu.Name, Counters: counters}}
	}
}

// whole is everything that a GPU has: as much as the largest partition, and as
// the last ends.
func whole(gpu device.GPU) map[string]resourceapi.Counter {
	all := device.Partition{}
	for _, p := range gpu.Partitions {
		all.Slices = max(all.Slices, p.Slices)
		all.Size = max(all.Size, p.Start+p.Size)
		all.Media = all.Media || p.Media
	}
	return part(all)
}

// part is what a partition takes.
func part(p device.Partition) map[string]resourceapi.Counter {
	counters := map[string]resourceapi.Counter{counterCompute: counter(p.Slices)}
	for i := range p.Size {
		counters[counterMemory+strconv.Itoa(p.Start+i)] = counter(1)
	}
	if p.Media {
		counters[counterMedia] = counter(1)
	}
	return counters
}

func counter(n int) resourceapi.Counter {
	return resourceapi.Counter{Value: *resource.NewQuantity(int64(n), resource.DecimalSI)}
}

// taintsOf are the taints of one of the devices of a GPU: what is wrong with the
// whole is wrong with all its partitions, and what a claim left behind on a
// partition is in the way of everything that overlaps with it.
func taintsOf(d, gpu device.GPU, parts []device.GPU, taints map[string][]health.Taint) []health.Taint {
	all := taints[gpu.Name]
	for _, p := range parts {
		for _, t := range taints[p.Name] {
			same := func(other health.Taint) bool { return other.Key == t.Key && other.Effect == t.Effect }
			// One of a kind is enough.
			if p.Overlaps(d) && !stdslices.ContainsFunc(all, same) {
				all = append(stdslices.Clip(all), t)
			}
		}
	}
	return all
}
