package nodeimage

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"runtime"

	"github.com/dra-lab/dra-lab/lab/host"
	"github.com/dra-lab/dra-lab/lab/internal/ui"
)

// readyToBuild makes sure that the host has what building a whole node takes.
func readyToBuild(ctx context.Context, u *ui.UI) error {
	if runtime.GOOS != "linux" || os.Geteuid() != 0 {
		err := errors.New("build a node image: needs root on Linux, to install Debian into a directory")
		return ui.WithHint(err, "run the lab as root, or on a machine that reaches an image registry")
	}
	// Where it is not Debian itself, Debian's signatures need Debian's keys.
	packages := append(host.BuildPackages(), "debian-archive-keyring")
	return host.EnsurePackages(ctx, u, "building node images", packages...)
}

// readyToCompile makes sure that the host has Go.
func readyToCompile() error {
	if _, err := exec.LookPath("go"); err != nil {
		err := errors.New("build a node image: Go is not installed")
		return ui.WithHint(err, "install Go 1.26 or later from https://go.dev/dl, or use a machine that reaches an image registry")
	}
	return nil
}
