package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/dra-lab/dra-lab/lab/internal/ui"
	"github.com/dra-lab/dra-lab/lab/kubesource"
	"github.com/dra-lab/dra-lab/lab/nodeimage"
)

// kubeletChoice is a kubelet as the user names it: by a version, or by the
// directory with its source.
type kubeletChoice struct {
	name, base string
}

// kubeletFlags adds the flags that choose a kubelet.
func kubeletFlags(cmd *cobra.Command, k *kubeletChoice, usage string) {
	cmd.Flags().Var(checked{&k.name, checkKubelet}, "kubelet", usage)
	kubeletBaseFlag(cmd, &k.base)
}

func kubeletBaseFlag(cmd *cobra.Command, base *string) {
	versionFlag(cmd, base, "kubelet-base", "", "`version` that the checkout comes from, if neither git nor its name says so")
}

func checkKubelet(name string) error {
	if isPath(name) {
		return nil // looked at when the verb runs, because that takes a moment
	}
	_, err := nodeimage.ParseVersion(name)
	return ui.WithHint(err, "give a version, as in v1.36.3, or the directory of a Kubernetes checkout, as in ./kubernetes")
}

// isPath tells a directory from a version.
func isPath(name string) bool {
	if strings.ContainsRune(name, filepath.Separator) || name == "." || name == ".." {
		return true
	}
	info, err := os.Stat(name)
	return err == nil && info.IsDir()
}

// open returns the version of the chosen kubelet, "" if none was chosen, and its
// source if that is a checkout.
func (k kubeletChoice) open(ctx context.Context) (version string, checkout *kubesource.Checkout, err error) {
	if k.name != "" && isPath(k.name) {
		c, err := kubesource.Open(ctx, k.name, k.base)
		if err != nil {
			return "", nil, err
		}
		return c.Version(), &c, nil
	}
	if k.base != "" {
		return "", nil, ui.WithHint(ui.UsageError(errors.New("--kubelet-base is for a Kubernetes checkout, and --kubelet names none")),
			"name its directory: --kubelet ./kubernetes --kubelet-base %s", k.base)
	}
	if k.name == "" {
		return "", nil, nil
	}
	version, err = nodeimage.ParseVersion(k.name)
	return version, nil, err
}
