package passthrough_test

import (
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/google/go-cmp/cmp"

	"github.com/dra-lab/dra-lab/driver/driverroot"
	"github.com/dra-lab/dra-lab/driver/driverroot/nvmltest"
	"github.com/dra-lab/dra-lab/driver/internal/cdi"
	"github.com/dra-lab/dra-lab/driver/internal/device"
	"github.com/dra-lab/dra-lab/driver/internal/gpu"
	"github.com/dra-lab/dra-lab/driver/internal/gpu/passthrough"
)

// three GPUs, whose order in the library is not that of their minor numbers.
const three = `driver 570.86.15
cuda 12080
gpu 0 uuid GPU-a
gpu 0 name NVIDIA H100 80GB HBM3
gpu 0 bus 00000000:17:00.0
gpu 0 minor 1
gpu 1 uuid GPU-b
gpu 1 minor 0
gpu 2 uuid GPU-c
gpu 2 minor 2
`

func open(t *testing.T, root string) (*passthrough.Hardware, *gpu.GPUs) {
	t.Helper()
	h, err := passthrough.Open(root)
	if err != nil {
		t.Fatal(err)
	}
	gpus, err := gpu.Discover(h, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := gpus.Close(); err != nil {
			t.Error(err)
		}
	})
	return h, gpus
}

func TestNodeHasItsOwnGPUs(t *testing.T) {
	nvmltest.Alone(t, func(t *testing.T) {
		// Given a machine with three GPUs and a node with the device nodes of two,
		root, _ := nvmltest.Root(t, three, []int{1, 2})
		h, gpus := open(t, root)
		// then it has those two, with what the library says of them.
		want := []device.GPU{
			{
				Index: 0, Name: "gpu-0", UUID: "GPU-a", Product: "NVIDIA H100 80GB HBM3", Brand: "NVIDIA", Architecture: "Hopper",
				ComputeMajor: 9, MemoryBytes: 80 << 30, PCIBusID: "0000:17:00.0", Minor: 1, DriverVersion: "570.86.15", CUDAVersion: "12.8",
			},
			{
				Index: 1, Name: "gpu-1", UUID: "GPU-c", Product: "A GPU that is none", Brand: "NVIDIA", Architecture: "Hopper",
				ComputeMajor: 9, MemoryBytes: 80 << 30, Minor: 2, DriverVersion: "570.86.15", CUDAVersion: "12.8",
			},
		}
		if diff := cmp.Diff(want, gpus.List()); diff != "" {
			t.Errorf("GPUs (-want +got):\n%s", diff)
		}
		// And a container gets that GPU's device node, the shared ones and the
		// libraries.
		library := driverroot.Library(root, driverroot.NVML)
		edits := cdi.Edits{
			Env:    []string{"LD_LIBRARY_PATH=/usr/local/nvidia/lib64"},
			Mounts: []cdi.Mount{{Node: library, Container: "/usr/local/nvidia/lib64/libnvidia-ml.so.1", Executable: true}},
			Devices: []cdi.DeviceNode{
				{Node: root + "/dev/nvidia2", Container: "/dev/nvidia2", Major: 195, Minor: 2},
				{Node: root + "/dev/nvidiactl", Container: "/dev/nvidiactl", Major: 510, Minor: 0},
				{Node: root + "/dev/nvidia-uvm", Container: "/dev/nvidia-uvm", Major: 510, Minor: 1},
				{Node: root + "/dev/nvidia-uvm-tools", Container: "/dev/nvidia-uvm-tools", Major: 510, Minor: 2},
			},
		}
		if diff := cmp.Diff(edits, h.Edits(gpus.List()[1], device.Settings{})); diff != "" {
			t.Errorf("edits (-want +got):\n%s", diff)
		}
		if _, ret := h.DeviceGetHandleByIndex(2); ret != nvml.ERROR_INVALID_ARGUMENT {
			t.Errorf("the third GPU: %v", ret)
		}
	})
}

