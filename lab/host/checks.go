package host

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Outcomes of a check.
const (
	StatusOK   = "ok"
	StatusWarn = "warn" // the lab works, or mends it by itself
	StatusFail = "fail" // the lab does not work
)

// Check is one judgement about a host.
type Check struct {
	Name   string `json:"name"`
	Status string `json:"status"`         // ok, warn or fail
	Detail string `json:"detail"`         // what was found
	Cure   string `json:"cure,omitempty"` // what to run or do; never empty unless ok
}

// What a host should have at least.
const (
	enoughInstances = 512     // inotify instances; each node's systemd, kubelet and containerd take dozens
	enoughWatches   = 65536   // inotify watches
	leastMemory     = 2 << 30 // bytes available; a cluster of three takes 1 GiB
	enoughMemory    = 4 << 30 // bytes available; linking the kubelet takes 2 GiB more
	goMinor         = 26      // of the Go that builds Kubernetes v1.37
)

// Checks judges the facts. It is a pure function, and every check that is not
// ok has a cure.
func (f Facts) Checks() []Check {
	checks := []Check{
		f.checkSystem(), f.checkEngine(), f.checkCapabilities(), f.checkCgroups(), f.checkUserNamespace(),
		f.checkInotify(), f.checkMemory(), f.checkDisk(),
	}
	checks = append(checks, f.checkGPUs()...)
	return append(checks, f.checkGo(), f.checkPackages())
}

func (f Facts) checkSystem() Check {
	c := Check{Name: "system", Status: StatusOK, Detail: fmt.Sprintf("%s, %s/%s, kernel %s, %d CPUs, as %s",
		f.Release.Name, f.OS, f.Architecture, f.Kernel, f.CPUs, f.User)}
	switch {
	case f.OS != "linux":
		c.Status, c.Cure = StatusFail, "run the lab in a Linux machine, such as a virtual one with Debian 12"
	case f.Architecture != "amd64" && f.Architecture != "arm64":
		c.Status, c.Cure = StatusFail, "run the lab on a machine with an amd64 or arm64 processor"
	}
	return c
}

func (f Facts) checkEngine() Check {
	c := Check{Name: "engine", Status: StatusOK}
	if e := f.Usable(); e != nil {
		c.Detail = fmt.Sprintf("%s %s at %s runs privileged containers", e.Kind, e.Version, e.Host)
		if e.Host == "" {
			c.Detail = fmt.Sprintf("%s %s runs privileged containers", e.Kind, e.Version)
		}
		if e.Private {
			c.Detail += " (the lab's own)"
		}
		if e.Rootless {
			c.Status = StatusWarn
			c.Detail += ", rootless: kind needs delegated control groups for that"
			c.Cure = "use a rootful engine, or see https://kind.sigs.k8s.io/docs/user/rootless/"
		}
		return c
	}
	var reasons []string
	for _, e := range f.Engines {
		if e.CommandMissing && e.From == "" {
			continue
		}
		name := e.Kind
		if e.From != "" {
			name = fmt.Sprintf("%s (%s)", e.Host, e.From)
			if e.Host == "" {
				name = fmt.Sprintf("%s (%s)", e.Kind, e.From)
			}
		}
		reasons = append(reasons, name+": "+e.Unreachable+e.Unprivileged)
	}
	c.Detail = "none that runs privileged containers"
	if len(reasons) > 0 {
		c.Detail += "; " + strings.Join(reasons, "; ")
	}
	named := slices.IndexFunc(f.Engines, func(e EngineFacts) bool { return e.From != "" })
	switch {
	case named >= 0 && strings.Contains(f.Engines[named].Unreachable, denied):
		c.Status, c.Cure = StatusFail, "run this as root, or unset "+f.Engines[named].From
	case named >= 0:
		c.Status, c.Cure = StatusFail, "unset "+f.Engines[named].From
	case f.Root && f.Release.debianLike():
		c.Status, c.Cure = StatusWarn, "make lab-up (it installs and starts an engine of its own)"
	case slices.ContainsFunc(f.Engines, func(e EngineFacts) bool { return strings.Contains(e.Unreachable, denied) }):
		c.Status, c.Cure = StatusFail, fmt.Sprintf("sudo usermod -aG docker %s && newgrp docker", f.User)
	case f.Release.debianLike():
		c.Status, c.Cure = StatusFail, fmt.Sprintf("sudo apt-get install -y docker.io && sudo usermod -aG docker %s && newgrp docker", f.User)
	default:
		c.Status, c.Cure = StatusFail, "install and start Docker: https://docs.docker.com/engine/install/"
	}
	return c
}

