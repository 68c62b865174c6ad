package cluster

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
	"sigs.k8s.io/kind/pkg/apis/config/v1alpha4"

	"github.com/dra-lab/dra-lab/lab/cluster/internal/nearest"
	"github.com/dra-lab/dra-lab/lab/internal/ui"
)

const (
	configKind       = "Cluster"
	configAPIVersion = "kind.x-k8s.io/v1alpha4"
	configDocs       = "https://kind.sigs.k8s.io/docs/user/configuration/"
)

// ParseConfig reads a kind config as a user writes it, such as kind-config.yaml.
// It takes what kind takes and is stricter: there must be exactly one document,
// and what it does not know it refuses, with the field's name, its line and, in
// the hint, the field that was probably meant. Fields that are not set stay so:
// Plan fills them in. ParseConfig is pure.
func ParseConfig(data []byte) (*v1alpha4.Cluster, error) {
	root, err := oneDocument(data)
	if err != nil {
		return nil, fmt.Errorf("parse kind config: %w", err)
	}
	if err := checkType(root); err != nil {
		return nil, fmt.Errorf("parse kind config: %w", err)
	}
	if err := checkFields(root, reflect.TypeFor[v1alpha4.Cluster](), ""); err != nil {
		return nil, fmt.Errorf("parse kind config: %w", err)
	}
	var config v1alpha4.Cluster
	if err := root.Decode(&config); err != nil {
		return nil, ui.WithHint(fmt.Errorf("parse kind config: %w", oneLineYAML(err)), "see %s", configDocs)
	}
	if err := checkValues(&config); err != nil {
		return nil, fmt.Errorf("parse kind config: %w", err)
	}
	return &config, nil
}

// oneDocument returns the mapping that is the only document of data.
func oneDocument(data []byte) (*yaml.Node, error) {
	start := fmt.Sprintf("start with:\nkind: %s\napiVersion: %s", configKind, configAPIVersion)
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	var doc, second yaml.Node
	switch err := decoder.Decode(&doc); {
	case errors.Is(err, io.EOF), err == nil && isEmpty(&doc):
		return nil, ui.WithHint(errors.New("it is empty"), "%s", start)
	case err != nil:
		return nil, ui.WithHint(oneLineYAML(err), "it must be YAML: see %s", configDocs)
	}
	switch err := decoder.Decode(&second); {
	case err == nil && !isEmpty(&second):
		return nil, ui.WithHint(
			fmt.Errorf("line %d: there is a second document", second.Content[0].Line),
			"keep one cluster in the file; a second one is made with another file and --name",
		)
	case err != nil && !errors.Is(err, io.EOF):
		return nil, ui.WithHint(oneLineYAML(err), "it must be YAML: see %s", configDocs)
	}
	root := doc.Content[0]
	if root.Kind != yaml.MappingNode {
		return nil, ui.WithHint(fmt.Errorf("line %d: it has no fields", root.Line), "%s", start)
	}
	return root, nil
}

func isEmpty(doc *yaml.Node) bool {
	return len(doc.Content) == 0 || doc.Content[0].Tag == "!!null"
}

// checkType refuses what is no v1alpha4 Cluster before its fields are looked at:
// another format's fields would all look like mistakes.
func checkType(root *yaml.Node) error {
	for _, want := range []struct{ field, value string }{{"apiVersion", configAPIVersion}, {"kind", configKind}} {
		hint := fmt.Sprintf("write %s: %s", want.field, want.value)
		got := field(root, want.field)
		if got == nil {
			return ui.WithHint(fmt.Errorf("%s is missing", want.field), "%s", hint)
		}
		if got.Value != want.value {
			return ui.WithHint(fmt.Errorf("line %d: %s is %q, not %q", got.Line, want.field, got.Value, want.value), "%s", hint)
		}
	}
	return nil
}

func field(mapping *yaml.Node, name string) *yaml.Node {
	for i := 0; i+1 < len(mapping.Content); i += 2 {
		if mapping.Content[i].Value == name {
			return mapping.Content[i+1]
		}
	}
	return nil
}