func TestReadingAndUse(t *testing.T) {
	nvmltest.Alone(t, func(t *testing.T) {
		root, file := nvmltest.Root(t, three, []int{0, 1, 2})
		_, gpus := open(t, root)
		nvmltest.Describe(t, file, three+"gpu 1 temperature 71\ngpu 1 used 1048576\ngpu 1 pid 4711\ngpu 1 recovery 1\n")
		r := gpus.Read(1)
		if r.Temperature != device.Known(71) || r.Recovery != device.Known(device.RecoveryGPUReset) || r.UsedBytes != device.Known(uint64(1<<20)) || r.Lost || r.Detail != "2 questions are not supported here" {
			t.Errorf("reading %+v", r)
		}
		usage, err := gpus.Usage(1)
		want := device.Usage{UsedBytes: 1 << 20, TotalBytes: 80 << 30, Processes: []device.Process{{PID: 4711, Bytes: 1 << 20}}}
		if diff := cmp.Diff(want, usage); diff != "" || err != nil {
			t.Errorf("usage: %v (-want +got):\n%s", err, diff)
		}
		// Lost, which one GPU is and the others are not.
		nvmltest.Describe(t, file, three+"gpu 2 answer 15\n")
		if !gpus.Read(2).Lost || gpus.Read(1).Lost {
			t.Error("which GPU is lost is not found out")
		}
	})
}

func TestEventsNameTheGPU(t *testing.T) {
	nvmltest.Alone(t, func(t *testing.T) {
		root, file := nvmltest.Root(t, three, []int{2, 1})
		_, gpus := open(t, root)
		if e, ok, err := gpus.Next(10 * time.Millisecond); ok || err != nil {
			t.Errorf("got %+v, %v, %v; want nothing", e, ok, err)
		}
		// An event of another node's GPU does not come, one of ours does, once.
		nvmltest.Describe(t, file, three+"event 1 1 48\nevent 2 2 79\n")
		e, ok, err := gpus.Next(10 * time.Second)
		if want := (device.Event{Index: 1, Kind: device.EventXID, Code: 79}); e != want || !ok || err != nil {
			t.Errorf("got %+v, %v, %v; want %+v", e, ok, err, want)
		}
		if e, ok, _ := gpus.Next(10 * time.Millisecond); ok {
			t.Errorf("got %+v once more", e)
		}
	})
}

// A driver that is older than go-nvml lacks functions. The process lives, and
// what nobody can answer is unknown.
func TestOlderDriver(t *testing.T) {
	nvmltest.Alone(t, func(t *testing.T) {
		root, file := nvmltest.Root(t, three, []int{1}, nvmltest.OldDriver)
		h, gpus := open(t, root)
		g := gpus.List()[0]
		if g.UUID != "GPU-a" || g.Architecture != "" || g.Problem != "" {
			t.Errorf("GPU %+v", g)
		}
		r := gpus.Read(0)
		if r.RemapFailed.Known || !r.Temperature.Known || r.Detail != "3 questions are not supported here" {
			t.Errorf("reading %+v", r)
		}
		nvmltest.Describe(t, file, three+"gpu 0 pid 7\n")
		if usage, err := gpus.Usage(0); err != nil || len(usage.Processes) != 1 || usage.Processes[0].PID != 7 {
			t.Errorf("usage %+v, %v", usage, err)
		}
		if err := h.Bind(g, "claim", device.Settings{}); err != nil {
			t.Errorf("a GPU whose MIG mode nobody knows cannot be had: %v", err)
		}
	})
}

func TestLostGPUAtTheStartIsTheNodesOwn(t *testing.T) {
	nvmltest.Alone(t, func(t *testing.T) {
		// GPU 0 has minor 1 and does not even say so.
		root, _ := nvmltest.Root(t, three+"gpu 0 answer 15\n", []int{1})
		h, err := passthrough.Open(root)
		if err != nil {
			t.Fatal(err)
		}
		if n, ret := h.DeviceGetCount(); n != 1 || ret != nvml.SUCCESS {
			t.Errorf("%d GPUs, %v", n, ret)
		}
		if err := h.Bind(device.GPU{Name: "gpu-0", Minor: -1, Problem: "GPU is lost"}, "claim", device.Settings{}); err == nil || !strings.Contains(err.Error(), "GPU is lost") {
			t.Errorf("bound a GPU without a device node: %v", err)
		}
	})
}

func TestLostGPUOfAnotherNodeIsNot(t *testing.T) {
	nvmltest.Alone(t, func(t *testing.T) {
		root, _ := nvmltest.Root(t, three+"gpu 0 open 15\n", []int{0})
		_, gpus := open(t, root)
		if list := gpus.List(); len(list) != 1 || list[0].UUID != "GPU-b" {
			t.Errorf("GPUs %+v", list)
		}
	})
}

