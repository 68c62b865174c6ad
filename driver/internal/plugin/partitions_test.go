package plugin_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	drav1 "k8s.io/kubelet/pkg/apis/dra/v1"
	"k8s.io/utils/ptr"

	"github.com/dra-lab/dra-lab/driver/api"
	"github.com/dra-lab/dra-lab/driver/internal/checkpoint"
	"github.com/dra-lab/dra-lab/driver/internal/plugin"
)

// Partitions of gpu-3, which is in MIG mode in these tests.
const (
	upperHalf = "gpu-3-mig-3g40gb-4"
	first     = "gpu-3-mig-1g10gb-0"
	third     = "gpu-3-mig-1g20gb-2"
	fifth     = "gpu-3-mig-1g10gb-5" // of the upper half

	// Where the hardware has the first two, below the GPU's directory.
	upperHalfDir = "mig/9-at-4"
	firstDir     = "mig/19-at-0"
)

func newMIGMachine(t testing.TB) *machine {
	t.Helper()
	m := newMachine(t)
	m.writeInventory(t, `{"gpus":[{"profile":"h100","count":3},{"profile":"h100","count":1,"mig":true}]}`)
	return m
}

func partitionClaims() []*resourceapi.ResourceClaim {
	return []*resourceapi.ResourceClaim{
		claim("parts", upperHalf, first), claim("part", upperHalf), claim("same", upperHalf),
		claim("other", first), claim("neighbour", third), claim("inside", fifth), claim("whole", "gpu-3"),
	}
}

// partitionOf is the device that the hardware has in a directory.
func partitionOf(dir string) string {
	return map[string]string{upperHalfDir: upperHalf, firstDir: first, "mig/19-at-5": fifth, "mig/15-at-2": third}[dir]
}

// instances lists the directories of the partitions that the hardware has.
func (m *machine) instances(t testing.TB) []string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(m.hardwareDir(), "gpu-3", "mig.json"))
	if os.IsNotExist(err) {
		return []string{}
	}
	if err != nil {
		t.Fatal(err)
	}
	var state struct {
		Instances []struct{ Profile, Start int }
	}
	if err := json.Unmarshal(data, &state); err != nil {
		t.Fatal(err)
	}
	dirs := []string{}
	for _, i := range state.Instances {
		dirs = append(dirs, fmt.Sprintf("mig/%d-at-%d", i.Profile, i.Start))
	}
	slices.Sort(dirs)
	return dirs
}

// bound lists the claims with memory of a partition.
func (m *machine) bound(t testing.TB, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(m.hardwareDir(), "gpu-3", dir, "reservations"))
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	names := []string{}
	for _, e := range entries {
		names = append(names, strings.TrimSuffix(strings.TrimPrefix(e.Name(), "uid-"), ".json"))
	}
	return names
}

