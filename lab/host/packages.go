package host

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/dra-lab/dra-lab/lab/internal/ui"
)

// EnginePackages returns the Debian packages that a private engine needs.
func EnginePackages() []string {
	return []string{"docker.io", "containerd", "runc", "iptables"}
}

// BuildPackages returns the Debian packages that building a node image from
// source needs besides Go.
func BuildPackages() []string {
	return []string{"debootstrap", "gcc", "libc6-dev", "libseccomp-dev", "pkg-config", "xz-utils", "ca-certificates"}
}

// EnsurePackages installs those of the Debian packages that are missing and
// says so; purpose completes "packages for ...". With all of them there, it
// takes some milliseconds. Without root or on another system than Debian and
// its children it changes nothing and fails, with the command to run as hint.
//
// Services of the packages are not started: the lab wants the programs, and an
// engine that came up by surprise would change the host's network.
func EnsurePackages(ctx context.Context, u *ui.UI, purpose string, names ...string) error {
	system := readOSRelease("/etc/os-release")
	if !system.debianLike() {
		return ui.WithHint(fmt.Errorf("install packages for %s: %s is neither Debian nor Ubuntu", purpose, system.Name),
			"install what these Debian packages have: %s", strings.Join(names, " "))
	}
	missing, err := missingPackages(ctx, names)
	if err != nil || len(missing) == 0 {
		return err
	}
	command := "apt-get install -y --no-install-recommends " + strings.Join(missing, " ")
	if os.Geteuid() != 0 {
		return ui.WithHint(fmt.Errorf("install packages for %s: not root, and missing: %s", purpose, strings.Join(missing, " ")),
			"sudo %s", command)
	}
	step := u.Step("installing packages for %s: %s", purpose, strings.Join(missing, " "))
	err = installPackages(ctx, step, policyFile, missing)
	step.Done(err)
	if err != nil && ui.Hint(err) == "" {
		err = ui.WithHint(err, "see what this says: apt-get update && %s", command)
	}
	return err
}

// missingPackages returns the names that dpkg does not have installed.
func missingPackages(ctx context.Context, names []string) ([]string, error) {
	// It fails when it knows one of them not at all, and still lists the rest.
	text, err := exec.CommandContext(ctx, "dpkg-query", append([]string{"--show", "--showformat=${Package} ${db:Status-Status}\n"}, names...)...).Output()
	var status *exec.ExitError
	if err != nil && !errors.As(err, &status) {
		return nil, fmt.Errorf("list packages: %w", err)
	}
	var missing []string
	for _, name := range names {
		if !strings.Contains("\n"+string(text), "\n"+name+" installed\n") {
			missing = append(missing, name)
		}
	}
	return missing, nil
}

// installPackages runs apt-get, and mends the two things that commonly stop it:
// lists of packages that are missing or old, and an installation that was cut
// off.
func installPackages(ctx context.Context, step *ui.Step, policy string, names []string) error {
	remove, err := holdServices(policy)
	if err != nil {
		return err
	}
	defer remove()
	install := append([]string{"install", "-y", "--no-install-recommends"}, names...)
	said, err := apt(ctx, step, install...)
	if err != nil && strings.Contains(said, "dpkg --configure -a") {
		step.Update("finishing an installation that was cut off")
		if said, err = runApt(ctx, step, "dpkg", "--configure", "-a"); err == nil {
			said, err = apt(ctx, step, install...)
		}
	}
	if err != nil && listsAreOld(said) {
		if said, err = apt(ctx, step, "update"); err == nil {
			said, err = apt(ctx, step, install...)
		}
	}
	if err != nil {
		return ui.WithDetail(fmt.Errorf("install packages %s: %w", strings.Join(names, " "), err), "what apt-get said", said)
	}
	return nil
}

// listsAreOld reports whether apt-get failed for lack of an "apt-get update".
func listsAreOld(said string) bool {
	for _, sign := range []string{"Unable to locate package", "has no installation candidate", "404  Not Found", "Unable to fetch some archives", "Failed to fetch"} {
		if strings.Contains(said, sign) {
			return true
		}
	}
	return false
}

func apt(ctx context.Context, step *ui.Step, args ...string) (string, error) {
	options := []string{"-o", "Dpkg::Use-Pty=0", "-o", "DPkg::Lock::Timeout=300", "-o", "Acquire::Retries=2"}
	return runApt(ctx, step, "apt-get", append(options, args...)...)
}

// runApt runs a package program and returns what it said, at most the last
// 64 KiB.
func runApt(ctx context.Context, step *ui.Step, program string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive", "LC_ALL=C", "NEEDRESTART_MODE=l", "PATH="+os.Getenv("PATH")+":"+systemPath)
	said := &progressWriter{step: step}
	cmd.Stdout, cmd.Stderr = said, said
	// Ctrl-C on the terminal must not reach dpkg in the middle of a package:
	// apt-get is asked to end and gets the time for it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGINT) }
	cmd.WaitDelay = 2 * time.Minute
	err := cmd.Run()
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	if err != nil {
		err = fmt.Errorf("run %s: %w", program, err)
	}
	return said.text.String(), err
}

// progressWriter shows the last line written to it as a step's detail.
type progressWriter struct {
	step *ui.Step
	text bytes.Buffer
}

func (w *progressWriter) Write(p []byte) (int, error) {
	if over := w.text.Len() + len(p) - 64<<10; over > 0 {
		w.text.Next(min(over, w.text.Len()))
	}
	w.text.Write(p)
	lines := strings.Split(strings.TrimSpace(string(p)), "\n")
	w.step.Update(lines[len(lines)-1])
	return len(p), nil
}

// policyFile is what Debian's package scripts ask before they start a service.
const policyFile = "/usr/sbin/policy-rc.d"

// policyMark tells our policy file from an administrator's.
const policyMark = "# dra-lab: holds services back while it installs packages"

// holdServices keeps package scripts from starting services until remove is
// called. An administrator's own policy is left as it is. The one put there
// holds only while this process lives, so a killed lab leaves no mark on later
// installations.
func holdServices(path string) (remove func(), err error) {
	if old, err := os.ReadFile(path); err == nil && !bytes.Contains(old, []byte(policyMark)) {
		return func() {}, nil
	}
	script := fmt.Sprintf("#!/bin/sh\n%s\nkill -0 %d 2>/dev/null && exit 101\nexit 0\n", policyMark, os.Getpid())
	if err := writeFile(path, []byte(script), 0o755); err != nil {
		return nil, fmt.Errorf("hold services back: %w", err)
	}
	return func() { _ = os.Remove(path) }, nil
}
