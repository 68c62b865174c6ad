package host

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// tree writes files below a new directory.
func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func TestCgroupVersion(t *testing.T) {
	for name, tc := range map[string]struct {
		files map[string]string
		want  int
	}{
		"two":             {map[string]string{"cgroup.controllers": "cpu"}, 2},
		"one":             {map[string]string{"memory/tasks": ""}, 1},
		"two beside one":  {map[string]string{"memory/tasks": "", "unified/cgroup.controllers": ""}, 1},
		"nothing mounted": {nil, 0},
	} {
		t.Run(name, func(t *testing.T) {
			if got := cgroupVersion(tree(t, tc.files)); got != tc.want {
				t.Errorf("cgroupVersion = %d, want %d", got, tc.want)
			}
		})
	}
	if got := cgroupVersion(filepath.Join(t.TempDir(), "none")); got != 0 {
		t.Errorf("cgroupVersion of no directory = %d, want 0", got)
	}
}

func TestSmallProbes(t *testing.T) {
	root := tree(t, map[string]string{
		"meminfo":  "MemTotal:       100 kB\nMemFree: 1 kB\nMemAvailable:    50 kB\n",
		"host_map": "         0          0 4294967295\n",
		"user_map": "         0     100000      65536\n",
		"number":   "128\n",
	})
	if total, available := memory(filepath.Join(root, "meminfo")); total != 100<<10 || available != 50<<10 {
		t.Errorf("memory = %d, %d", total, available)
	}
	if inUserNamespace(filepath.Join(root, "host_map")) || !inUserNamespace(filepath.Join(root, "user_map")) {
		t.Error("inUserNamespace is wrong")
	}
	if got := readInt(filepath.Join(root, "number")); got != 128 {
		t.Errorf("readInt = %d", got)
	}
	if got := readInt(filepath.Join(root, "none")); got != 0 {
		t.Errorf("readInt of no file = %d", got)
	}
	if free, existing, err := freeBytes(filepath.Join(root, "not", "there")); err != nil || free == 0 || existing != root {
		t.Errorf("freeBytes = %d, %q, %v", free, existing, err)
	}
	for version, want := range map[string]int{"go1.26.8": 26, "go1.27rc1": 27, "devel": 0} {
		if got, _ := goMinorVersion(version); got != want {
			t.Errorf("goMinorVersion(%q) = %d, want %d", version, got, want)
		}
	}
}

func TestParseOSRelease(t *testing.T) {
	for text, want := range map[string]OSRelease{
		"PRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\nID=debian\n":                    {ID: "debian", Name: "Debian GNU/Linux 12 (bookworm)"},
		"ID=linuxmint\nID_LIKE=\"ubuntu debian\"\nPRETTY_NAME='Linux Mint 22'\nbroken\n": {ID: "linuxmint", IDLike: []string{"ubuntu", "debian"}, Name: "Linux Mint 22"},
		"": {Name: "an unknown system"},
	} {
		if diff := cmp.Diff(want, parseOSRelease(text)); diff != "" {
			t.Errorf("parseOSRelease (-want +got):\n%s", diff)
		}
	}
	for id, want := range map[string]bool{"debian": true, "ubuntu": true, "fedora": false, "": false} {
		if got := (OSRelease{ID: id}).debianLike(); got != want {
			t.Errorf("debianLike of %q = %t", id, got)
		}
	}
	if !(OSRelease{ID: "linuxmint", IDLike: []string{"ubuntu"}}).debianLike() {
		t.Error("a child of Ubuntu takes Debian's packages")
	}
}

// The program that looks from inside a container, run without one: whether it
// may mount is known beforehand. It gets a mount namespace of its own, since it
// mounts something over /.
func TestProbeProgram(t *testing.T) {
	for _, arch := range []string{"amd64", "arm64"} {
		program, err := probeProgram(arch)
		if err != nil {
			t.Fatal(err)
		}
		if len(program) > 512 || !strings.HasPrefix(string(program), "\x7fELF") {
			t.Errorf("%s: %d bytes that begin with %q", arch, len(program), program[:4])
		}
	}
	if _, err := probeProgram("riscv64"); err == nil {
		t.Error("there is a program for riscv64?")
	}
	if os.Geteuid() != 0 {
		t.Skip("not root: NOT TESTED what the probe program finds")
	}
	program, err := probeProgram(runtime.GOARCH)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "probe")
	if err := os.WriteFile(path, program, 0o755); err != nil {
		t.Fatal(err)
	}
	missing, err := missingCapabilities()
	if err != nil {
		t.Fatal(err)
	}
	want := probeFull
	for _, name := range missing {
		if name == "CAP_SYS_RESOURCE" {
			want = probeNoResource
		}
	}
	root := exec.Command(path)
	root.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	_ = root.Run()
	if got := root.ProcessState.ExitCode(); got != want {
		t.Errorf("as root it ends with %d, want %d", got, want)
	}
	for _, dir := range []string{filepath.Dir(path), filepath.Dir(filepath.Dir(path))} {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	nobody := exec.Command(path)
	nobody.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS, Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	_ = nobody.Run()
	if got := nobody.ProcessState.ExitCode(); got != probeUnprivileged {
		t.Errorf("as nobody it ends with %d, want %d", got, probeUnprivileged)
	}
}

// Probe never fails, and finds what every Linux has.
func TestProbe(t *testing.T) {
	fakeDocker(t, answers, "exit 0")
	t.Setenv(RunEnv, t.TempDir())
	t.Setenv(CacheEnv, t.TempDir())
	f := Probe(t.Context(), "")
	if f.CPUs == 0 || f.Memory == 0 || len(f.Disks) == 0 || f.Kernel == "" || f.InotifyWatches == 0 {
		t.Errorf("facts are missing: %+v", f)
	}
	if e := f.Usable(); e == nil || e.Host != "unix:///fake.sock" || e.Version != "27.1.1" {
		t.Errorf("usable engine = %+v, want the one that answers", e)
	}
}