func TestPartitionLivesAsLongAsItsClaim(t *testing.T) {
	m := newMIGMachine(t)
	m.allocate(t, partitionClaims()...)
	d := m.start(t, nil)
	k := m.register(t, "")
	ids, failed := k.prepare(t, "parts", "neighbour")
	if len(failed) > 0 || len(ids["parts"]) != 2 {
		t.Fatalf("prepare: %v, %v", ids, failed)
	}
	same(t, "instances", []string{"mig/15-at-2", firstDir, upperHalfDir}, m.instances(t))
	same(t, "bound", []string{"parts"}, m.bound(t, firstDir))
	// The container sees its partitions, and of each no more than it has.
	spec, err := os.ReadFile(filepath.Join(m.cdiDir(), "k8s.gpu.lab.example-claim_uid-parts.json"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"CUDA_VISIBLE_DEVICES=MIG-", api.DeviceEnvName(first) + "=" + first + "=MIG-",
		fmt.Sprintf("%s=%d", api.MemoryEnvName(first), 9984<<20),
		filepath.Join(m.hardwareDir(), "gpu-3", firstDir, api.ProcessesName),
	} {
		if !strings.Contains(string(spec), want) {
			t.Errorf("CDI spec has no %s:\n%s", want, spec)
		}
	}
	if strings.Contains(string(spec), "GPU-") {
		t.Errorf("CDI spec names the whole GPU:\n%s", spec)
	}
	// Prepared again it is the same.
	if again, failed := k.prepare(t, "parts"); len(failed) > 0 || !slices.Equal(again["parts"], ids["parts"]) {
		t.Errorf("again: %v, %v", again, failed)
	}
	if after, err := os.ReadFile(filepath.Join(m.cdiDir(), "k8s.gpu.lab.example-claim_uid-parts.json")); err != nil || string(after) != string(spec) {
		t.Errorf("CDI spec changed (%v):\n%s\n%s", err, spec, after)
	}
	k.unprepare(t, "parts")
	same(t, "instances", []string{"mig/15-at-2"}, m.instances(t))
	k.unprepare(t, "neighbour")
	same(t, "instances", []string{}, m.instances(t))
	same(t, "specs", []string{}, m.specs(t))
	same(t, "checkpoint", []string{}, d.claims(t))
	if !d.reports.has("unprepare-step", first+" is back to its baseline (0 MiB used)") {
		t.Error("the partition was not verified")
	}
	same(t, "steps of parts", []string{
		"prepare-started", "prepare-step", "prepare-step", "prepare-step", "prepare-step", "prepare-step", "prepare-step", "prepared",
		"prepare-started", "prepare-step", "prepare-step", "prepare-step", "prepare-step", "prepare-step", "prepare-step", "prepared",
		"unprepare-started", "unprepare-step", "unprepare-step", "unprepare-step", "unprepare-step", "unprepare-step", "unprepare-step", "unprepared",
	}, d.reports.steps("parts"))
}

func TestWhatOverlapsIsRefused(t *testing.T) {
	for _, tc := range []struct{ first, then, says string }{
		{"part", "same", `device "gpu-3-mig-3g40gb-4": device is held by another claim: default/part`},
		{"part", "inside", `has "gpu-3-mig-3g40gb-4" of the same GPU`},
		{"inside", "part", `has "gpu-3-mig-1g10gb-5" of the same GPU`},
		{"part", "whole", `has "gpu-3-mig-3g40gb-4" of the same GPU`},
		{"whole", "part", `has "gpu-3" of the same GPU`},
		{"part", "other", ""},
	} {
		t.Run(tc.first+" then "+tc.then, func(t *testing.T) {
			m := newMIGMachine(t)
			m.allocate(t, partitionClaims()...)
			m.start(t, nil)
			k := m.register(t, "")
			if _, failed := k.prepare(t, tc.first); len(failed) > 0 {
				t.Fatal(failed)
			}
			before := m.instances(t)
			_, failed := k.prepare(t, tc.then)
			if (tc.says == "") != (len(failed) == 0) || !strings.Contains(failed[tc.then], tc.says) {
				t.Errorf("got %v, want %q", failed, tc.says)
			}
			if tc.says != "" {
				same(t, "instances", before, m.instances(t))
			}
			k.unprepare(t, tc.first, tc.then)
			same(t, "instances", []string{}, m.instances(t))
		})
	}
}

func TestMonitorOfAPartitionIsSentToItsGPU(t *testing.T) {
	m := newMIGMachine(t)
	looks := claim("looks", first)
	looks.Status.Allocation.Devices.Results[0].AdminAccess = ptr.To(true)
	m.allocate(t, looks)
	m.start(t, nil)
	if _, failed := m.register(t, "").prepare(t, "looks"); !strings.Contains(failed["looks"], "ask for admin access to gpu-3") {
		t.Errorf("got %v", failed)
	}
}

// The hardware can have partitions that are nobody's: what a driver left that died
// in the wrong moment with its disk, or what somebody else has made.
func TestPartitionsOfNobodyAreDestroyed(t *testing.T) {
	m := newMIGMachine(t)
	m.allocate(t, partitionClaims()...)
	gpus, sim, err := m.hardware(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer sim.Shutdown()
	defer gpus.Close()
	present := func(names ...string) {
		for _, p := range gpus.List()[3].Parts() {
			if slices.Contains(names, p.Name) {
				if _, err := gpus.Create(p); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	// At the start of the driver, unless they are used;
	present(first, fifth)
	release := m.occupy(t, "gpu-3/"+firstDir)
	d := m.start(t, nil)
	k := m.register(t, "")
	same(t, "instances", []string{firstDir}, m.instances(t))
	if !d.reports.has(api.StepSwept, fifth) || !d.reports.has(api.StepError, "partition without a claim: destroy compute instance of "+first) {
		t.Errorf("reports: %+v", d.reports.all())
	}
	// those are in the way of what overlaps until they are not,
	if _, failed := k.prepare(t, "whole"); !strings.Contains(failed["whole"], "make room: destroy compute instance of "+first) {
		t.Errorf("got %v", failed)
	}
	release()
	// and then they make room.
	if _, failed := k.prepare(t, "whole"); len(failed) > 0 {
		t.Errorf("got %v", failed)
	}
	same(t, "instances", []string{}, m.instances(t))
	k.unprepare(t, "whole")
	// One that is where a claim wants its own becomes that.
	present(first)
	k.prepare(t, "other")
	same(t, "instances", []string{firstDir}, m.instances(t))
	k.unprepare(t, "other")
	same(t, "instances", []string{}, m.instances(t))
}

func TestProcessThatStaysOnAPartitionKeepsItUntilItGoes(t *testing.T) {
	m := newMIGMachine(t)
	m.allocate(t, partitionClaims()...)
	often := func(c *plugin.Config) { c.ProbeEvery = 10 * time.Millisecond }
	tainted := func(device string) bool {
		return slices.Contains(m.taints(t, device), api.TaintLeaked+"=processes:NoSchedule")
	}
	d := m.start(t, often)
	k := m.register(t, "")
	k.prepare(t, "part")
	release := m.occupy(t, "gpu-3/"+upperHalfDir)
	defer release()
	k.unprepare(t, "part")
	same(t, "checkpoint", []string{}, d.claims(t))
	same(t, "instances", []string{upperHalfDir}, m.instances(t))
	// Whatever has memory of it is tainted, and nothing else.
	eventually(t, "tainted", func() bool {
		return tainted(upperHalf) && tainted(fifth) && tainted("gpu-3") && !tainted(first) && !tainted(third)
	})
	// The rest of the GPU can be had meanwhile.
	if _, failed := k.prepare(t, "other"); len(failed) > 0 {
		t.Error(failed)
	}
	release()
	eventually(t, "destroyed and untainted", func() bool {
		return len(m.instances(t)) == 1 && !tainted(upperHalf) && !tainted(fifth) && !tainted("gpu-3")
	})
	same(t, "instances", []string{firstDir}, m.instances(t))
}

func TestLostGPUDoesNotHoldAPartitionsClaim(t *testing.T) {
	m := newMIGMachine(t)
	m.allocate(t, partitionClaims()...)
	d := m.start(t, func(c *plugin.Config) { c.ProbeEvery = 10 * time.Millisecond })
	k := m.register(t, "")
	k.prepare(t, "part")
	m.inject(t, "gpu-3", api.Fault{ID: "f", Kind: api.FaultLost})
	eventually(t, "gpu-3 is lost", func() bool { return d.reports.has(api.StepHealth, "gpu-3 Unhealthy: GPU is lost") })
	k.unprepare(t, "part")
	same(t, "checkpoint", []string{}, d.claims(t))
	if _, failed := k.prepare(t, "other"); !strings.Contains(failed["other"], first) {
		t.Errorf("prepare on a lost GPU: %v", failed)
	}
	same(t, "checkpoint", []string{"other?"}, d.claims(t)) // it cannot be rolled back
	// When it is back the partition that could not be destroyed is.
	m.inject(t, "gpu-3")
	eventually(t, "nothing is left", func() bool { return len(m.instances(t)) == 0 })
	k.unprepare(t, "other")
}

// A fault of a GPU concerns the whole and all its partitions.
func TestFaultOfAGPUInMIGMode(t *testing.T) {
	m := newMIGMachine(t)
	m.allocate(t, partitionClaims()...)
	m.start(t, nil)
	k := m.register(t, "")
	stream, err := k.WatchHealth(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	k.prepare(t, "part")
	m.inject(t, "gpu-3", api.Fault{ID: "f", Kind: api.FaultECCDouble})
	unhealthy := map[string]bool{}
	for len(unhealthy) < 26 {
		report, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		for _, dev := range report.Devices {
			if strings.Contains(strings.ToLower(fmt.Sprint(dev.Health)), "unhealthy") {
				unhealthy[dev.Device.DeviceName] = true
			}
		}
	}
	for name := range unhealthy {
		if !strings.HasPrefix(name, "gpu-3") {
			t.Errorf("%s is reported unhealthy", name)
		}
	}
	for _, device := range []string{"gpu-3", upperHalf, first, third} {
		eventually(t, device+" is tainted", func() bool { return len(m.taints(t, device)) == 1 })
	}
	same(t, "taints of another GPU", []string{}, m.taints(t, "gpu-2"))
	k.unprepare(t, "part") // all the same
	same(t, "instances", []string{}, m.instances(t))
	m.inject(t, "gpu-3")
	eventually(t, "untainted", func() bool { return len(m.taints(t, upperHalf)) == 0 && len(m.taints(t, "gpu-3")) == 0 })
}

func TestRebootTakesPartitionsWithIt(t *testing.T) {
	m := newMIGMachine(t)
	m.allocate(t, partitionClaims()...)
	before := m.start(t, nil)
	m.register(t, "").prepare(t, "parts")
	before.stop()
	// Given a machine that started anew: no CDI specs, no partitions,
	for _, path := range []string{filepath.Join(m.cdiDir(), "k8s.gpu.lab.example-claim_uid-parts.json"), filepath.Join(m.hardwareDir(), "gpu-3", "mig.json"), filepath.Join(m.hardwareDir(), "gpu-3", "mig")} {
		if err := os.RemoveAll(path); err != nil {
			t.Fatal(err)
		}
	}
	m.start(t, func(c *plugin.Config) { c.BootID = "boot-2" })
	k := m.register(t, "")
	// then both are there again before the kubelet comes.
	same(t, "instances", []string{firstDir, upperHalfDir}, m.instances(t))
	same(t, "specs", []string{"parts"}, m.specs(t))
	same(t, "bound", []string{"parts"}, m.bound(t, firstDir))
	k.unprepare(t, "parts")
	same(t, "instances", []string{}, m.instances(t))
}

// Without somebody who may cut GPUs, which is how real ones are treated, the
// partitions are not published, and what there is of them is not touched.
func TestWithoutPartitionsAGPUInMIGModeIsAWhole(t *testing.T) {
	m := newMIGMachine(t)
	m.allocate(t, partitionClaims()...)
	gpus, sim, err := m.hardware(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer sim.Shutdown()
	defer gpus.Close()
	if _, err := gpus.Create(gpus.List()[3].Parts()[0]); err != nil {
		t.Fatal(err)
	}
	m.start(t, func(c *plugin.Config) { c.Partitions = nil })
	k := m.register(t, "")
	if _, failed := k.prepare(t, "part"); !strings.Contains(failed["part"], "does not exist on this node") {
		t.Errorf("got %v", failed)
	}
	if _, failed := k.prepare(t, "whole"); len(failed) > 0 {
		t.Errorf("got %v", failed)
	}
	same(t, "instances", []string{firstDir}, m.instances(t))
	list, err := m.client.ResourceV1().ResourceSlices().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range list.Items {
		if len(s.Spec.Devices) != 4 || len(s.Spec.SharedCounters) > 0 {
			t.Errorf("published: %d devices, %d counter sets", len(s.Spec.Devices), len(s.Spec.SharedCounters))
		}
	}
}

// As TestKilledAtEveryPoint, for a claim with two partitions of one GPU.
func TestKilledAtEveryPointWithPartitions(t *testing.T) {
	points := append(plugin.Points(), plugin.PreparePartitioned, plugin.UnprepareDissolved)
	for _, point := range points {
		t.Run(string(point), func(t *testing.T) {
			t.Parallel()
			m := newMIGMachine(t)
			v := m.victim(t, point)
			k := m.register(t, "")
			prepare := strings.HasPrefix(string(point), "prepare/")
			var err error
			if prepare {
				_, err = k.Prepare(t.Context(), &drav1.NodePrepareResourcesRequest{Claims: []*drav1.Claim{reference("parts")}})
			} else {
				k.prepare(t, "neighbour", "parts")
				_, err = k.Unprepare(t.Context(), &drav1.NodeUnprepareResourcesRequest{Claims: []*drav1.Claim{reference("parts")}})
			}
			if err == nil {
				t.Fatal("the driver answered")
			}
			v.killed(t)
			if err := os.Remove(m.registration("")); err != nil {
				t.Fatal(err)
			}
			next := m.victim(t, "")
			k = m.register(t, "")

			// What the claim has, part or whole of it, nobody else gets.
			held := point != plugin.PrepareResolved && point != plugin.UnprepareForgotten
			for _, thief := range []string{"inside", "same", "whole"} {
				_, failed := k.prepare(t, thief)
				// The neighbour is in the way of the whole.
				if got, want := failed[thief] != "", held || thief == "whole" && !prepare; got != want {
					t.Errorf("%s is refused: %v (%s), want %v", thief, got, failed[thief], want)
				}
				k.unprepare(t, thief)
			}
			if prepare {
				ids, failed := k.prepare(t, "parts")
				if len(failed) > 0 || len(ids["parts"]) != 2 {
					t.Fatalf("prepare again: %v, %v", ids, failed)
				}
				same(t, "instances", []string{firstDir, upperHalfDir}, m.instances(t))
				same(t, "bound", []string{"parts"}, m.bound(t, upperHalfDir))
				same(t, "specs", []string{"parts"}, m.specs(t))
			}
			k.unprepare(t, "parts")
			if prepare {
				same(t, "instances", []string{}, m.instances(t))
			} else {
				same(t, "instances", []string{"mig/15-at-2"}, m.instances(t))
			}
			k.unprepare(t, "neighbour")
			if _, failed := k.prepare(t, "whole"); len(failed) > 0 {
				t.Errorf("the GPU is not whole: %v", failed)
			}
			k.unprepare(t, "whole")
			if err := next.end(); err != nil {
				t.Error(err)
			}
			same(t, "specs", []string{}, m.specs(t))
			same(t, "instances", []string{}, m.instances(t))
			if left, err := os.ReadDir(filepath.Join(m.hardwareDir(), "gpu-3", "mig")); err != nil && !os.IsNotExist(err) || len(left) > 0 {
				t.Errorf("the hardware still has %v, %v", left, err)
			}
			store, err := checkpoint.Open(t.Context(), filepath.Join(m.pluginDir(), api.CheckpointName), "boot-1")
			if err != nil {
				t.Fatal(err)
			}
			defer store.Close()
			if left, err := store.List(t.Context()); err != nil || len(left) > 0 {
				t.Errorf("checkpoint has %v, %v", left, err)
			}
			if leaks, err := store.Leaks(t.Context()); err != nil || len(leaks) > 0 {
				t.Errorf("leaks: %v, %v", leaks, err)
			}
		})
	}
}
