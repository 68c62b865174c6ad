// Package chart has Helm render the chart that package manifests makes. It is a
// module of its own so that nothing but this test depends on Helm.
package chart

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	"helm.sh/helm/v4/pkg/chart/loader/archive"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/engine"

	"github.com/dra-lab/dra-lab/manifests"
)

// render is `helm template` with the values of --set.
func render(t *testing.T, defaults manifests.Values, set map[string]any) (string, error) {
	t.Helper()
	files, err := manifests.Chart(defaults)
	if err != nil {
		t.Fatal(err)
	}
	var buffered []*archive.BufferedFile
	for name, text := range files {
		buffered = append(buffered, &archive.BufferedFile{Name: name, Data: []byte(text)})
	}
	chart, err := loader.LoadFiles(buffered)
	if err != nil {
		t.Fatal(err)
	}
	if err := chart.Validate(); err != nil {
		t.Fatal(err)
	}
	values, err := util.ToRenderValues(chart, set, common.ReleaseOptions{Name: "gpus", Namespace: "elsewhere", IsInstall: true}, common.DefaultCapabilities)
	if err != nil {
		return "", err
	}
	rendered, err := engine.Render(chart, values)
	if err != nil {
		return "", err
	}
	var names []string
	for name := range rendered {
		names = append(names, name)
	}
	slices.SortFunc(names, func(a, b string) int { return strings.Compare(filepath.Base(a), filepath.Base(b)) })
	var parts []string
	for _, name := range names {
		parts = append(parts, rendered[name])
	}
	return strings.Join(parts, "---\n"), nil
}

// The chart and the plain manifests have one source, and the same content for
// the same values, down to the comments.
func TestChartRendersToThePlainManifests(t *testing.T) {
	for name, c := range map[string]struct {
		defaults manifests.Values
		set      map[string]any
		same     manifests.Values
	}{
		"only what is required": {
			set:  map[string]any{"driverImage": "registry.example/driver:1", "gpus": "simulated=h100:4"},
			same: manifests.Values{DriverImage: "registry.example/driver:1", GPUs: "simulated=h100:4"},
		},
		"everything": {
			set: map[string]any{
				"driverImage": "registry.example:5000/driver@sha256:0123", "controllerImage": "registry.example/controller:1", "gpus": "simulated=h100:3,t4:1:shared", "pullPolicy": "Always",
				"nodeLabel": "kubernetes.io/os", "nodeLabelValue": "linux", "kubeletDir": "/var/lib/k0s/kubelet",
				"ignoredXIDs": "13,31", "taintEffects": "temperature=NoExecute,pcie-width=None",
			},
			defaults: manifests.Values{ControllerImage: "registry.example/controller:0"},
			same: manifests.Values{
				DriverImage: "registry.example:5000/driver@sha256:0123", ControllerImage: "registry.example/controller:1", GPUs: "simulated=h100:3,t4:1:shared", PullPolicy: "Always",
				NodeLabel: "kubernetes.io/os", NodeLabelValue: "linux", KubeletDir: "/var/lib/k0s/kubelet",
				IgnoredXIDs: "13,31", TaintEffects: "temperature=NoExecute,pcie-width=None",
			},
		},
		"defaults of who made the chart": {
			defaults: manifests.Values{DriverImage: "registry.example/driver:1", GPUs: "simulated=t4", NodeLabelValue: "true"},
			same:     manifests.Values{DriverImage: "registry.example/driver:1", GPUs: "simulated=t4", NodeLabelValue: "true"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := render(t, c.defaults, c.set)
			if err != nil {
				t.Fatal(err)
			}
			want, err := manifests.YAML(c.same)
			if err != nil {
				t.Fatal(err)
			}
			if got != want {
				t.Errorf("the chart renders to\n%s\nwant\n%s", got, want)
			}
		})
	}
}

func TestChartRefusesWrongValues(t *testing.T) {
	good := manifests.Values{DriverImage: "registry.example/driver:1", GPUs: "simulated=t4"}
	for name, c := range map[string]struct {
		defaults manifests.Values
		set      map[string]any
		want     string
	}{
		"no image":         {manifests.Values{GPUs: "simulated=t4"}, nil, "set driverImage"},
		"misspelt":         {good, map[string]any{"pullpolicy": "Always"}, "pullpolicy"},
		"more than a word": {good, map[string]any{"kubeletDir": "/a\nhostPID: true"}, "kubeletDir"},
		"another type":     {good, map[string]any{"nodeLabelValue": true}, "nodeLabelValue"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := render(t, c.defaults, c.set); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want one with %q", err, c.want)
			}
		})
	}
}
