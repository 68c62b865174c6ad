package slices_test

import (
	"context"
	"errors"
	"fmt"
	stdslices "slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"
	"k8s.io/utils/ptr"

	"github.com/dra-lab/dra-lab/driver/api"
	"github.com/dra-lab/dra-lab/driver/internal/device"
	"github.com/dra-lab/dra-lab/driver/internal/health"
	"github.com/dra-lab/dra-lab/driver/internal/slices"
)

// mig is an H100 in MIG mode.
func mig(index int) device.GPU {
	g := h100(index)
	add := func(profile string, slices, size int, media bool, starts ...int) {
		for _, start := range starts {
			g.Partitions = append(g.Partitions, device.Partition{
				Profile: profile, Start: start, Size: size, Slices: slices, Media: media,
				Processors: slices * 16, MemoryBytes: uint64(size) * 9984 << 20,
			})
		}
	}
	add("1g.10gb", 1, 1, false, 0, 1, 2, 3, 4, 5, 6)
	add("1g.10gb+me", 1, 1, true, 0, 1, 2, 3, 4, 5, 6)
	add("1g.20gb", 1, 2, false, 0, 2, 4, 6)
	add("2g.20gb", 2, 2, false, 0, 2, 4)
	add("3g.40gb", 3, 4, false, 0, 4)
	add("4g.40gb", 4, 4, false, 0)
	add("7g.80gb", 7, 8, true, 0)
	return g
}

// published is the pool as the API server has it.
func published(gpus []device.GPU, taints map[string][]health.Taint) []*resourceapi.ResourceSlice {
	pool := slices.Pool("node", gpus, taints, true).Pools["node"]
	var all []*resourceapi.ResourceSlice
	for i, s := range pool.Slices {
		all = append(all, &resourceapi.ResourceSlice{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint(i)},
			Spec: resourceapi.ResourceSliceSpec{
				Driver: api.DriverName, NodeName: ptr.To("node"),
				Pool:    resourceapi.ResourcePool{Name: "node", Generation: 1, ResourceSliceCount: int64(len(pool.Slices))},
				Devices: s.Devices, SharedCounters: s.SharedCounters,
			},
		})
	}
	return all
}

// Limits and rules of resource.k8s.io/v1, as of v1.37.
func TestPartitionsKeepTheRulesOfTheAPI(t *testing.T) {
	// As many GPUs as make more than a thousand devices, among them whole ones.
	var gpus []device.GPU
	for i := range 40 {
		gpus = append(gpus, mig(2*i), h100(2*i+1))
	}
	sets, devices := map[string]resourceapi.CounterSet{}, map[string]bool{}
	all := published(gpus, map[string][]health.Taint{"gpu-0": {{Key: "k", Effect: health.NoExecute}}})
	for _, s := range all {
		if len(s.Spec.Devices) > 0 && len(s.Spec.SharedCounters) > 0 {
			t.Errorf("slice %s has devices and counters", s.Name)
		}
		if n := len(s.Spec.Devices); n > resourceapi.ResourceSliceMaxDevicesWithAdvancedFeatures {
			t.Errorf("slice %s has %d devices", s.Name, n)
		}
		if n := len(s.Spec.SharedCounters); n > resourceapi.ResourceSliceMaxCounterSets {
			t.Errorf("slice %s has %d counter sets", s.Name, n)
		}
		for _, set := range s.Spec.SharedCounters {
			if _, ok := sets[set.Name]; ok || len(validation.IsDNS1123Label(set.Name)) > 0 || len(set.Counters) > resourceapi.ResourceSliceMaxCountersPerCounterSet {
				t.Errorf("counter set %q: twice, or no label, or %d counters", set.Name, len(set.Counters))
			}
			for name := range set.Counters {
				if problems := validation.IsDNS1123Label(name); len(problems) > 0 {
					t.Errorf("counter %q: %v", name, problems)
				}
			}
			sets[set.Name] = set
		}
	}
	for _, s := range all {
		for _, d := range s.Spec.Devices {
			if devices[d.Name] || len(validation.IsDNS1123Label(d.Name)) > 0 {
				t.Errorf("device %q: twice, or no label", d.Name)
			}
			devices[d.Name] = true
			if n := len(d.Attributes) + len(d.Capacity); n > resourceapi.ResourceSliceMaxAttributesAndCapacitiesPerDevice {
				t.Errorf("%s has %d attributes and capacities", d.Name, n)
			}
			for name := range d.Attributes {
				if len(name) > resourceapi.DeviceMaxIDLength && !strings.Contains(string(name), "/") {
					t.Errorf("%s: attribute %q is too long", d.Name, name)
				}
			}
			if n := len(d.ConsumesCounters); n > resourceapi.ResourceSliceMaxDeviceCounterConsumptionsPerDevice {
				t.Errorf("%s consumes of %d sets", d.Name, n)
			}
			for _, c := range d.ConsumesCounters {
				for name, want := range c.Counters {
					if have, ok := sets[c.CounterSet].Counters[name]; !ok || want.Value.Cmp(have.Value) > 0 {
						t.Errorf("%s wants %s of %s/%s, which has %s", d.Name, want.Value.String(), c.CounterSet, name, have.Value.String())
					}
				}
			}
		}
	}
	if len(devices) != 40*(26+1) || len(sets) != 40 {
		t.Errorf("%d devices and %d counter sets", len(devices), len(sets))
	}
}

