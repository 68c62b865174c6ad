package nodeimage

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"

	"github.com/dra-lab/dra-lab/lab/internal/ui"
)

// The user space of a node. Bookworm, because its systemd (252) is the last of
// Debian's that boots on hosts with cgroup v1, too.
const debianSuite = "bookworm"

// debianMirror returns the Debian mirror that this host's apt uses, so that the
// user's choice counts here too, or "" for debootstrap's default.
func debianMirror() string {
	files, _ := filepath.Glob("/etc/apt/sources.list.d/*") // the pattern is good
	uri := regexp.MustCompile(`https?://[^\s\]]+/debian/?(\s|$)`)
	for _, file := range append(files, "/etc/apt/sources.list") {
		data, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(data)) {
			if found := uri.FindString(line); found != "" && !strings.HasPrefix(line, "#") {
				return strings.TrimRight(strings.TrimSpace(found), "/")
			}
		}
	}
	return ""
}

// debianPackages is what a node needs beyond Debian's minimal base: the init
// system, the tools that kubelet, kube-proxy and kind's scripts call, and what
// a person wants when looking round in a node. Support for NFS, iSCSI and
// fuse-overlayfs, which kind's own images have, is left out.
func debianPackages() []string {
	return []string{
		"systemd", "systemd-sysv", "dbus",
		"conntrack", "iptables", "nftables", "ipset", "iproute2", "ethtool",
		"util-linux", "mount", "kmod", "e2fsprogs", "libseccomp2", "pigz",
		"bash", "ca-certificates", "curl", "jq", "procps", "socat", "hostname",
	}
}

// rootfsStep installs Debian into a directory.
func rootfsStep(debCache string) step {
	packages := debianPackages()
	return step{
		name:  "rootfs",
		title: "installing Debian " + debianSuite + " for the nodes",
		// Which mirror the packages come from decides nothing: all have the
		// same ones, signed.
		inputs: append([]string{debianSuite, "3"}, packages...),
		make: func(ctx context.Context, out string, progress *ui.Step) error {
			if err := debootstrap(ctx, out, debCache, packages, progress); err != nil {
				return err
			}
			if err := slim(out); err != nil {
				return fmt.Errorf("remove what a node does not need: %w", err)
			}
			if err := trimUnits(out); err != nil {
				return fmt.Errorf("switch off systemd units: %w", err)
			}
			return nil
		},
	}
}

// debootstrap installs the packages into root. Downloaded packages are kept in
// debCache, so that an interrupted installation does not fetch them again.
func debootstrap(ctx context.Context, root, debCache string, packages []string, progress *ui.Step) error {
	if err := os.MkdirAll(debCache, 0o755); err != nil {
		return err
	}
	// An interrupted installation starts over in an empty directory; until
	// then nothing is gained by flushing every single file to the disk.
	err := writeFile(filepath.Join(root, "etc/dpkg/dpkg.cfg.d/unsafe-io"), []byte("force-unsafe-io\n"), 0o644)
	if err != nil {
		return err
	}
	where := []string{debianSuite, root}
	if mirror := debianMirror(); mirror != "" {
		where = append(where, mirror)
	}
	// Directories get the modes of Debian, whatever umask the user has.
	cmd := exec.CommandContext(ctx, "sh", "-c", `umask 022 && exec debootstrap "$@"`, "debootstrap",
		"--variant=minbase", "--force-check-gpg", "--cache-dir="+debCache,
		"--include="+strings.Join(packages, ","))
	cmd.Args = append(cmd.Args, where...)
	cmd.Env = append(os.Environ(), "LC_ALL=C", "DEBIAN_FRONTEND=noninteractive")
	// debootstrap mounts /proc and /sys inside root. In a mount namespace of
	// its own those mounts go when it goes, however it ends, so that removing
	// a half-made root never walks into them.
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	// It reports on stdout.
	lines := &lineWriter{onLine: func(line string) {
		if what, ok := strings.CutPrefix(line, "I: "); ok {
			progress.Update(strings.TrimSuffix(strings.ToLower(what[:1])+what[1:], "..."))
		}
	}}
	cmd.Stdout = lines
	if _, err := run(ctx, cmd, nil); err != nil {
		if ctx.Err() != nil {
			return err
		}
		return classifyDebianError(err, lines.String())
	}
	return os.Remove(filepath.Join(root, "etc/dpkg/dpkg.cfg.d/unsafe-io"))
}

// classifyDebianError says more about a failed debootstrap; output is what it
// wrote last.
func classifyDebianError(err error, output string) error {
	var problem string
	for line := range strings.Lines(output) {
		if strings.HasPrefix(line, "E: ") || strings.HasPrefix(line, "W: ") {
			problem = strings.TrimSpace(line[3:])
		}
	}
	if containsAny(problem, "retrieve", "Couldn't download", "Failed getting release") {
		return noNetwork("Debian mirror", ui.WithDetail(errors.New(problem), "end of the output of debootstrap", output))
	}
	if problem != "" {
		err = fmt.Errorf("%w: %s", err, problem)
	}
	return ui.WithDetail(err, "end of the output of debootstrap", output)
}

// slim removes what a node never looks at.
func slim(root string) error {
	for _, pattern := range []string{
		"var/cache/apt/archives/*.deb", "var/cache/apt/*.bin", "var/lib/apt/lists/*", "var/cache/debconf/*-old",
		"var/log/*.log", "var/log/apt/*", "usr/share/doc/*/*", "usr/share/man/*", "usr/share/info/*",
		"usr/share/locale/*", "usr/share/lintian/*", "tmp/*", "var/tmp/*",
	} {
		matches, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			return err
		}
		for _, match := range matches {
			if filepath.Base(match) == "copyright" {
				continue // the licences stay with what they license
			}
			if err := os.RemoveAll(match); err != nil {
				return err
			}
		}
	}
	// debootstrap copies these from the host; the engine brings a node's own.
	for _, name := range []string{"etc/resolv.conf", "etc/hostname", "etc/machine-id"} {
		if err := os.WriteFile(filepath.Join(root, name), nil, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// trimUnits leaves systemd nothing to start but what a node in a container can
// run: no udev, no consoles, nothing that Debian enables on its own.
func trimUnits(root string) error {
	for _, pattern := range []string{
		"lib/systemd/system/sysinit.target.wants/systemd-tmpfiles-setup.service",
		"lib/systemd/system/multi-user.target.wants/*",
		"lib/systemd/system/local-fs.target.wants/*",
		"lib/systemd/system/basic.target.wants/*",
		"lib/systemd/system/sockets.target.wants/*udev*",
		"lib/systemd/system/sockets.target.wants/*initctl*",
		"etc/systemd/system/*.wants/*",
	} {
		matches, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			return err
		}
		for _, match := range matches {
			if err := os.Remove(match); err != nil {
				return err
			}
		}
	}
	// Kernel messages are the host's, not the node's.
	err := writeFile(filepath.Join(root, "etc/systemd/journald.conf.d/no-kernel.conf"),
		[]byte("[Journal]\nReadKMsg=no\n"), 0o644)
	if err != nil {
		return err
	}
	// What it registers counts for the whole kernel, so for the host.
	return os.Symlink("/dev/null", filepath.Join(root, "etc/systemd/system/systemd-binfmt.service"))
}
