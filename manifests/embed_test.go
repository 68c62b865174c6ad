package manifests_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/dra-lab/dra-lab/manifests"
)

func values() manifests.Values {
	return manifests.Values{
		DriverImage:     "docker.io/dra-lab/driver:0123",
		ControllerImage: "docker.io/dra-lab/controller:89ab",
		TrainerImage:    "docker.io/dra-lab/trainer:4567",
		GPUs:            "simulated=h100:4",
	}
}

func objects(t *testing.T) []*unstructured.Unstructured {
	t.Helper()
	found, err := manifests.Objects(values())
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func TestEveryObjectIsValid(t *testing.T) {
	// The API server would drop or refuse a misspelt field only once the lab
	// runs; the strict decoder finds it here.
	decoder := serializer.NewCodecFactory(scheme.Scheme, serializer.EnableStrict).UniversalDeserializer()
	for _, object := range objects(t) {
		if object.GetKind() == "CustomResourceDefinition" {
			continue // lab/install compares it with the types that it is for
		}
		data, err := json.Marshal(object)
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := decoder.Decode(data, nil, nil); err != nil {
			t.Errorf("%s %s: %v", object.GetKind(), object.GetName(), err)
		}
	}
}

func TestNamespaceComesFirstAndProgramsAfterWhatTheyUse(t *testing.T) {
	var kinds []string
	for _, object := range objects(t) {
		kinds = append(kinds, object.GetKind())
	}
	defined, driver := slices.Index(kinds, "CustomResourceDefinition"), slices.Index(kinds, "DaemonSet")
	if kinds[0] != "Namespace" || defined > driver || kinds[len(kinds)-1] != "Deployment" {
		t.Errorf("order %v, want the namespace first, the driver after what it uses, and the controller last", kinds)
	}
}

func TestValuesAreFilledIn(t *testing.T) {
	all := objects(t)
	i := slices.IndexFunc(all, func(o *unstructured.Unstructured) bool { return o.GetKind() == "DaemonSet" })
	data, err := json.Marshal(all[i])
	if err != nil {
		t.Fatal(err)
	}
	var driver appsv1.DaemonSet
	if err := json.Unmarshal(data, &driver); err != nil {
		t.Fatal(err)
	}
	if got, want := driver.Spec.Template.Spec.Containers[0].Image, values().DriverImage; got != want {
		t.Errorf("driver image %q, want %q", got, want)
	}
	if got, want := driver.Spec.Template.Annotations["gpu.lab.example/gpus"], values().GPUs; got != want {
		t.Errorf("annotation %q, want %q", got, want)
	}
}

func TestIncompleteValuesAreRefused(t *testing.T) {
	cases := map[string]struct {
		change func(*manifests.Values)
		want   string
	}{
		"missing":             {func(v *manifests.Values) { v.TrainerImage = "" }, `no value for variable "TRAINER_IMAGE"`},
		"more than one word":  {func(v *manifests.Values) { v.GPUs = "a: b" }, `variable "GPUS" has the value "a: b"`},
		"another YAML object": {func(v *manifests.Values) { v.DriverImage = "a\n---\n" }, `variable "DRIVER_IMAGE"`},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			v := values()
			c.change(&v)
			_, err := manifests.Objects(v)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want one with %q", err, c.want)
			}
		})
	}
}
