package main

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/dra-lab/dra-lab/lab/install"
	"github.com/dra-lab/dra-lab/lab/internal/ui"
	"github.com/dra-lab/dra-lab/manifests"
)

func newManifests(l *lab) *cobra.Command {
	var values manifests.Values
	var selector, gpus, chart string
	cmd := &cobra.Command{
		Use:   "manifests",
		Short: "Print the driver's manifests, or write its Helm chart, for a cluster of your own",
		Long: `Prints what installs the driver on a cluster that the lab did not make, for "kubectl apply
-f -". With --chart it writes the same as a Helm chart for "helm install", whose defaults are
what the other flags say. "lab image save" makes the image, which has to be in a registry that the nodes
reach.`,
		Example: `  lab manifests --image registry.example/dra-lab/driver:1 | kubectl apply -f -
  lab manifests --image registry.example/dra-lab/driver:1 --chart ./dra-lab-driver`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			parsed, err := install.ParseGPUs(gpus)
			if err != nil {
				return err
			}
			values.GPUs = parsed.String()
			key, value, ok := strings.Cut(selector, "=")
			if !ok || key == "" || value == "" {
				return ui.UsageError(fmt.Errorf("parse node selector %q: want KEY=VALUE", selector))
			}
			values.NodeLabel, values.NodeLabelValue = key, value
			if !slices.Contains([]string{"Always", "IfNotPresent", "Never"}, values.PullPolicy) {
				return ui.UsageError(fmt.Errorf("unknown pull policy %q: want Always, IfNotPresent or Never", values.PullPolicy))
			}
			if cmd.Flags().Changed("chart") {
				return writeChart(chart, values)
			}
			if values.DriverImage == "" {
				return ui.UsageError(ui.WithHint(errors.New("lab manifests: --image is missing"),
					"\"lab image save\" makes it, the registry is yours"))
			}
			text, err := manifests.YAML(values)
			if err != nil {
				return ui.UsageError(err) // the files are right, so a value is wrong
			}
			_, err = fmt.Fprint(l.ui.Out(), text)
			return err
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&values.DriverImage, "image", "", "`reference` of the driver's image")
	flags.StringVar(&values.ControllerImage, "controller-image", "", "`reference` of the controller's image; empty: no controller")
	flags.StringVar(&values.PullPolicy, "pull-policy", "IfNotPresent", "`policy` for these images: Always, IfNotPresent or Never")
	flags.StringVar(&selector, "node-selector", "gpu.lab.example/gpus=simulated", "`label` KEY=VALUE of the nodes that get the driver")
	flags.StringVar(&gpus, "gpus", "auto", "`GPUs` of each node: simulated=PROFILE:COUNT, several with commas")
	flags.StringVar(&values.KubeletDir, "kubelet-dir", "/var/lib/kubelet", "root `directory` of the kubelets")
	flags.StringVar(&values.IgnoredXIDs, "ignored-xids", "default", "`numbers` of XIDs that are not the GPU's fault: the driver's -ignored-xids")
	flags.StringVar(&values.TaintEffects, "taint-effects", "default", "`effects` of taints by condition: the driver's -taint-effects")
	flags.StringVar(&chart, "chart", "", "write a Helm chart into this new `directory` instead")
	return cmd
}

// writeChart makes dir with the chart in it, whole or not at all.
func writeChart(dir string, values manifests.Values) (err error) {
	files, err := manifests.Chart(values)
	if err != nil {
		return ui.UsageError(err)
	}
	switch _, err := os.Lstat(dir); {
	case err == nil:
		return fmt.Errorf("write chart: %q exists", dir)
	case !errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("write chart: %w", err)
	}
	dir = filepath.Clean(dir)
	temporary, err := os.MkdirTemp(filepath.Dir(dir), "."+filepath.Base(dir)+"-")
	if err != nil {
		return fmt.Errorf("write chart: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(temporary))
		}
	}()
	for _, name := range slices.Sorted(maps.Keys(files)) {
		file := filepath.Join(temporary, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			return fmt.Errorf("write chart: %w", err)
		}
		if err := os.WriteFile(file, []byte(files[name]), 0o644); err != nil {
			return fmt.Errorf("write chart: %w", err)
		}
	}
	if err := errors.Join(os.Chmod(temporary, 0o755), os.Rename(temporary, dir)); err != nil {
		return fmt.Errorf("write chart: %w", err)
	}
	return nil
}
