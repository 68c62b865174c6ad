package plugin_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	specs "tags.cncf.io/container-device-interface/specs-go"

	"github.com/dra-lab/dra-lab/driver/api"
	"github.com/dra-lab/dra-lab/driver/driverroot"
	"github.com/dra-lab/dra-lab/driver/driverroot/nvmltest"
	"github.com/dra-lab/dra-lab/driver/internal/gpu"
	"github.com/dra-lab/dra-lab/driver/internal/gpu/passthrough"
	"github.com/dra-lab/dra-lab/driver/internal/plugin"
)

const twoGPUs = `driver 570.86.15
cuda 12080
gpu 0 uuid GPU-a
gpu 0 bus 00000000:17:00.0
gpu 1 uuid GPU-b
gpu 1 bus 00000000:65:00.0
`

func openReal(t *testing.T, root string) *passthrough.Hardware {
	t.Helper()
	lib, err := passthrough.Open(root)
	if err != nil {
		t.Fatal(err)
	}
	return lib
}

// startReal runs a driver on what a node has of real GPUs.
func (m *machine) startReal(t *testing.T, lib *passthrough.Hardware) *running {
	t.Helper()
	gpus, err := gpu.Discover(lib, nil)
	if err != nil {
		t.Fatal(err)
	}
	r := m.start(t, func(c *plugin.Config) {
		c.Hardware, c.Binder, c.Shared, c.Simulated = gpus, lib, nil, false
		c.ProbeEvery = 20 * time.Millisecond
	})
	t.Cleanup(func() {
		r.stop()
		if err := gpus.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

// The whole way of a real GPU, but for the GPU: NVIDIA's library is one of ours
// that the real go-nvml loads, and its text is what happens to the hardware.
func TestRealGPUs(t *testing.T) {
	nvmltest.Alone(t, func(t *testing.T) {
		root, file := nvmltest.Root(t, twoGPUs, []int{0, 1})
		m := newMachine(t)
		m.allocate(t, claim("a", "gpu-0"), claim("b", "gpu-1"))
		d := m.startReal(t, openReal(t, root))
		k := m.register(t, "")

		// The devices are published as what they are.
		eventually(t, "published", func() bool { return d.reports.has(api.StepPublished, "2 devices") })
		list, err := m.client.ResourceV1().ResourceSlices().List(t.Context(), metav1.ListOptions{})
		if err != nil || len(list.Items) != 1 {
			t.Fatalf("slices %+v, %v", list, err)
		}
		attributes := list.Items[0].Spec.Devices[1].Attributes
		if *attributes[api.AttributeUUID].StringValue != "GPU-b" || *attributes[api.AttributeSimulated].BoolValue || *attributes[api.AttributeDriverVersion].VersionValue != "570.86.15" {
			t.Errorf("attributes are %+v", attributes)
		}

		// A claim gets its GPU's device node, those that all share, and the library.
		ids, failed := k.prepare(t, "a")
		if len(failed) > 0 || len(ids["a"]) != 1 {
			t.Fatalf("prepared %v, failed %v", ids, failed)
		}
		edits := m.spec(t, "a").Devices[0].ContainerEdits
		var nodes, mounts []string
		for _, n := range edits.DeviceNodes {
			nodes = append(nodes, n.Path)
		}
		for _, mount := range edits.Mounts {
			mounts = append(mounts, mount.ContainerPath)
		}
		same(t, "device nodes", []string{"/dev/nvidia0", "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"}, nodes)
		same(t, "libraries", []string{"/usr/local/nvidia/lib64/" + driverroot.NVML}, mounts)
		if len(edits.Hooks) > 0 || !slices.Contains(edits.Env, "CUDA_VISIBLE_DEVICES=GPU-a") || strings.Contains(strings.Join(edits.Env, " "), api.EnvSimulated) {
			t.Errorf("hooks %v, environment %v", edits.Hooks, edits.Env)
		}

		// What NVML tells by itself, and when asked, becomes health and taints.
		nvmltest.Describe(t, file, twoGPUs+"event 1 0 79\n")
		eventually(t, "XID", func() bool {
			return slices.ContainsFunc(m.taints(t, "gpu-0"), func(s string) bool { return strings.HasPrefix(s, api.TaintXID+"=79:") })
		})
		nvmltest.Describe(t, file, twoGPUs+"event 1 0 79\ngpu 1 answer 15\n")
		eventually(t, "lost", func() bool {
			return slices.ContainsFunc(m.taints(t, "gpu-1"), func(s string) bool { return strings.HasPrefix(s, api.TaintLost) })
		})
		if _, failed := k.prepare(t, "b"); !strings.Contains(failed["b"], "gpu-1") {
			t.Errorf("a claim of a lost GPU: %v", failed)
		}

		// A process that stays is told of, and nothing is done to it.
		nvmltest.Describe(t, file, twoGPUs+"event 1 0 79\ngpu 0 pid 4711\ngpu 0 used 4194304\n")
		k.unprepare(t, "a")
		if !d.reports.has(api.StepLeftover, "processes 4711 still use it") {
			t.Errorf("reports: %+v", d.reports.all())
		}
		same(t, "specs", []string{}, m.specs(t))
		same(t, "checkpoint", []string{}, d.claims(t))
		eventually(t, "leaked", func() bool { return slices.Contains(m.taints(t, "gpu-0"), api.TaintLeaked+"=processes:NoSchedule") })
		nvmltest.Describe(t, file, twoGPUs+"event 1 0 79\n")
		eventually(t, "clean", func() bool { return !slices.Contains(m.taints(t, "gpu-0"), api.TaintLeaked+"=processes:NoSchedule") })

		d.stop()
		var words []string
		for _, r := range d.reports.all() {
			if strings.Contains(r.Detail, "initialised") || strings.Contains(r.Detail, "given back") {
				words = append(words, r.Detail)
			}
		}
		if len(words) > 0 || !d.reports.has("prepare-step", "gpu-0 checked, nothing changed") {
			t.Errorf("it says to have changed real hardware: %v", words)
		}
	})
}

// A driver that starts again finds the claims of the one before and describes
// them anew.
func TestRealGPUsAfterARestart(t *testing.T) {
	nvmltest.Alone(t, func(t *testing.T) {
		root, _ := nvmltest.Root(t, twoGPUs, []int{1})
		m := newMachine(t)
		m.allocate(t, claim("a", "gpu-0"))
		lib := openReal(t, root)
		d := m.startReal(t, lib)
		if _, failed := m.register(t, "").prepare(t, "a"); len(failed) > 0 {
			t.Fatal(failed)
		}
		d.stop()
		before := m.spec(t, "a")
		if err := os.Remove(m.specPath("a")); err != nil {
			t.Fatal(err)
		}
		d = m.startReal(t, lib)
		k := m.register(t, "")
		same(t, "spec", before, m.spec(t, "a"))
		same(t, "its GPU", "/dev/nvidia1", before.Devices[0].ContainerEdits.DeviceNodes[0].Path)
		k.unprepare(t, "a")
		same(t, "checkpoint", []string{}, d.claims(t))
	})
}

func (m *machine) specPath(claim string) string {
	return filepath.Join(m.cdiDir(), strings.ReplaceAll(api.CDIKind, "/", "-")+"_uid-"+claim+".json")
}

func (m *machine) spec(t *testing.T, claim string) *specs.Spec {
	t.Helper()
	data, err := os.ReadFile(m.specPath(claim))
	if err != nil {
		t.Fatal(err)
	}
	var spec specs.Spec
	if err := json.Unmarshal(data, &spec); err != nil {
		t.Fatal(err)
	}
	return &spec
}
