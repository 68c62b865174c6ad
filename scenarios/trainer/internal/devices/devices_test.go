package devices

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/dra-lab/dra-lab/driver/api"
)

// given is a container with the named simulated GPUs, each mounted.
func given(t *testing.T, names ...string) Container {
	t.Helper()
	c := Container{DevDir: t.TempDir(), Simulated: t.TempDir()}
	var refs []api.DeviceRef
	var uuids []string
	for _, name := range names {
		ref := api.DeviceRef{Name: name, UUID: "GPU-" + name}
		refs = append(refs, ref)
		uuids = append(uuids, ref.UUID)
		if err := os.MkdirAll(c.processes(ref), 0o755); err != nil {
			t.Fatal(err)
		}
		c.Mounts = fmt.Appendf(c.Mounts, "36 35 98:0 /x %s rw,noatime - ext4 /dev/root rw\n", c.processes(ref))
	}
	c.Environ = []string{
		api.EnvDevices + "=" + api.FormatDevices(refs),
		api.EnvCUDAVisibleDevices + "=" + strings.Join(uuids, ","),
		api.EnvSimulated + "=true",
	}
	return c
}

func TestCheckAcceptsWhatTheClaimPromised(t *testing.T) {
	for _, names := range [][]string{nil, {"gpu-0"}, {"gpu-1", "gpu-3"}} {
		got, err := given(t, names...).Check(len(names))
		if err != nil {
			t.Fatalf("Check with %v: %v", names, err)
		}
		if len(got.Devices) != len(names) {
			t.Errorf("Check found %v, want %v", got.Devices, names)
		}
	}
}

func TestCheckRefusesWhatDiffersFromThePromise(t *testing.T) {
	for name, c := range map[string]struct {
		want   int
		change func(*Container)
		says   string
	}{
		"fewer devices":      {2, func(*Container) {}, "want 2"},
		"more devices":       {0, func(*Container) {}, "want 0"},
		"no environment":     {1, func(c *Container) { c.Environ = nil }, "want 1"},
		"no mount":           {1, func(c *Container) { c.Mounts = nil }, "nothing is mounted"},
		"mount without GPU":  {1, func(c *Container) { _ = os.RemoveAll(filepath.Join(c.Simulated, "gpu-0")) }, "gpu-0"},
		"other CUDA devices": {1, func(c *Container) { c.Environ[1] = api.EnvCUDAVisibleDevices + "=GPU-other" }, "GPU-other"},
		"unreadable list":    {1, func(c *Container) { c.Environ[0] = api.EnvDevices + "=gpu-0" }, "gpu-0"},
		"real, no nodes":     {1, func(c *Container) { c.Environ = c.Environ[:2] }, "0 device nodes"},
	} {
		t.Run(name, func(t *testing.T) {
			container := given(t, "gpu-0")
			c.change(&container)
			if _, err := container.Check(c.want); err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("Check = %v, want an error that says %q", err, c.says)
			}
		})
	}
}

func TestCheckCountsTheNodesOfRealGPUs(t *testing.T) {
	c := given(t, "gpu-0")
	c.Environ = c.Environ[:2] // not simulated
	for _, node := range []string{"nvidia0", "nvidiactl"} {
		if err := os.WriteFile(filepath.Join(c.DevDir, node), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := c.Check(1)
	if err != nil || got.Simulated {
		t.Errorf("Check = %+v, %v, want one real GPU", got, err)
	}
}

func TestUseIsVisibleAndLockedUntilReleased(t *testing.T) {
	// Given a container with a simulated GPU,
	c := given(t, "gpu-0")
	granted, err := c.Check(1)
	if err != nil {
		t.Fatal(err)
	}
	folder := c.processes(granted.Devices[0])

	// when the process uses it,
	release, err := c.Use(granted, api.Process{PID: 12, Bytes: 1 << 30, Name: "train-0"})
	if err != nil {
		t.Fatal(err)
	}

	// then there is one file, with its content, and nobody else gets its lock;
	files, err := os.ReadDir(folder)
	if err != nil || len(files) != 1 {
		t.Fatalf("%d files in the GPU's folder (%v), want 1", len(files), err)
	}
	path := filepath.Join(folder, files[0].Name())
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if process, err := api.ParseProcess(data); err != nil || process.Bytes != 1<<30 {
		t.Errorf("process file has %+v, %v", process, err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB); err == nil {
		t.Error("the process file is not locked")
	}

	// and after release neither the file nor the lock is left.
	if err := release(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); !os.IsNotExist(err) {
		t.Errorf("process file is still there: %v", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB); err != nil {
		t.Errorf("the lock is still held: %v", err)
	}
}

func TestAReplacementDoesNotDisturbItsPredecessor(t *testing.T) {
	// Given a process that uses a GPU, and its replacement with the same name,
	c := given(t, "gpu-0")
	granted, err := c.Check(1)
	if err != nil {
		t.Fatal(err)
	}
	process := api.Process{PID: 1, Bytes: 7, Name: "train-0"}
	old, err := c.Use(granted, process)
	if err != nil {
		t.Fatal(err)
	}
	replacement, err := c.Use(granted, process)
	if err != nil {
		t.Fatal(err)
	}
	// when the predecessor ends,
	if err := old(); err != nil {
		t.Fatal(err)
	}
	// then the replacement is still there, until it ends itself.
	checkProcesses(t, c.processes(granted.Devices[0]), 1)
	if err := replacement(); err != nil {
		t.Fatal(err)
	}
	checkProcesses(t, c.processes(granted.Devices[0]), 0)
}

func TestOneProcessAtATimeOnAnExclusiveGPU(t *testing.T) {
	c := given(t, "gpu-0")
	c.Environ = append(c.Environ, api.ExclusiveEnvName("gpu-0")+"=true")
	granted, err := c.Check(1)
	if err != nil {
		t.Fatal(err)
	}
	// Given what a dead process has left, which counts for nothing,
	if err := os.WriteFile(filepath.Join(c.processes(granted.Devices[0]), "dead.json"), []byte(`{"pid":1}`), 0o644); err != nil {
		t.Fatal(err)
	}
	first, err := c.Use(granted, api.Process{PID: 1, Name: "first"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Use(granted, api.Process{PID: 2, Name: "second"}); !errors.Is(err, ErrExclusive) {
		t.Errorf("the second process got %v", err)
	}
	if err := first(); err != nil {
		t.Fatal(err)
	}
	second, err := c.Use(granted, api.Process{PID: 2, Name: "second"})
	if err != nil {
		t.Fatalf("after the first has ended: %v", err)
	}
	if err := second(); err != nil {
		t.Fatal(err)
	}
}

func TestNoMoreMemoryThanTheClaimHas(t *testing.T) {
	c := given(t, "gpu-0")
	c.Environ = append(c.Environ, api.MemoryEnvName("gpu-0")+"=1000")
	granted, err := c.Check(1)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Use(granted, api.Process{PID: 1, Bytes: 1001}); !errors.Is(err, ErrMemory) {
		t.Errorf("too much: got %v", err)
	}
	release, err := c.Use(granted, api.Process{PID: 1, Bytes: 1000})
	if err != nil {
		t.Fatal(err)
	}
	if err := release(); err != nil {
		t.Fatal(err)
	}
}

func checkProcesses(t *testing.T, folder string, want int) {
	t.Helper()
	files, err := os.ReadDir(folder)
	if err != nil {
		t.Fatal(err)
	}
	if len(files) != want {
		t.Errorf("%d processes on the GPU, want %d: %v", len(files), want, files)
	}
}
