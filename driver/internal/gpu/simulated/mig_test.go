package simulated_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/google/go-cmp/cmp"

	"github.com/dra-lab/dra-lab/driver/api"
	"github.com/dra-lab/dra-lab/driver/internal/device"
)

// part finds a partition of GPU 0 by profile and place.
func (n node) part(t *testing.T, profile string, start int) device.GPU {
	t.Helper()
	for _, p := range n.List()[0].Parts() {
		if p.Partition.Profile == profile && p.Partition.Start == start {
			return p
		}
	}
	t.Fatalf("no partition %s at %d", profile, start)
	return device.GPU{}
}

// names are the names of the partitions of GPU 0 that exist.
func (n node) present(t *testing.T) []string {
	t.Helper()
	parts, err := n.Present(n.List()[0])
	if err != nil {
		t.Fatal(err)
	}
	names := []string{}
	for _, p := range parts {
		names = append(names, p.Name)
	}
	return names
}

func (n node) create(t *testing.T, part device.GPU) string {
	t.Helper()
	uuid, err := n.Create(part)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(uuid, "MIG-") {
		t.Errorf("%s has UUID %q", part.Name, uuid)
	}
	return uuid
}

func TestMIGProfilesAreThoseOfTheDataSheets(t *testing.T) {
	for profile, want := range map[string][]string{
		"a100": {"1g.10gb", "1g.10gb+me", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"},
		"h100": {"1g.10gb", "1g.10gb+me", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"},
		"h200": {"1g.18gb", "1g.18gb+me", "1g.35gb", "2g.35gb", "3g.71gb", "4g.71gb", "7g.141gb"},
		"b200": {"1g.23gb", "1g.23gb+me", "1g.45gb", "2g.45gb", "3g.90gb", "4g.90gb", "7g.180gb"},
	} {
		t.Run(profile, func(t *testing.T) {
			g := start(t, profile+":1:mig").List()[0]
			var names, places []string
			for _, p := range g.Partitions {
				if !slices.Contains(names, p.Profile) {
					names = append(names, p.Profile)
				}
				places = append(places, fmt.Sprintf("%dg%d:%d", p.Slices, p.Start, p.Size))
				// Its share of the memory, less what the card keeps for itself.
				if whole := g.MemoryBytes * uint64(p.Size) / 8; p.MemoryBytes > whole || p.MemoryBytes < whole*9/10 {
					t.Errorf("%s has %d bytes of %d", p.Profile, p.MemoryBytes, whole)
				}
			}
			slices.Sort(names)
			if diff := cmp.Diff(want, names); diff != "" {
				t.Errorf("profiles (-want +got):\n%s", diff)
			}
			slices.Sort(places)
			if diff := cmp.Diff([]string{
				"1g0:1", "1g0:1", "1g0:2", "1g1:1", "1g1:1", "1g2:1", "1g2:1", "1g2:2", "1g3:1", "1g3:1", "1g4:1", "1g4:1", "1g4:2",
				"1g5:1", "1g5:1", "1g6:1", "1g6:1", "1g6:2", "2g0:2", "2g2:2", "2g4:2", "3g0:4", "3g4:4", "4g0:4", "7g0:8",
			}, places); diff != "" {
				t.Errorf("places (-want +got):\n%s", diff)
			}
		})
	}
}

func TestOnlyGPUsInMIGModeHavePartitions(t *testing.T) {
	n := start(t, "h100:1,t4:1,h100:1:mig")
	for i, want := range []struct {
		mode  int
		ret   nvml.Return
		parts int
	}{{nvml.DEVICE_MIG_DISABLE, nvml.SUCCESS, 0}, {0, nvml.ERROR_NOT_SUPPORTED, 0}, {nvml.DEVICE_MIG_ENABLE, nvml.SUCCESS, 25}} {
		h, _ := n.sim.DeviceGetHandleByIndex(i)
		if mode, _, ret := h.GetMigMode(); mode != want.mode || ret != want.ret {
			t.Errorf("GPU %d: MIG mode %d, %v", i, mode, ret)
		}
		if got := n.List()[i]; len(got.Partitions) != want.parts || got.Problem != "" {
			t.Errorf("GPU %d has %d partitions, want %d; %s", i, len(got.Partitions), want.parts, got.Problem)
		}
	}
	h, _ := n.sim.DeviceGetHandleByIndex(0)
	if _, ret := h.GetGpuInstanceProfileInfo(nvml.GPU_INSTANCE_PROFILE_1_SLICE); ret != nvml.ERROR_NOT_SUPPORTED {
		t.Errorf("profile of a GPU that is not in MIG mode: %v", ret)
	}
	if _, ret := h.SetMigMode(nvml.DEVICE_MIG_ENABLE); ret != nvml.ERROR_NO_PERMISSION {
		t.Errorf("enable MIG mode: %v", ret)
	}
}

func TestPartitionOutlivesTheDriverAndIsMadeOnce(t *testing.T) {
	n := start(t, "h100:1:mig")
	small := n.part(t, "1g.10gb", 2)
	uuid := n.create(t, small)
	// Another driver on the machine finds it, and makes no second one.
	other := boot(t, n.dir)
	if again := other.create(t, small); again != uuid {
		t.Errorf("made again: %s, then %s", uuid, again)
	}
	if diff := cmp.Diff([]string{small.Name}, other.present(t)); diff != "" {
		t.Errorf("present (-want +got):\n%s", diff)
	}
	if err := other.Destroy(small); err != nil {
		t.Fatal(err)
	}
	if err := n.Destroy(small); err != nil {
		t.Errorf("destroy what is not there: %v", err)
	}
	if got := n.present(t); len(got) > 0 {
		t.Errorf("present: %v", got)
	}
	if left, err := os.ReadDir(filepath.Join(n.dir, "gpu-0", "mig")); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

func TestInstanceThatWasNotFinishedIsFinished(t *testing.T) {
	n := start(t, "a100:1:mig")
	part := n.part(t, "3g.40gb", 4)
	h, _ := n.sim.DeviceGetHandleByIndex(0)
	info, _ := h.GetGpuInstanceProfileInfo(nvml.GPU_INSTANCE_PROFILE_3_SLICE)
	if _, ret := h.CreateGpuInstanceWithPlacement(&info, &nvml.GpuInstancePlacement{Start: 4, Size: 4}); ret != nvml.SUCCESS {
		t.Fatal(ret)
	}
	if _, ret := h.GetMigDeviceHandleByIndex(0); ret != nvml.ERROR_NOT_FOUND {
		t.Errorf("a GPU instance alone is a device: %v", ret)
	}
	// Nor is one whose directories are gone, because it was about to be destroyed.
	if err := os.RemoveAll(filepath.Join(n.dir, "gpu-0", "mig")); err != nil {
		t.Fatal(err)
	}
	n.create(t, part)
	if diff := cmp.Diff([]string{part.Name}, n.present(t)); diff != "" {
		t.Errorf("present (-want +got):\n%s", diff)
	}
	if err := n.sim.Bind(part, "claim", device.Settings{}); err != nil {
		t.Error(err)
	}
}

func TestWhatDoesNotFitIsRefused(t *testing.T) {
	for _, tc := range []struct {
		name  string
		first [][2]any // profile, start
		then  [2]any
		want  error
	}{
		{"the same memory", [][2]any{{"3g.40gb", 4}}, [2]any{"1g.10gb", 6}, nvml.ERROR_INSUFFICIENT_RESOURCES},
		{"the whole after a part", [][2]any{{"1g.10gb", 0}}, [2]any{"7g.80gb", 0}, nvml.ERROR_INSUFFICIENT_RESOURCES},
		{"a part after the whole", [][2]any{{"7g.80gb", 0}}, [2]any{"1g.10gb", 3}, nvml.ERROR_INSUFFICIENT_RESOURCES},
		{"media engines twice", [][2]any{{"1g.10gb+me", 0}}, [2]any{"1g.10gb+me", 1}, nvml.ERROR_INSUFFICIENT_RESOURCES},
		{"another place", [][2]any{{"3g.40gb", 4}}, [2]any{"3g.40gb", 0}, nil},
		{"all that fits", [][2]any{{"4g.40gb", 0}, {"2g.20gb", 4}}, [2]any{"1g.10gb", 6}, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			n := start(t, "h100:1:mig")
			for _, f := range tc.first {
				n.create(t, n.part(t, f[0].(string), f[1].(int)))
			}
			if _, err := n.Create(n.part(t, tc.then[0].(string), tc.then[1].(int))); !errors.Is(err, tc.want) {
				t.Errorf("got %v, want %v", err, tc.want)
			}
		})
	}
	n := start(t, "h100:1:mig")
	h, _ := n.sim.DeviceGetHandleByIndex(0)
	info, _ := h.GetGpuInstanceProfileInfo(nvml.GPU_INSTANCE_PROFILE_3_SLICE)
	if _, ret := h.CreateGpuInstanceWithPlacement(&info, &nvml.GpuInstancePlacement{Start: 1, Size: 4}); ret != nvml.ERROR_INVALID_ARGUMENT {
		t.Errorf("at a place that there is not: %v", ret)
	}
	// Without a place it takes those that there are, and no more.
	for i := range 3 {
		_, ret := h.CreateGpuInstance(&info)
		if want := map[bool]nvml.Return{true: nvml.SUCCESS, false: nvml.ERROR_INSUFFICIENT_RESOURCES}[i < 2]; ret != want {
			t.Errorf("instance %d without a place: %v, want %v", i, ret, want)
		}
	}
	if left, ret := h.GetGpuInstanceRemainingCapacity(&info); left != 0 || ret != nvml.SUCCESS {
		t.Errorf("%d more fit, %v", left, ret)
	}
}

// hold is a process that uses a GPU or a partition, until free.
func hold(t *testing.T, path string, p api.Process) (free func()) {
	t.Helper()
	content, err := p.Encode()
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Write(content); err != nil {
		t.Fatal(err)
	}
	return func() { f.Close() }
}

func TestPartitionIsUsedForItself(t *testing.T) {
	n := start(t, "h100:1:mig")
	used, idle := n.part(t, "2g.20gb", 0), n.part(t, "1g.10gb", 3)
	whole, err := n.Usage(0)
	if err != nil {
		t.Fatal(err)
	}
	n.create(t, used)
	n.create(t, idle)
	if err := n.sim.Bind(used, "claim", device.Settings{}); err != nil {
		t.Fatal(err)
	}
	edits := n.sim.Edits(used, device.Settings{})
	if want := fmt.Sprintf("%s=%d", api.MemoryEnvName(used.Name), used.MemoryBytes); !slices.Contains(edits.Env, want) {
		t.Errorf("environment %v, want %s", edits.Env, want)
	}
	free := hold(t, filepath.Join(edits.Mounts[0].Node, "p.json"), api.Process{PID: 7, Bytes: 1 << 30})
	got, err := n.PartitionUsage(used)
	if err != nil {
		t.Fatal(err)
	}
	want := device.Usage{
		UsedBytes: 256<<20 + 1<<30, TotalBytes: used.MemoryBytes,
		Processes: []device.Process{{PID: 7, Bytes: 1 << 30}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("usage (-want +got):\n%s", diff)
	}
	if got, err := n.PartitionUsage(idle); err != nil || got.UsedBytes != 0 || len(got.Processes) > 0 {
		t.Errorf("the other partition: %+v, %v", got, err)
	}
	// The GPU sees all of it.
	if got, err := n.Usage(0); err != nil || got.UsedBytes != whole.UsedBytes+want.UsedBytes || len(got.Processes) != 1 {
		t.Errorf("the GPU: %+v, %v", got, err)
	}
	if err := n.Destroy(used); !errors.Is(err, device.ErrInUse) || !errors.Is(err, nvml.ERROR_IN_USE) {
		t.Errorf("destroy while it is used: %v", err)
	}
	free()
	if err := n.Destroy(used); err != nil {
		t.Fatal(err)
	}
	// What the claim had reserved is gone with it.
	if bound, err := n.sim.Bound(used); err != nil || len(bound) > 0 {
		t.Errorf("bound: %v, %v", bound, err)
	}
	if got, err := n.Usage(0); err != nil || got.UsedBytes != whole.UsedBytes {
		t.Errorf("the GPU: %+v, %v", got, err)
	}
}

func TestNoPartitionWhileTheWholeIsUsed(t *testing.T) {
	n := start(t, "h100:1:mig")
	part := n.part(t, "1g.10gb", 0)
	free := hold(t, filepath.Join(n.dir, "gpu-0", api.ProcessesName, "p.json"), api.Process{PID: 7})
	if _, err := n.Create(part); !errors.Is(err, nvml.ERROR_INSUFFICIENT_RESOURCES) {
		t.Errorf("got %v", err)
	}
	free()
	n.create(t, part)
}

func TestLostGPUHasNoWordOnItsPartitions(t *testing.T) {
	n := start(t, "h100:1:mig")
	part := n.part(t, "1g.10gb", 0)
	n.create(t, part)
	n.inject(t, 0, api.Fault{ID: "a", Kind: api.FaultLost})
	n.eventually(t, 0, "the GPU is lost", func(r device.Reading) bool { return r.Lost })
	if _, err := n.Create(part); !errors.Is(err, nvml.ERROR_GPU_IS_LOST) {
		t.Errorf("create: %v", err)
	}
	if err := n.Destroy(part); !errors.Is(err, nvml.ERROR_GPU_IS_LOST) {
		t.Errorf("destroy: %v", err)
	}
	n.inject(t, 0)
	n.eventually(t, 0, "the GPU is back", func(r device.Reading) bool { return !r.Lost })
	if diff := cmp.Diff([]string{part.Name}, n.present(t)); diff != "" {
		t.Errorf("present (-want +got):\n%s", diff)
	}
}

func TestDamagedMIGFileIsAGPUWithoutPartitions(t *testing.T) {
	for _, content := range []string{"", "{", `{"instances":[{"id":1,"profile":19,"start":7,"size":1}]}`, `{"instances":[{"id":1,"profile":99,"start":0,"size":1}]}`} {
		n := start(t, "h100:1:mig")
		write(t, filepath.Join(n.dir, "gpu-0", "mig.json"), content)
		if got := n.present(t); len(got) > 0 {
			t.Errorf("%q: present %v", content, got)
		}
		n.create(t, n.part(t, "7g.80gb", 0))
	}
}
