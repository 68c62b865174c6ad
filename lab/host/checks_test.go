package host

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/dra-lab/dra-lab/driver/driverroot"
	"github.com/dra-lab/dra-lab/lab/host/gpu"
)

// goodHost is a host that nothing is wrong with.
func goodHost() Facts {
	return Facts{
		OS: "linux", Architecture: "amd64", Kernel: "6.1.0", User: "ada",
		Release:          OSRelease{ID: "debian", Name: "Debian GNU/Linux 12 (bookworm)"},
		Engines:          []EngineFacts{{Kind: "docker", Host: "unix:///var/run/docker.sock", Version: "27.1.1", CgroupVersion: 2, Verified: true}},
		CgroupVersion:    2,
		InotifyInstances: 512, InotifyWatches: 524288,
		CPUs: 8, Memory: 32e9, Available: 16e9,
		Disks: []Disk{{Path: "/home/ada", Use: "caches", Free: 100e9}},
		Go:    "go1.26.8",
	}
}

// gpus is one GPU that nothing is wrong with.
func gpus() gpu.Facts {
	return gpu.Facts{
		Root: "/", Driver: "570.86.15", GPUs: []gpu.GPU{{BusID: "0000:17:00.0", Model: "NVIDIA T4"}},
		Nodes:     map[string]driverroot.Node{"/dev/nvidia0": {}, "/dev/nvidiactl": {}, "/dev/nvidia-uvm": {}},
		Libraries: []gpu.Library{{Soname: "libnvidia-ptxjitcompiler.so.1"}},
		SMI:       &gpu.SMI{GPUs: []gpu.SMIGPU{{BusID: "0000:17:00.0"}}},
	}
}