func (f Facts) checkCapabilities() Check {
	c := Check{Name: "capabilities", Status: StatusOK, Detail: "all there"}
	if len(f.Missing) == 0 {
		return c
	}
	c.Detail = "missing: " + strings.Join(f.Missing, " ")
	// An engine that is not the lab's is outside of what withholds them here.
	e := f.Usable()
	if e != nil && !e.Private && !e.NoSysResource {
		c.Detail += "; not in the engine's containers, which is what counts"
		return c
	}
	c.Status = StatusWarn
	c.Detail += "; the lab works around that"
	c.Cure = "if this machine is a container, start it with: docker run --privileged"
	for _, vital := range []string{"CAP_SYS_ADMIN", "CAP_NET_ADMIN", "CAP_MKNOD", "CAP_SYS_CHROOT", "CAP_SETPCAP"} {
		if slices.Contains(f.Missing, vital) {
			c.Status = StatusFail
			c.Detail = "missing: " + strings.Join(f.Missing, " ") + "; no node runs without " + vital
		}
	}
	return c
}

func (f Facts) checkCgroups() Check {
	c := Check{Name: "cgroups", Status: StatusOK, Detail: "version 2"}
	version := f.CgroupVersion
	if e := f.Usable(); e != nil && e.CgroupVersion != 0 {
		version = e.CgroupVersion
	}
	switch version {
	case 1:
		c.Status = StatusWarn
		c.Detail = "version 1, which Kubernetes is giving up; the lab works around that"
		c.Cure = f.sudo() + `sh -c "sed -i 's/^GRUB_CMDLINE_LINUX=./&systemd.unified_cgroup_hierarchy=1 /' /etc/default/grub && update-grub && reboot"`
	case 0:
		c.Status = StatusFail
		c.Detail = "not mounted"
		c.Cure = f.sudo() + "mount -t cgroup2 cgroup2 /sys/fs/cgroup"
	}
	return c
}

func (f Facts) checkUserNamespace() Check {
	c := Check{Name: "user namespace", Status: StatusOK, Detail: "the host's own"}
	e := f.Usable()
	inside := f.UserNamespace
	if e != nil && !e.Private {
		inside = e.UserNamespace
	}
	if inside {
		c.Status = StatusWarn
		c.Detail = "root here is an ordinary user of the host; the lab works around that as far as the host lets it"
		c.Cure = "run the lab outside of the user namespace, or use a rootful engine without userns-remap"
	}
	return c
}

func (f Facts) checkInotify() Check {
	c := Check{Name: "inotify", Status: StatusOK,
		Detail: fmt.Sprintf("%d instances, %d watches per user", f.InotifyInstances, f.InotifyWatches)}
	if f.InotifyInstances < enoughInstances || f.InotifyWatches < enoughWatches {
		c.Status = StatusWarn
		c.Detail += "; with many nodes, some fail with \"too many open files\""
		c.Cure = f.sudo() + fmt.Sprintf("sysctl -w fs.inotify.max_user_instances=%d fs.inotify.max_user_watches=%d",
			max(enoughInstances, f.InotifyInstances), max(524288, f.InotifyWatches))
	}
	return c
}

