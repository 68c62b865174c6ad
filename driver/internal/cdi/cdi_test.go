package cdi_test

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	oci "github.com/opencontainers/runtime-spec/specs-go"
	runtimecdi "tags.cncf.io/container-device-interface/pkg/cdi"

	"github.com/dra-lab/dra-lab/driver/api"
	"github.com/dra-lab/dra-lab/driver/internal/cdi"
)

var update = flag.Bool("update", false, "write the golden files")

const uid = "11111111-2222-3333-4444-555555555555"

func gpu(request, name, uuid string) cdi.Device {
	return cdi.Device{Request: request, Name: name, UUID: uuid, Edits: cdi.Edits{
		Env:    []string{api.EnvSimulated + "=true"},
		Mounts: []cdi.Mount{{Node: "/hardware/" + name + "/processes", Container: "/container/" + name + "/processes", Writable: true}},
	}}
}

// realGPU has what a container needs of real hardware.
func realGPU(request, name, uuid string, minor uint32) cdi.Device {
	node := fmt.Sprintf("/dev/nvidia%d", minor)
	return cdi.Device{Request: request, Name: name, UUID: uuid, Edits: cdi.Edits{
		Env:    []string{"LD_LIBRARY_PATH=/usr/local/nvidia/lib64"},
		Mounts: []cdi.Mount{{Node: "/root/lib/libcuda.so.1", Container: "/usr/local/nvidia/lib64/libcuda.so.1", Executable: true}},
		Devices: []cdi.DeviceNode{
			{Node: "/root" + node, Container: node, Major: 195, Minor: minor},
			{Node: "/root/dev/nvidiactl", Container: "/dev/nvidiactl", Major: 195, Minor: 255},
		},
	}}
}

// The judge is the code that runtimes use: two GPUs that share a device node and
// a library give a container each of them once, with the numbers that were told
// and nothing to look at on the node.
func TestRuntimeAppliesDeviceNodes(t *testing.T) {
	dir := t.TempDir()
	spec, err := cdi.Spec(uid, []cdi.Device{realGPU("gpu", "gpu-0", "GPU-a", 0), realGPU("gpu", "gpu-1", "GPU-b", 3)})
	if err != nil {
		t.Fatal(err)
	}
	if err := cdi.NewDir(dir).Write(uid, spec); err != nil {
		t.Fatal(err)
	}
	cache, err := runtimecdi.NewCache(runtimecdi.WithSpecDirs(dir), runtimecdi.WithAutoRefresh(false))
	if err != nil {
		t.Fatal(err)
	}
	container := &oci.Spec{Process: &oci.Process{}}
	if missing, err := cache.InjectDevices(container, cdi.QualifiedName(uid, "gpu-0"), cdi.QualifiedName(uid, "gpu-1")); err != nil {
		t.Fatalf("missing %v: %v, %v", missing, err, cache.GetErrors())
	}
	var nodes []string
	for _, d := range container.Linux.Devices {
		nodes = append(nodes, fmt.Sprintf("%s %s %d:%d", d.Path, d.Type, d.Major, d.Minor))
	}
	slices.Sort(nodes)
	want := []string{"/dev/nvidia0 c 195:0", "/dev/nvidia3 c 195:3", "/dev/nvidiactl c 195:255"}
	if diff := cmp.Diff(want, nodes); diff != "" {
		t.Errorf("device nodes (-want +got):\n%s", diff)
	}
	if len(container.Mounts) != 1 || slices.Contains(container.Mounts[0].Options, "noexec") || !slices.Contains(container.Mounts[0].Options, "ro") {
		t.Errorf("mounts are %+v", container.Mounts)
	}
}

func TestSpecGolden(t *testing.T) {
	for name, devices := range map[string][]cdi.Device{
		"one":          {gpu("gpu", "gpu-0", "GPU-a")},
		"real":         {realGPU("gpu", "gpu-0", "GPU-a", 0)},
		"two-requests": {gpu("train", "gpu-0", "GPU-a"), gpu("train", "gpu-1", "GPU-b"), gpu("serve", "gpu-2", "GPU-c")},
	} {
		t.Run(name, func(t *testing.T) {
			spec, err := cdi.Spec(uid, devices)
			if err != nil {
				t.Fatal(err)
			}
			got, err := json.MarshalIndent(spec, "", "  ")
			if err != nil {
				t.Fatal(err)
			}
			golden := filepath.Join("testdata", name+".json")
			if *update {
				if err := os.WriteFile(golden, append(got, '\n'), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), string(got)+"\n"); diff != "" {
				t.Errorf("%s (-want +got):\n%s", golden, diff)
			}
		})
	}
}