func TestChecks(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*Facts)
		check  string // the one that is not ok; "" if all are
		status string
		detail string // part of it
		cure   string // part of it
	}{
		"all is well": {change: func(*Facts) {}},
		"not Linux":   {func(f *Facts) { f.OS = "darwin" }, "system", "fail", "darwin/amd64", "Linux"},
		"odd processor": {func(f *Facts) { f.Architecture = "riscv64" }, "system", "fail",
			"riscv64", "amd64 or arm64"},
		"no engine, root on Debian": {func(f *Facts) { f.Engines, f.Root = nil, true }, "engine", "warn",
			"none that runs", "make lab-up"},
		"no engine, not root": {func(f *Facts) {
			f.Engines = []EngineFacts{{Kind: "podman", CommandMissing: true, Unreachable: "gone"}}
		}, "engine", "fail",
			"none that runs privileged containers", "sudo apt-get install -y docker.io && sudo usermod -aG docker ada"},
		"no engine, Fedora": {func(f *Facts) {
			f.Engines, f.Root, f.Release = nil, true, OSRelease{ID: "fedora"}
			f.Programs = map[string]string{"debootstrap": "/sbin/debootstrap", "gcc": "/bin/gcc"}
		}, "engine", "fail",
			"none", "https://docs.docker.com/engine/install/"},
		"socket of others": {func(f *Facts) {
			f.Engines = []EngineFacts{{Kind: "docker", Unreachable: "permission denied"}}
		}, "engine", "fail",
			"docker: permission denied", "sudo usermod -aG docker ada && newgrp docker"},
		"named engine is away": {func(f *Facts) {
			f.Root = true
			f.Engines = []EngineFacts{{Kind: "docker", Host: "unix:///x", From: "DOCKER_HOST", Unreachable: "cannot connect"}}
		}, "engine", "fail",
			"unix:///x (DOCKER_HOST): cannot connect", "unset DOCKER_HOST"},
		"named engine is not for us": {func(f *Facts) {
			f.Engines = []EngineFacts{{Kind: "docker", Host: "unix:///x", From: "DOCKER_HOST", Unreachable: "permission denied while trying"}}
		}, "engine", "fail",
			"unix:///x (DOCKER_HOST): permission denied", "as root"},
		"rootless engine": {func(f *Facts) { f.Engines[0].Rootless = true }, "engine", "warn", "rootless", "rootful"},
		"weak engine first, good one next": {change: func(f *Facts) {
			f.Engines = append([]EngineFacts{{Kind: "docker", Unprivileged: "no"}}, f.Engines...)
		}},
		"limits cannot be raised": {func(f *Facts) {
			f.Missing = []string{"CAP_SYS_RESOURCE"}
			f.Engines[0].NoSysResource = true
		}, "capabilities", "warn",
			"CAP_SYS_RESOURCE; the lab works around", "--privileged"},
		"limits matter only for the engine": {change: func(f *Facts) { f.Missing = []string{"CAP_SYS_RESOURCE"} }},
		"cannot mount": {func(f *Facts) {
			f.Engines[0].Private = true
			f.Missing = []string{"CAP_SYS_ADMIN"}
		}, "capabilities", "fail",
			"no node runs without CAP_SYS_ADMIN", "--privileged"},
		"cgroup v1":                {func(f *Facts) { f.Engines[0].CgroupVersion = 1 }, "cgroups", "warn", "version 1", "sudo sh -c"},
		"cgroup v1, root":          {func(f *Facts) { f.Engines[0].CgroupVersion, f.Root = 1, true }, "cgroups", "warn", "version 1", "sh -c \"sed"},
		"no cgroups":               {func(f *Facts) { f.CgroupVersion, f.Engines[0].CgroupVersion = 0, 0 }, "cgroups", "fail", "not mounted", "mount -t cgroup2"},
		"user namespace":           {func(f *Facts) { f.Engines[0].UserNamespace = true }, "user namespace", "warn", "ordinary user", "rootful"},
		"few inotify instances":    {func(f *Facts) { f.InotifyInstances = 128 }, "inotify", "warn", "128 instances", "max_user_instances=512 fs.inotify.max_user_watches=524288"},
		"little memory":            {func(f *Facts) { f.Available = 3 << 30 }, "memory", "warn", "building a node image", "swapon"},
		"hardly any memory":        {func(f *Facts) { f.Available = 1 << 30 }, "memory", "fail", "a lab needs", "swapon"},
		"little disk":              {func(f *Facts) { f.Disks[0].Free = 10e9 }, "disk", "warn", "takes 12.0 GB for a while", "DRA_LAB_CACHE"},
		"full disk":                {func(f *Facts) { f.Disks = append(f.Disks, Disk{Path: "/var", Use: "images and nodes"}) }, "disk", "fail", "0.0 GB free at /var", "docker system prune"},
		"disk not known":           {func(f *Facts) { f.Disks = nil }, "disk", "warn", "not known", "df"},
		"GPU":                      {change: func(f *Facts) { f.GPU = gpus() }},
		"GPU of Windows":           {func(f *Facts) { f.GPU = gpu.Facts{WSL: true} }, "gpu", "warn", "/dev/dxg", "simulated GPUs"},
		"GPU with a remote engine": {func(f *Facts) { f.GPU, f.Engines[0].Host = gpus(), "tcp://10.0.0.1:2375" }, "gpu", "warn", "another machine", "DOCKER_HOST"},
		"GPU with Docker Desktop": {func(f *Facts) { f.GPU, f.Engines[0].Host = gpus(), "unix:///home/ada/.docker/desktop/docker.sock" },
			"gpu", "warn", "another machine", "DOCKER_CONTEXT"},
		"GPU without its driver": {func(f *Facts) { f.GPU = gpu.Facts{PCI: []string{"0000:17:00.0"}} }, "gpu", "warn", "not loaded", "sudo modprobe nvidia"},
		"no Go":                  {func(f *Facts) { f.Go = "" }, "go", "warn", "missing", "go.dev"},
		"old Go":                 {func(f *Facts) { f.Go = "go1.19.8" }, "go", "warn", "go1.19.8 is old", "go.dev"},
		"packages to install":    {func(f *Facts) { f.Packages = []string{"debootstrap"} }, "packages", "warn", "debootstrap", "sudo apt-get install -y --no-install-recommends debootstrap"},
	} {
		t.Run(name, func(t *testing.T) {
			facts := goodHost()
			tc.change(&facts)
			found := false
			for _, c := range facts.Checks() {
				if (c.Status == StatusOK) != (c.Cure == "") {
					t.Errorf("check %q: status %s with cure %q; a cure belongs to what is not ok", c.Name, c.Status, c.Cure)
				}
				if c.Detail == "" {
					t.Errorf("check %q says nothing", c.Name)
				}
				if c.Name != tc.check {
					if c.Status != StatusOK {
						t.Errorf("check %q: %s: %s", c.Name, c.Status, c.Detail)
					}
					continue
				}
				found = true
				if c.Status != tc.status || !strings.Contains(c.Detail, tc.detail) || !strings.Contains(c.Cure, tc.cure) {
					t.Errorf("check %q: %s: %q, cure %q; want %s, %q, %q", c.Name, c.Status, c.Detail, c.Cure, tc.status, tc.detail, tc.cure)
				}
			}
			if !found && tc.check != "" {
				t.Errorf("no check %q", tc.check)
			}
			if got, want := NewReport(facts).Failed(), tc.status == StatusFail; got != want {
				t.Errorf("Failed = %t, want %t", got, want)
			}
		})
	}
}

