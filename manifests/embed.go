// Package manifests has the Kubernetes objects that make up the lab on a
// cluster: namespace, rights, device classes, driver and controller.
// They are plain YAML in which a few ${VARIABLES} stand for what is only known
// when they are applied; `envsubst < manifests/40-driver.yaml | kubectl apply
// -f -` works as well as the lab does.
//
// It is a leaf: it reads nothing and talks to nobody.
package manifests

import (
	"bytes"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

// files has the files as they are in the repository. Their names sort in the
// order in which they have to be applied.
//
//go:embed *.yaml
var files embed.FS

// Values is what the manifests leave open. All fields are required.
type Values struct {
	DriverImage     string // reference of the driver's image on the nodes
	ControllerImage string // reference of the controller's image on the nodes
	TrainerImage    string // reference of the training workload's image on the nodes
	GPUs            string // what the nodes have, such as "simulated=h100:4"
}

// Objects returns all objects with values filled in, in the order in which
// they have to be applied. An empty value, a variable that Values does not
// have and YAML that is not one are errors that name the file.
func Objects(values Values) ([]*unstructured.Unstructured, error) {
	names, err := fs.Glob(files, "*.yaml")
	if err != nil {
		return nil, fmt.Errorf("list manifests: %w", err)
	}
	slices.Sort(names)
	var objects []*unstructured.Unstructured
	for _, name := range names {
		data, err := files.ReadFile(name)
		if err != nil {
			return nil, fmt.Errorf("read manifest %s: %w", name, err)
		}
		found, err := decode(data, values)
		if err != nil {
			return nil, fmt.Errorf("read manifest %s: %w", name, err)
		}
		objects = append(objects, found...)
	}
	return objects, nil
}

func decode(data []byte, values Values) ([]*unstructured.Unstructured, error) {
	var objects []*unstructured.Unstructured
	for document := range bytes.SplitSeq(data, []byte("\n---\n")) {
		text, err := values.expand(string(document))
		if err != nil {
			return nil, err
		}
		object := &unstructured.Unstructured{}
		if err := yaml.UnmarshalStrict([]byte(text), &object.Object); err != nil {
			return nil, fmt.Errorf("decode YAML: %w", err)
		}
		if object.GetKind() == "" || object.GetName() == "" {
			return nil, errors.New("decode YAML: an object has no kind or no name")
		}
		objects = append(objects, object)
	}
	return objects, nil
}

// expand fills in the variables. Values become part of YAML as they are, so
// they must not have anything that YAML would read as more than a word.
func (v Values) expand(text string) (string, error) {
	var errs []error
	known := map[string]string{
		"DRIVER_IMAGE":     v.DriverImage,
		"CONTROLLER_IMAGE": v.ControllerImage,
		"TRAINER_IMAGE":    v.TrainerImage,
		"GPUS":             v.GPUs,
	}
	expanded := os.Expand(text, func(name string) string {
		value, ok := known[name]
		switch {
		case !ok:
			errs = append(errs, fmt.Errorf("unknown variable %q", name))
		case value == "":
			errs = append(errs, fmt.Errorf("no value for variable %q", name))
		case strings.ContainsAny(value, " \t\n\"'#{}[]"):
			errs = append(errs, fmt.Errorf("variable %q has the value %q, want one word", name, value))
		}
		return value
	})
	return expanded, errors.Join(errs...)
}
