package manifests

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

// labFile is what the lab notes about itself for its scenarios, which run on its
// own clusters only. Its name is not among those of YAML and Chart.
const labFile = "30-lab.yaml"

// The chart's name and version. The version changes with every change of the
// manifests that an upgrade has to know of.
const (
	chartName    = "dra-lab-driver"
	chartVersion = "0.1.0"
)

// controllerFiles are of use with the controller only.
func controllerFiles() []string {
	return []string{"21-fabric.yaml", "45-recovery.yaml", "50-controller.yaml"}
}

// foreign are the files for clusters that the lab did not make, in order; without
// the controller, if nobody says where its image is.
func foreign(values Values) ([]string, error) {
	names, err := list()
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(names, func(name string) bool {
		return name == labFile || values.ControllerImage == "" && slices.Contains(controllerFiles(), name)
	}), nil
}

// YAML is one document stream for `kubectl apply -f -`, for a cluster that the
// lab did not make. values.TrainerImage is not needed; without a ControllerImage
// the driver comes without its controller.
func YAML(values Values) (string, error) {
	names, err := foreign(values)
	if err != nil {
		return "", err
	}
	parts := make([]string, 0, len(names))
	for _, name := range names {
		text, err := values.fill(name)
		if err != nil {
			return "", err
		}
		parts = append(parts, text)
	}
	return strings.Join(parts, "---\n"), nil
}

// Chart gives the files of a Helm chart by their paths in it. Rendered with some
// values it is what YAML gives for the same. What values says becomes the
// chart's default; what it leaves out and has none has to be set by whoever
// installs. It has the controller if values has its image. The objects have the namespace that they have on the lab's clusters,
// which the chart makes: the release's own namespace only has Helm's record.
func Chart(values Values) (map[string]string, error) {
	names, err := foreign(values)
	if err != nil {
		return nil, err
	}
	chart := map[string]string{
		"Chart.yaml": fmt.Sprintf(`apiVersion: v2
name: %s
version: %s
description: The DRA lab's driver for GPUs on nodes, with device class, rights and policies
type: application
kubeVersion: ">=1.34.0-0"
`, chartName, chartVersion),
	}
	used := map[string]bool{}
	for _, name := range names {
		data, err := files.ReadFile(name)
		if err != nil {
			return nil, fmt.Errorf("read manifest %s: %w", name, err)
		}
		if strings.Contains(string(data), "{{") {
			return nil, fmt.Errorf("make a template of manifest %s: it has {{ in it", name)
		}
		text, err := expand(string(data), func(v variable) (string, error) {
			used[v.name] = true
			if v.standard == "" {
				return fmt.Sprintf(`{{ required "set %s: %s" .Values.%s }}`, v.key, v.help, v.key), nil
			}
			return "{{ .Values." + v.key + " }}", nil
		})
		if err != nil {
			return nil, fmt.Errorf("make a template of manifest %s: %w", name, err)
		}
		chart["templates/"+name] = text
	}
	if err := describe(chart, values, used); err != nil {
		return nil, err
	}
	return chart, nil
}

// describe adds the values, and the schema by which Helm refuses wrong ones.
func describe(chart map[string]string, values Values, used map[string]bool) error {
	var defaults strings.Builder
	properties := map[string]any{}
	for _, v := range variables() {
		if !used[v.name] {
			continue
		}
		value := *v.value(&values)
		if value != "" || v.standard != "" {
			var err error
			if value, err = values.of(v); err != nil {
				return fmt.Errorf("make values of the chart: %w", err)
			}
		}
		encoded, err := yaml.Marshal(map[string]string{v.key: value})
		if err != nil {
			return fmt.Errorf("make values of the chart: %w", err)
		}
		fmt.Fprintf(&defaults, "# %s\n%s", v.help, encoded)
		pattern := word
		if v.standard == "" {
			pattern = "^$|" + word // the template says it better
		}
		properties[v.key] = map[string]any{"type": "string", "description": v.help, "pattern": pattern}
	}
	schema, err := json.MarshalIndent(map[string]any{
		"$schema": "http://json-schema.org/draft-07/schema#", "type": "object",
		"properties": properties, "additionalProperties": false,
	}, "", "  ")
	if err != nil {
		return fmt.Errorf("make schema of the chart's values: %w", err)
	}
	chart["values.yaml"], chart["values.schema.json"] = defaults.String(), string(schema)+"\n"
	return nil
}
