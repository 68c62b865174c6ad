package nodeimage

import (
	"errors"
	"os"
	"os/exec"
	"runtime"

	"github.com/dra-lab/dra-lab/lab/internal/ui"
)

// checkHost says what stands in the way of a build and what no package cures.
func checkHost() error {
	if runtime.GOOS != "linux" || os.Geteuid() != 0 {
		err := errors.New("build a node image: needs root on Linux, to install Debian into a directory")
		return ui.WithHint(err, "run the lab as root, or on a machine that reaches an image registry")
	}
	if _, err := exec.LookPath("go"); err != nil {
		err := errors.New("build a node image: Go is not installed")
		return ui.WithHint(err, "install Go 1.26 or later from https://go.dev/dl, or use a machine that reaches an image registry")
	}
	return nil
}