func TestPartitionIsDescribed(t *testing.T) {
	part := mig(3).Parts()[14]
	d := slices.Device(part, nil, true)
	if d.Name != "gpu-3-mig-1g20gb-0" {
		t.Errorf("it is called %s", d.Name)
	}
	got := map[resourceapi.QualifiedName]string{}
	for _, name := range []resourceapi.QualifiedName{"type", "uuid", "profile", "parent", "parentUUID", "productName", "architecture"} {
		got[name] = ptr.Deref(d.Attributes[name].StringValue, "")
	}
	for name, c := range d.Capacity {
		got[name] = c.Value.String()
	}
	got["index"], got["placement"] = fmt.Sprint(*d.Attributes["index"].IntValue), fmt.Sprint(*d.Attributes["placement"].IntValue)
	if diff := cmp.Diff(map[resourceapi.QualifiedName]string{
		"type": "mig", "uuid": "", "profile": "1g.20gb", "parent": "gpu-3", "parentUUID": "GPU-3", "index": "3", "placement": "0",
		"productName": "NVIDIA H100 80GB HBM3", "architecture": "Hopper", "memory": "19968Mi", "multiprocessors": "16",
	}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestWhatIsWrongWithAGPUIsWrongWithItsPartitions(t *testing.T) {
	tainted := func(taints map[string][]health.Taint) []string {
		var names []string
		for _, s := range published([]device.GPU{mig(0), mig(1)}, taints) {
			for _, d := range s.Spec.Devices {
				for _, taint := range d.Taints {
					names = append(names, d.Name+" "+taint.Key)
				}
			}
		}
		return names
	}
	fault := map[string][]health.Taint{"gpu-1": {{Key: "xid", Effect: health.NoExecute}}}
	if got := tainted(fault); len(got) != 26 || stdslices.ContainsFunc(got, func(n string) bool { return !strings.HasPrefix(n, "gpu-1") }) {
		t.Errorf("a fault of gpu-1 taints %v", got)
	}
	// What is left on a partition is in the way of what overlaps, and of that only.
	want := []string{"gpu-0 leaked", "gpu-0-mig-1g10gb-6 leaked", "gpu-0-mig-1g10gbme-6 leaked", "gpu-0-mig-1g20gb-6 leaked", "gpu-0-mig-3g40gb-4 leaked", "gpu-0-mig-7g80gb-0 leaked"}
	if diff := cmp.Diff(want, tainted(map[string][]health.Taint{"gpu-0-mig-1g10gb-6": {{Key: "leaked", Effect: health.NoSchedule}}})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// classes are those that the lab installs.
type classes struct{}

func (classes) List() ([]*resourceapi.DeviceClass, error) { return nil, errors.New("not needed") }
func (classes) Get(name string) (*resourceapi.DeviceClass, error) {
	return &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: name}}, nil
}

// The scheduler's own allocator gets the slices. It gives away a GPU in parts, in
// every order, until nothing is left, and never two devices that overlap.
func TestSchedulerCannotGiveAwayTheSameTwice(t *testing.T) {
	gpu := mig(0)
	byName := map[string]device.GPU{gpu.Name: gpu}
	for _, p := range gpu.Parts() {
		byName[p.Name] = p
	}
	for _, order := range [][]string{
		{"3g.40gb", "3g.40gb", "!3g.40gb", "!1g.10gb", "!whole"},
		{"1g.10gb+me", "!1g.10gb+me", "2g.20gb", "2g.20gb", "1g.10gb", "!2g.20gb", "!whole"},
		{"1g.20gb", "1g.20gb", "1g.20gb", "1g.20gb", "!1g.10gb"},
		{"4g.40gb", "3g.40gb", "!1g.10gb"},
		{"1g.10gb", "1g.10gb", "1g.10gb", "1g.10gb", "1g.10gb", "1g.10gb", "1g.10gb", "!1g.10gb", "!7g.80gb"},
		{"whole", "!1g.10gb", "!7g.80gb", "!whole"},
		{"7g.80gb", "!whole", "!1g.10gb"},
	} {
		t.Run(strings.Join(order, ","), func(t *testing.T) {
			var given []device.GPU
			for _, want := range order {
				want, refused := strings.CutPrefix(want, "!")
				name := allocate(t, published([]device.GPU{gpu}, nil), given, want)
				if refused != (name == "") {
					t.Fatalf("asked for %s after %d others: got %q", want, len(given), name)
				}
				if refused {
					continue
				}
				got, ok := byName[name]
				if !ok {
					t.Fatalf("got %q", name)
				}
				for _, other := range given {
					if got.Overlaps(other) {
						t.Errorf("%s and %s are given away together", got.Name, other.Name)
					}
				}
				given = append(given, got)
			}
		})
	}
}

// allocate asks the scheduler for a partition of a profile, or a whole GPU.
func allocate(t *testing.T, all []*resourceapi.ResourceSlice, given []device.GPU, profile string) string {
	t.Helper()
	allocated := sets.New[structured.DeviceID]()
	for _, g := range given {
		allocated.Insert(structured.MakeDeviceID(api.DriverName, "node", g.Name))
	}
	expression := fmt.Sprintf(`device.attributes["%s"].type == "mig" && device.attributes["%[1]s"].profile == "%s"`, api.DriverName, profile)
	if profile == "whole" {
		expression = fmt.Sprintf(`device.attributes["%s"].type == "gpu"`, api.DriverName)
	}
	claim := &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "claim", UID: types.UID("claim")},
		Spec: resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{{
			Name: "r", Exactly: &resourceapi.ExactDeviceRequest{
				DeviceClassName: "any", AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 1,
				Selectors: []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: expression}}},
			},
		}}}},
	}
	ctx := context.Background()
	allocator, err := structured.NewAllocator(ctx, structured.Features{PartitionableDevices: true, DeviceTaints: true, PrioritizedList: true},
		structured.AllocatedState{AllocatedDevices: allocated, AllocatedSharedDeviceIDs: sets.New[structured.SharedDeviceID](), AggregatedCapacity: structured.NewConsumedCapacityCollection()},
		classes{}, all, cel.NewCache(10, cel.Features{}))
	if err != nil {
		t.Fatal(err)
	}
	results, err := allocator.Allocate(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node"}}, []*resourceapi.ResourceClaim{claim})
	if err != nil && !errors.Is(err, structured.ErrFailedAllocationOnNode) {
		t.Fatal(err)
	}
	if len(results) == 0 {
		return ""
	}
	return results[0].Devices.Results[0].Device
}
