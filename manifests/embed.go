// Package manifests has the Kubernetes objects that make up the lab on a
// cluster: namespace, rights, device classes, driver and controller.
// They are plain YAML in which a few ${VARIABLES} stand for what is only known
// when they are applied. [Objects] is what the lab applies; for clusters that the
// lab did not make, [YAML] and [Chart] make manifests and a Helm chart of the
// same files.
//
// It is a leaf: it reads nothing and talks to nobody.
package manifests

import (
	"cmp"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"regexp"
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

// Values is what the manifests leave open. The first four are required, the
// others have a default.
type Values struct {
	DriverImage     string // reference of the driver's image, on the nodes or in a registry
	ControllerImage string // reference of the controller's image, as above
	TrainerImage    string // reference of the training workload's image on the nodes
	GPUs            string // what nodes have that do not say themselves, such as "simulated=h100:4"

	PullPolicy string // of the driver's image; default IfNotPresent
	// NodeLabel and NodeLabelValue select the nodes with GPUs; default
	// gpu.lab.example/gpus and simulated.
	NodeLabel, NodeLabelValue string
	KubeletDir                string // the kubelet's --root-dir; default /var/lib/kubelet
	FabricDevices             string // number of simulated network-attached GPUs; default 4
	IgnoredXIDs               string // the driver's -ignored-xids; default "default"
	TaintEffects              string // the driver's -taint-effects; default "default"
}

// variable is one of Values in all of its forms.
type variable struct {
	name     string // in the manifests: ${NAME}
	key      string // in the values of the chart
	help     string // for who writes those
	standard string // empty: there is none, a value is required
	value    func(*Values) *string
}

func variables() []variable {
	return []variable{
		{"DRIVER_IMAGE", "driverImage", "reference of the driver's image in a registry that the nodes reach", "",
			func(v *Values) *string { return &v.DriverImage }},
		{"CONTROLLER_IMAGE", "controllerImage", "reference of the controller's image in a registry that the nodes reach", "",
			func(v *Values) *string { return &v.ControllerImage }},
		{"TRAINER_IMAGE", "trainerImage", "reference of the training workload's image", "",
			func(v *Values) *string { return &v.TrainerImage }},
		{"GPUS", "gpus", "simulated GPUs of a node that has no inventory of its own: simulated=PROFILE:COUNT", "",
			func(v *Values) *string { return &v.GPUs }},
		{"PULL_POLICY", "pullPolicy", "when the kubelet pulls the image: Always, IfNotPresent or Never", "IfNotPresent",
			func(v *Values) *string { return &v.PullPolicy }},
		{"NODE_LABEL", "nodeLabel", "label that the nodes with GPUs have", "gpu.lab.example/gpus",
			func(v *Values) *string { return &v.NodeLabel }},
		{"NODE_LABEL_VALUE", "nodeLabelValue", "value of that label", "simulated",
			func(v *Values) *string { return &v.NodeLabelValue }},
		{"KUBELET_DIR", "kubeletDir", "root directory of the kubelet (its flag --root-dir)", "/var/lib/kubelet",
			func(v *Values) *string { return &v.KubeletDir }},
		{"FABRIC_DEVICES", "fabricDevices", "number of simulated network-attached GPUs: 0 where the GPUs of nodes are real", "4",
			func(v *Values) *string { return &v.FabricDevices }},
		{"IGNORED_XIDS", "ignoredXIDs", "XIDs that are the program's fault, such as 13,31: none, or default for the vendor's list", "default",
			func(v *Values) *string { return &v.IgnoredXIDs }},
		{"TAINT_EFFECTS", "taintEffects", "effects of taints that are not to be the default, such as temperature=NoExecute,pcie-width=None", "default",
			func(v *Values) *string { return &v.TaintEffects }},
	}
}

// word is what a value may be: it becomes part of YAML as it is, and YAML has to
// read it as one word.
const word = `^[A-Za-z0-9/]([A-Za-z0-9._/:@=,+-]*[A-Za-z0-9])?$`

var wordPattern = regexp.MustCompile(word)

// Objects returns all objects with values filled in, in the order in which
// they have to be applied. An empty value, a variable that Values does not
// have and YAML that is not one are errors that name the file.
func Objects(values Values) ([]*unstructured.Unstructured, error) {
	names, err := list()
	if err != nil {
		return nil, err
	}
	var objects []*unstructured.Unstructured
	for _, name := range names {
		text, err := values.fill(name)
		if err != nil {
			return nil, err
		}
		found, err := decode(text)
		if err != nil {
			return nil, fmt.Errorf("read manifest %s: %w", name, err)
		}
		objects = append(objects, found...)
	}
	return objects, nil
}

// list gives the names of the files in order.
func list() ([]string, error) {
	names, err := fs.Glob(files, "*.yaml")
	if err != nil {
		return nil, fmt.Errorf("list manifests: %w", err)
	}
	slices.Sort(names)
	return names, nil
}

// fill gives the text of a file with values filled in.
func (v Values) fill(name string) (string, error) {
	data, err := files.ReadFile(name)
	if err != nil {
		return "", fmt.Errorf("read manifest %s: %w", name, err)
	}
	text, err := expand(string(data), v.of)
	if err != nil {
		return "", fmt.Errorf("read manifest %s: %w", name, err)
	}
	return text, nil
}

func decode(text string) ([]*unstructured.Unstructured, error) {
	var objects []*unstructured.Unstructured
	for document := range strings.SplitSeq(text, "\n---\n") {
		object := &unstructured.Unstructured{}
		if err := yaml.UnmarshalStrict([]byte(document), &object.Object); err != nil {
			return nil, fmt.Errorf("decode YAML: %w", err)
		}
		if object.GetKind() == "" || object.GetName() == "" {
			return nil, errors.New("decode YAML: an object has no kind or no name")
		}
		objects = append(objects, object)
	}
	return objects, nil
}

// expand puts something in the place of each variable.
func expand(text string, with func(variable) (string, error)) (string, error) {
	var errs []error
	all := variables()
	expanded := os.Expand(text, func(name string) string {
		i := slices.IndexFunc(all, func(v variable) bool { return v.name == name })
		if i < 0 {
			errs = append(errs, fmt.Errorf("unknown variable %q", name))
			return ""
		}
		value, err := with(all[i])
		if err != nil {
			errs = append(errs, err)
		}
		return value
	})
	return expanded, errors.Join(errs...)
}

// of is the value of a variable, or its default.
func (v Values) of(known variable) (string, error) {
	value := cmp.Or(*known.value(&v), known.standard)
	switch {
	case value == "":
		return "", fmt.Errorf("no value for variable %q", known.name)
	case !wordPattern.MatchString(value):
		return "", fmt.Errorf("variable %q has the value %q, want one word", known.name, value)
	}
	return value, nil
}
