package nodeimage

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/dra-lab/dra-lab/lab/internal/ui"
)

// buildPackages are the Debian packages that a build needs on the host.
func buildPackages() map[string]func(context.Context) bool {
	return map[string]func(context.Context) bool{
		"debootstrap": hasProgram("debootstrap"),
		"gcc":         hasProgram("gcc"),
		"libc6-dev":   hasFile("/usr/include/stdlib.h"),
		"pkg-config":  hasProgram("pkg-config"),
		"libseccomp-dev": func(ctx context.Context) bool {
			return exec.CommandContext(ctx, "pkg-config", "--exists", "libseccomp").Run() == nil
		},
	}
}

func hasProgram(name string) func(context.Context) bool {
	return func(context.Context) bool {
		_, err := exec.LookPath(name)
		return err == nil
	}
}

func hasFile(path string) func(context.Context) bool {
	return func(context.Context) bool {
		_, err := os.Stat(path)
		return err == nil
	}
}

// MissingPackages returns the Debian packages that Build needs and the host
// lacks, sorted. A host without any of them missing can build.
func MissingPackages(ctx context.Context) []string {
	var missing []string
	for name, there := range buildPackages() {
		if !there(ctx) {
			missing = append(missing, name)
		}
	}
	slices.Sort(missing)
	return missing
}

// checkHost says what stands in the way of a build before it starts.
func checkHost(ctx context.Context) error {
	if runtime.GOOS != "linux" || os.Geteuid() != 0 {
		err := errors.New("build a node image: needs root on Linux, to install Debian into a directory")
		return ui.WithHint(err, "run the lab as root, or on a machine that reaches an image registry")
	}
	if _, err := exec.LookPath("go"); err != nil {
		err := errors.New("build a node image: Go is not installed")
		return ui.WithHint(err, "install Go 1.26 or later from https://go.dev/dl, or pull an image on a machine with a registry")
	}
	if missing := MissingPackages(ctx); len(missing) > 0 {
		err := fmt.Errorf("build a node image: missing on this host: %s", strings.Join(missing, ", "))
		return ui.WithHint(err, "apt-get install -y --no-install-recommends %s", strings.Join(missing, " "))
	}
	return nil
}

// freeBytes returns how much an unprivileged user may still write to the file
// system that holds dir.
func freeBytes(dir string) (uint64, error) {
	var stat unix.Statfs_t
	if err := unix.Statfs(dir, &stat); err != nil {
		return 0, fmt.Errorf("measure free space of %q: %w", dir, err)
	}
	return stat.Bavail * uint64(stat.Bsize), nil
}