// A GPU that works has a line, and each thing to know about it another.
func TestChecksOfGPUs(t *testing.T) {
	f := goodHost()
	f.GPU = gpus()
	f.GPU.SMI.GPUs[0].Display = "Enabled"
	want := []Check{
		{Name: "gpu", Status: StatusOK, Detail: "NVIDIA driver 570.86.15, can be passed into nodes: NVIDIA T4 at 0000:17:00.0"},
		{Name: "gpu", Status: StatusWarn, Detail: "GPU 0000:17:00.0 drives a display: training slows the desktop down, and an error on the GPU may end it",
			Cure: "log out of the desktop before you train"},
	}
	if diff := cmp.Diff(want, f.checkGPUs()); diff != "" {
		t.Errorf("checks (-want +got):\n%s", diff)
	}
	f.Engines[0].Rootless = true
	if got := f.checkGPUs(); len(got) != 2 || got[0].Status != StatusWarn || !strings.Contains(got[0].Detail, "rootless") {
		t.Errorf("with a rootless engine: %+v", got)
	}
}

func TestReportForms(t *testing.T) {
	r := Report{Checks: []Check{
		{Name: "engine", Status: StatusOK, Detail: "docker"},
		{Name: "go", Status: StatusWarn, Detail: "missing", Cure: "install Go"},
	}}
	var text, document bytes.Buffer
	if err := r.WriteText(&text); err != nil {
		t.Fatal(err)
	}
	want := "ok    engine  docker\nwarn  go      missing\n              → install Go\n"
	if diff := cmp.Diff(want, text.String()); diff != "" {
		t.Errorf("text (-want +got):\n%s", diff)
	}
	if err := r.WriteJSON(&document); err != nil {
		t.Fatal(err)
	}
	var back Report
	if err := json.Unmarshal(document.Bytes(), &back); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(r.Checks, back.Checks); diff != "" {
		t.Errorf("JSON round trip (-want +got):\n%s", diff)
	}
}

func TestRestrictions(t *testing.T) {
	if got := goodHost().Restrictions(); !cmp.Equal(got, Restrictions{}) {
		t.Errorf("an ordinary host has restrictions: %+v", got)
	}
	f := Facts{CgroupVersion: 1, UserNamespace: true, Missing: []string{"CAP_SYS_RESOURCE"}}
	want := Restrictions{CapSysResource: true, CgroupV1: true, UserNamespace: true, Missing: f.Missing}
	if diff := cmp.Diff(want, f.Restrictions()); diff != "" {
		t.Errorf("restrictions (-want +got):\n%s", diff)
	}
}