func TestOpenRefuses(t *testing.T) {
	for name, tc := range map[string]struct {
		description string
		minors      []int
		change      func(t *testing.T, root string)
		want        []string
	}{
		"versions that differ": {"init 18\n" + three, []int{0}, nil, []string{"RM has detected an NVML/RM version mismatch", "make it anew"}},
		"no kernel module":     {"init 9\n" + three, []int{0}, nil, []string{"Driver Not Loaded", "no longer loaded"}},
		"no device nodes":      {three, nil, nil, []string{"no device node of a GPU"}},
		"another machine's":    {three, []int{7}, nil, []string{"the library lists 3 GPUs, none of which has one of the device nodes"}},
		"no library": {three, []int{0}, func(t *testing.T, root string) {
			remove(t, driverroot.Library(root, driverroot.NVML))
		}, []string{"load libnvidia-ml.so.1", "cannot open shared object file"}},
		"a library of something else": {three, []int{0}, func(t *testing.T, root string) {
			path := driverroot.Library(root, driverroot.NVML)
			remove(t, path)
			if err := os.Symlink(anyLibrary(t), path); err != nil {
				t.Fatal(err)
			}
		}, []string{"it has no function nvmlInit_v2"}},
		"no folder": {three, []int{0}, func(t *testing.T, root string) {
			if err := os.RemoveAll(root); err != nil {
				t.Fatal(err)
			}
		}, []string{"no such file or directory"}},
		"a file in place of a device node": {three, []int{0}, func(t *testing.T, root string) {
			if err := os.WriteFile(driverroot.Device(root, driverroot.UVM), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}, []string{"nvidia-uvm", "not a device node"}},
	} {
		t.Run(name, func(t *testing.T) {
			nvmltest.Alone(t, func(t *testing.T) {
				root, _ := nvmltest.Root(t, tc.description, tc.minors)
				if tc.change != nil {
					tc.change(t, root)
				}
				_, err := passthrough.Open(root)
				if err == nil {
					t.Fatal("it opens")
				}
				for _, want := range append(tc.want, root) {
					if !strings.Contains(err.Error(), want) {
						t.Errorf("error %q, want %q in it", err, want)
					}
				}
			})
		})
	}
}

func remove(t *testing.T, path string) {
	t.Helper()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
}

// anyLibrary is one that every system with a C library has.
func anyLibrary(t *testing.T) string {
	t.Helper()
	for _, pattern := range []string{"/lib/*/libm.so.6", "/lib64/libm.so.6", "/usr/lib/libm.so.6"} {
		if found, err := filepath.Glob(pattern); err == nil && len(found) > 0 {
			return found[0]
		}
	}
	t.Fatal("no libm.so.6 here")
	return ""
}

func TestBindChangesNothingAndSaysWhy(t *testing.T) {
	nvmltest.Alone(t, func(t *testing.T) {
		root, file := nvmltest.Root(t, three, []int{0, 1, 2})
		h, gpus := open(t, root)
		g := gpus.List()[0]
		for name, tc := range map[string]struct {
			add      string
			settings device.Settings
			want     string // "": it can be had
		}{
			"plain":                        {},
			"in MIG mode":                  {add: "gpu 0 mig 1\n", want: "nvidia-smi -i GPU-a -mig 0"},
			"prohibited":                   {add: "gpu 0 mode 2\n", want: "nvidia-smi -i GPU-a -c DEFAULT"},
			"exclusive, and it is not":     {settings: device.Settings{Exclusive: true}, want: "nvidia-smi -i GPU-a -c EXCLUSIVE_PROCESS"},
			"exclusive, and it is":         {add: "gpu 0 mode 3\n", settings: device.Settings{Exclusive: true}},
			"another's mode":               {add: "gpu 1 mode 2\n"},
			"with a time slice":            {settings: device.Settings{TimeSlice: "Long"}, want: "time slices of real GPUs are not changed"},
			"with a part of the memory":    {settings: device.Settings{MemoryBytes: 1}, want: "a part of the memory"},
			"while it runs something":      {add: "gpu 0 pid 4711\n"},
			"of which no mode is readable": {add: "gpu 0 answer 999\n"},
		} {
			nvmltest.Describe(t, file, three+tc.add)
			err := h.Bind(g, "claim", tc.settings)
			if (err != nil) != (tc.want != "") || err != nil && !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%s: error %v, want %q", name, err, tc.want)
			}
			if err := h.Unbind(g, "claim"); err != nil {
				t.Errorf("%s: unbind: %v", name, err)
			}
		}
	})
}