func (f Facts) checkMemory() Check {
	c := Check{Name: "memory", Status: StatusOK, Detail: fmt.Sprintf("%s of %s available", gigabytes(f.Available), gigabytes(f.Memory))}
	swap := f.sudo() + "sh -c 'fallocate -l 8G /swapfile && chmod 600 /swapfile && mkswap /swapfile && swapon /swapfile'"
	switch {
	case f.Available < leastMemory:
		c.Status, c.Cure = StatusFail, swap
		c.Detail += "; a lab needs " + gigabytes(leastMemory)
	case f.Available < enoughMemory:
		c.Status, c.Cure = StatusWarn, swap
		c.Detail += "; building a node image needs " + gigabytes(enoughMemory)
	}
	return c
}

func (f Facts) checkDisk() Check {
	c := Check{Name: "disk", Status: StatusOK}
	var details []string
	least := ^uint64(0)
	for _, d := range f.Disks {
		details = append(details, fmt.Sprintf("%s free at %s for %s", gigabytes(d.Free), d.Path, d.Use))
		least = min(least, d.Free)
	}
	if len(details) == 0 {
		c.Status, c.Detail, c.Cure = StatusWarn, "free space is not known", "df -h"
		return c
	}
	c.Detail = strings.Join(details, ", ")
	cure := fmt.Sprintf("export %s=DIRECTORY_ON_A_LARGER_DISK, or make room with: docker system prune", CacheEnv)
	switch {
	case least < KeptDisk:
		c.Status, c.Cure = StatusFail, cure
		c.Detail += "; a lab keeps " + gigabytes(KeptDisk)
	case least < ColdDisk:
		c.Status, c.Cure = StatusWarn, cure
		c.Detail += "; building a node image takes " + gigabytes(ColdDisk) + " for a while"
	}
	return c
}

func (f Facts) checkGo() Check {
	c := Check{Name: "go", Status: StatusOK, Detail: f.Go}
	if f.Go == "" {
		c.Status = StatusWarn
		c.Detail = "missing; needed to build node images and the lab itself"
		c.Cure = fmt.Sprintf("install Go 1.%d or newer: https://go.dev/doc/install", goMinor)
		return c
	}
	if minor, ok := goMinorVersion(f.Go); !ok || minor < goMinor {
		c.Status = StatusWarn
		c.Detail += " is old; Go fetches a newer one by itself where it can reach one"
		c.Cure = fmt.Sprintf("install Go 1.%d or newer: https://go.dev/doc/install", goMinor)
	}
	return c
}

// goMinorVersion returns 26 for "go1.26.8".
func goMinorVersion(version string) (int, bool) {
	rest, ok := strings.CutPrefix(version, "go1.")
	if !ok {
		return 0, false
	}
	end := strings.IndexFunc(rest, func(r rune) bool { return r < '0' || r > '9' })
	if end >= 0 {
		rest = rest[:end]
	}
	minor, err := strconv.Atoi(rest)
	return minor, err == nil
}

func (f Facts) checkPackages() Check {
	c := Check{Name: "packages", Status: StatusOK, Detail: "all there to build a node image"}
	switch {
	case !f.Release.debianLike():
		if f.Programs["debootstrap"] == "" || f.Programs["gcc"] == "" {
			c.Status = StatusWarn
			c.Detail = "debootstrap or gcc is missing; needed to build a node image where none can be pulled"
			c.Cure = "install debootstrap, gcc, pkg-config and libseccomp's headers"
		}
	case len(f.Packages) > 0:
		c.Status = StatusWarn
		c.Detail = "missing, to build a node image where none can be pulled: " + strings.Join(f.Packages, " ")
		c.Cure = f.sudo() + "apt-get install -y --no-install-recommends " + strings.Join(f.Packages, " ")
		if f.Root {
			c.Detail += "; the lab installs them when it needs them"
		}
	}
	return c
}

// sudo is what a command for root begins with.
func (f Facts) sudo() string { return sudo(f.Root) }

func sudo(root bool) string {
	if root {
		return ""
	}
	return "sudo "
}

// gigabytes formats bytes as disks and memory are sold.
func gigabytes(n uint64) string { return fmt.Sprintf("%.1f GB", float64(n)/1e9) }