// checkFields walks a YAML value along the Go type that it is for, and refuses
// the first field that the type does not have. Values of the wrong kind it leaves
// to the decoder.
func checkFields(node *yaml.Node, t reflect.Type, path string) error {
	if node.Kind == yaml.AliasNode {
		node = node.Alias
	}
	switch {
	case t.Kind() == reflect.Pointer:
		return checkFields(node, t.Elem(), path)
	case t.Kind() == reflect.Slice && node.Kind == yaml.SequenceNode:
		for i, element := range node.Content {
			if err := checkFields(element, t.Elem(), fmt.Sprintf("%s[%d]", path, i)); err != nil {
				return err
			}
		}
	case t.Kind() == reflect.Struct && node.Kind == yaml.MappingNode:
		known := yamlFields(t)
		for i := 0; i+1 < len(node.Content); i += 2 {
			key := node.Content[i]
			at := strings.TrimPrefix(path+"."+key.Value, ".")
			if key.Tag == "!!merge" {
				if err := checkMerged(node.Content[i+1], t, path); err != nil {
					return err
				}
				continue
			}
			fieldType, ok := known[key.Value]
			if !ok {
				return unknownField(key, at, known)
			}
			if err := checkFields(node.Content[i+1], fieldType, at); err != nil {
				return err
			}
		}
	}
	return nil
}

// checkMerged is checkFields for what a mapping merges in ("<<"). What stands
// elsewhere and has a name (an alias) is checked there; it may even be around here.
func checkMerged(node *yaml.Node, t reflect.Type, path string) error {
	switch node.Kind {
	case yaml.MappingNode:
		return checkFields(node, t, path)
	case yaml.SequenceNode:
		for _, element := range node.Content {
			if err := checkMerged(element, t, path); err != nil {
				return err
			}
		}
	}
	return nil
}

func unknownField(key *yaml.Node, path string, known map[string]reflect.Type) error {
	names := make([]string, 0, len(known))
	for name := range known {
		names = append(names, name)
	}
	slices.Sort(names)
	err := fmt.Errorf("line %d: unknown field %q", key.Line, path)
	if near := nearest.Word(key.Value, names); near != "" {
		return ui.WithHint(err, "did you mean %q?", near)
	}
	return ui.WithHint(err, "fields here are %s", strings.Join(names, ", "))
}

// yamlFields returns a struct's fields by their names in YAML.
func yamlFields(t reflect.Type) map[string]reflect.Type {
	fields := make(map[string]reflect.Type)
	for f := range t.Fields() {
		name, options, _ := strings.Cut(f.Tag.Get("yaml"), ",")
		switch {
		case strings.Contains(options, "inline"):
			for inner, innerType := range yamlFields(f.Type) {
				fields[inner] = innerType
			}
		case name != "" && name != "-":
			fields[name] = f.Type
		}
	}
	return fields
}

// checkValues refuses values that kind would refuse only after the engine was
// asked many things, or that would fail in a node.
func checkValues(config *v1alpha4.Cluster) error {
	n := config.Networking
	if err := oneOf("networking.ipFamily", n.IPFamily, v1alpha4.IPv4Family, v1alpha4.IPv6Family, v1alpha4.DualStackFamily); err != nil {
		return err
	}
	if err := oneOf("networking.kubeProxyMode", n.KubeProxyMode,
		v1alpha4.IPTablesProxyMode, v1alpha4.IPVSProxyMode, v1alpha4.NFTablesProxyMode, "none"); err != nil {
		return err
	}
	controlPlanes := 0
	for i, node := range config.Nodes {
		if err := oneOf(fmt.Sprintf("nodes[%d].role", i), node.Role, v1alpha4.ControlPlaneRole, v1alpha4.WorkerRole); err != nil {
			return err
		}
		if node.Role != v1alpha4.WorkerRole {
			controlPlanes++
		}
	}
	if len(config.Nodes) > 0 && controlPlanes == 0 {
		return ui.WithHint(errors.New("no node has the role control-plane"), "add:\nnodes:\n- role: control-plane")
	}
	return nil
}

// oneOf refuses a value that is neither unset nor one of the allowed ones.
func oneOf[T ~string](path string, value T, allowed ...T) error {
	if value == "" || slices.Contains(allowed, value) {
		return nil
	}
	names := make([]string, len(allowed))
	for i, a := range allowed {
		names[i] = string(a)
	}
	err := fmt.Errorf("%s is %q", path, value)
	if near := nearest.Word(string(value), names); near != "" {
		return ui.WithHint(err, "did you mean %q?", near)
	}
	return ui.WithHint(err, "it can be %s", strings.Join(names, ", "))
}

// oneLineYAML takes the library's name and the line breaks out of its errors.
func oneLineYAML(err error) error {
	var typeError *yaml.TypeError
	if errors.As(err, &typeError) {
		return errors.New(strings.Join(typeError.Errors, "; "))
	}
	return errors.New(strings.TrimPrefix(err.Error(), "yaml: "))
}