// NVML's ways to change a GPU that the driver has for simulated ones do not reach
// real ones.
func TestRealGPUsAreNotCutUp(t *testing.T) {
	nvmltest.Alone(t, func(t *testing.T) {
		root, _ := nvmltest.Root(t, three+"gpu 0 mig 1\n", []int{1})
		h, _ := open(t, root)
		d, ret := h.DeviceGetHandleByIndex(0)
		if ret != nvml.SUCCESS {
			t.Fatal(ret)
		}
		if mode, _, ret := d.GetMigMode(); mode != nvml.DEVICE_MIG_ENABLE || ret != nvml.SUCCESS {
			t.Errorf("MIG mode %d, %v", mode, ret)
		}
		_, set := d.SetMigMode(0)
		_, create := d.CreateGpuInstance(nil)
		_, place := d.CreateGpuInstanceWithPlacement(nil, nil)
		_, list := d.GetGpuInstances(nil)
		for i, ret := range []nvml.Return{set, create, place, list} {
			if ret != nvml.ERROR_NOT_SUPPORTED {
				t.Errorf("%d: %v", i, ret)
			}
		}
	})
}

// Every method of a GPU that the driver calls is one that this package guards:
// a call of a function that the library has not would end the process.
func TestEveryCallIsGuarded(t *testing.T) {
	all := reflect.TypeFor[nvml.Device]()
	guarded := methods(t, "guard.go")
	var called []string
	files, err := filepath.Glob("../*.go")
	if err != nil {
		t.Fatal(err)
	}
	more, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range append(files, more...) {
		if strings.HasSuffix(file, "_test.go") || file == "guard.go" {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(parsed, func(n ast.Node) bool {
			if call, ok := n.(*ast.CallExpr); ok {
				if s, ok := call.Fun.(*ast.SelectorExpr); ok {
					if _, ok := all.MethodByName(s.Sel.Name); ok && !slices.Contains(called, s.Sel.Name) {
						called = append(called, s.Sel.Name)
					}
				}
			}
			return true
		})
	}
	if len(called) < 15 {
		t.Fatalf("only %d calls found: wrong folder?", len(called))
	}
	for _, name := range called {
		if !guarded[name] {
			t.Errorf("%s is called and not guarded: add it to guard.go", name)
		}
	}
}

// methods are those that a file declares.
func methods(t *testing.T, file string) map[string]bool {
	t.Helper()
	parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]bool{}
	for _, d := range parsed.Decls {
		if f, ok := d.(*ast.FuncDecl); ok && f.Recv != nil {
			found[f.Name.Name] = true
		}
	}
	return found
}

func TestErrorsAreTheLibrarysOwn(t *testing.T) {
	nvmltest.Alone(t, func(t *testing.T) {
		root, _ := nvmltest.Root(t, "init 9\n"+three, []int{0})
		_, err := passthrough.Open(root)
		var ret nvml.Return
		if !errors.As(err, &ret) || ret != nvml.ERROR_DRIVER_NOT_LOADED {
			t.Errorf("error %v, want one that has NVML's answer in it", err)
		}
	})
}

// The libraries are looked for once, so that a claim's CDI spec is quick to make:
// at most 1 ms is wanted.
func BenchmarkSpec(b *testing.B) {
	root, _ := nvmltest.Root(b, three, []int{0, 1, 2})
	for _, name := range []string{"libcuda.so.1", "libnvidia-nvvm.so.4", "libnvidia-ptxjitcompiler.so.1", "libnvidia-gpucomp.so.570.86.15"} {
		if err := os.WriteFile(driverroot.Library(root, name), nil, 0o600); err != nil {
			b.Fatal(err)
		}
	}
	h, err := passthrough.Open(root)
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, err := cdi.Spec("uid", []cdi.Device{{Request: "gpu", Name: "gpu-0", UUID: "GPU-a", Edits: h.Edits(device.GPU{Minor: 0}, device.Settings{})}}); err != nil {
			b.Fatal(err)
		}
	}
}