func TestSpecRefuses(t *testing.T) {
	if _, err := cdi.Spec(uid, nil); err == nil {
		t.Error("a claim without devices has a spec")
	}
	if _, err := cdi.Spec("a b", []cdi.Device{gpu("gpu", "gpu-0", "GPU-a")}); err == nil {
		t.Error("a name that no runtime accepts has a spec")
	}
}

// The judge is the code that runtimes use.
func TestRuntimeFindsAndAppliesWhatIsWritten(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "cdi")
	d := cdi.NewDir(dir)
	devices := []cdi.Device{gpu("gpu", "gpu-0", "GPU-a"), gpu("gpu", "gpu-1", "GPU-b")}
	spec, err := cdi.Spec(uid, devices)
	if err != nil {
		t.Fatal(err)
	}
	// Given a spec that was written twice, as after a restart,
	for range 2 {
		if err := d.Write(uid, spec); err != nil {
			t.Fatal(err)
		}
	}
	// when a runtime is asked for both devices,
	cache, err := runtimecdi.NewCache(runtimecdi.WithSpecDirs(dir), runtimecdi.WithAutoRefresh(false))
	if err != nil {
		t.Fatal(err)
	}
	if errs := cache.GetErrors(); len(errs) > 0 {
		t.Fatalf("the runtime finds errors: %v", errs)
	}
	container := &oci.Spec{Process: &oci.Process{}}
	if missing, err := cache.InjectDevices(container, cdi.QualifiedName(uid, "gpu-0"), cdi.QualifiedName(uid, "gpu-1")); err != nil {
		t.Fatalf("missing %v: %v", missing, err)
	}
	// then the container has both, and can use both.
	got, err := api.DevicesFromEnviron(container.Process.Env)
	if err != nil {
		t.Fatal(err)
	}
	want := []api.DeviceRef{{Name: "gpu-0", UUID: "GPU-a"}, {Name: "gpu-1", UUID: "GPU-b"}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("devices (-want +got):\n%s", diff)
	}
	if !slices.Contains(container.Process.Env, "CUDA_VISIBLE_DEVICES=GPU-a,GPU-b") {
		t.Errorf("environment is %v", container.Process.Env)
	}
	if len(container.Mounts) != 2 || !slices.Contains(container.Mounts[0].Options, "rw") {
		t.Errorf("mounts are %v", container.Mounts)
	}
}

func TestRemove(t *testing.T) {
	dir := t.TempDir()
	d := cdi.NewDir(dir)
	spec, err := cdi.Spec(uid, []cdi.Device{gpu("gpu", "gpu-0", "GPU-a")})
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Write(uid, spec); err != nil {
		t.Fatal(err)
	}
	// Given also the remains of a write that was cut off, and a file of others,
	half := filepath.Join(dir, filepath.Base(d.Path("half"))+".tmp")
	foreign := filepath.Join(dir, "k8s.other.example-claim_x.json")
	for _, f := range []string{half, foreign} {
		if err := os.WriteFile(f, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got, err := d.Claims()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{uid, "half"}, got); diff != "" {
		t.Errorf("claims (-want +got):\n%s", diff)
	}
	// when all claims are removed, twice,
	for range 2 {
		for _, c := range got {
			if err := d.Remove(c); err != nil {
				t.Fatal(err)
			}
		}
	}
	// then only the file of others is left.
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 || entries[0].Name() != filepath.Base(foreign) {
		t.Errorf("left over: %v, %v", entries, err)
	}
}

func TestNoDirectoryIsNoClaims(t *testing.T) {
	d := cdi.NewDir(filepath.Join(t.TempDir(), "none"))
	if claims, err := d.Claims(); err != nil || len(claims) != 0 {
		t.Errorf("got %v, %v", claims, err)
	}
	if err := d.Remove("x"); err != nil {
		t.Error(err)
	}
}
