package host

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/dra-lab/dra-lab/lab/host/gpu"
)

// Probe looks at the host. What it cannot find out stays at its zero value; it
// does not fail. It changes nothing, except that the engines that serve run one
// tiny container each, from an image that it brings and removes, until one
// does so with privileges. That takes a second or two. GPUs are looked for below
// driverRoot; "" is /.
func Probe(ctx context.Context, driverRoot string) Facts {
	f := Facts{
		OS:               runtime.GOOS,
		Architecture:     runtime.GOARCH,
		Kernel:           kernelVersion(),
		Release:          readOSRelease("/etc/os-release"),
		Root:             os.Geteuid() == 0,
		User:             userName(),
		CgroupVersion:    cgroupVersion("/sys/fs/cgroup"),
		UserNamespace:    inUserNamespace("/proc/self/uid_map"),
		InotifyInstances: readInt("/proc/sys/fs/inotify/max_user_instances"),
		InotifyWatches:   readInt("/proc/sys/fs/inotify/max_user_watches"),
		CPUs:             runtime.NumCPU(),
		GPU:              gpu.Look(ctx, driverRoot),
		Programs:         map[string]string{},
	}
	f.Missing, _ = missingCapabilities()
	f.Memory, f.Available = memory("/proc/meminfo")
	for _, name := range []string{"docker", "podman", "nerdctl", "kubectl", "go", "gcc", "make", "git", "debootstrap"} {
		f.Programs[name] = findProgram(name)
	}
	if f.Programs["go"] != "" {
		f.Go = goVersion(ctx, f.Programs["go"])
	}
	if f.Release.debianLike() {
		f.Packages, _ = missingPackages(ctx, BuildPackages())
	}
	f.Engines = probeEngines(ctx)
	f.Disks = probeDisks(f.Usable())
	return f
}

func probeEngines(ctx context.Context) []EngineFacts {
	p, err := newPrivateEngine()
	if err != nil {
		return nil
	}
	var engines []EngineFacts
	found := false
	for _, c := range candidates(p, os.Getenv) {
		if c.Private && c.from == "" && p.idle() {
			continue
		}
		facts := inspect(ctx, c.Engine)
		facts.From = c.from
		if facts.Unreachable == "" && !found {
			found = facts.check(ctx, *facts.engine()) == nil
		}
		engines = append(engines, facts)
	}
	return engines
}

func probeDisks(engine *EngineFacts) []Disk {
	var disks []Disk
	add := func(path, use string) {
		free, existing, err := freeBytes(path)
		if err != nil {
			return
		}
		disks = append(disks, Disk{Path: existing, Use: use, Free: free})
	}
	if dir, err := CacheDir(); err == nil {
		add(dir, "caches")
	}
	switch {
	case engine == nil || engine.Private:
		// The private engine's data is among the caches.
	case engine.DataRoot != "":
		add(engine.DataRoot, "images and nodes")
	}
	return disks
}

// FreeDisk returns the bytes that this user can still write below path, which
// need not exist yet.
func FreeDisk(path string) (uint64, error) {
	free, _, err := freeBytes(path)
	return free, err
}

// freeBytes also returns the part of path that exists.
func freeBytes(path string) (free uint64, existing string, err error) {
	for existing = filepath.Clean(path); ; existing = filepath.Dir(existing) {
		var stat unix.Statfs_t
		err := unix.Statfs(existing, &stat)
		if err == nil {
			return stat.Bavail * uint64(stat.Bsize), existing, nil
		}
		if !errors.Is(err, unix.ENOENT) || existing == "/" || existing == "." {
			return 0, "", &os.PathError{Op: "find free disk below", Path: path, Err: err}
		}
	}
}

func kernelVersion() string {
	text, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}

// cgroupVersion tells which control groups are mounted at root. Where version 2
// is only mounted beside version 1, the controllers are version 1's.
func cgroupVersion(root string) int {
	if _, err := os.Stat(filepath.Join(root, "cgroup.controllers")); err == nil {
		return 2
	}
	if entries, err := os.ReadDir(root); err == nil && len(entries) > 0 {
		return 1
	}
	return 0
}

// inUserNamespace reports whether user numbers here are others on the host.
func inUserNamespace(uidMap string) bool {
	text, err := os.ReadFile(uidMap)
	return err == nil && strings.Join(strings.Fields(string(text)), " ") != "0 0 4294967295"
}

func readInt(path string) int {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0
	}
	number, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return 0
	}
	return number
}

// memory returns the bytes of memory in all and available.
func memory(meminfo string) (total, available uint64) {
	text, err := os.ReadFile(meminfo)
	if err != nil {
		return 0, 0
	}
	for line := range bytes.Lines(text) {
		fields := bytes.Fields(line)
		if len(fields) < 2 {
			continue
		}
		kib, err := strconv.ParseUint(string(fields[1]), 10, 64)
		if err != nil {
			continue
		}
		switch string(fields[0]) {
		case "MemTotal:":
			total = kib << 10
		case "MemAvailable:":
			available = kib << 10
		}
	}
	return total, available
}

func goVersion(ctx context.Context, program string) string {
	cmd := exec.CommandContext(ctx, program, "env", "GOVERSION")
	// The version of what is installed, not of what some module here asks for.
	cmd.Env = append(os.Environ(), "GOTOOLCHAIN=local", "GOFLAGS=-mod=mod")
	cmd.Dir = "/"
	text, err := cmd.Output()
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}
