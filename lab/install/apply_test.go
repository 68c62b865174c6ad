package install

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/dra-lab/dra-lab/driver/api"
	"github.com/dra-lab/dra-lab/manifests"
)

func testObjects(t *testing.T) []*unstructured.Unstructured {
	t.Helper()
	objects, err := manifests.Objects(manifests.Values{DriverImage: "driver", ControllerImage: "controller", TrainerImage: "trainer", GPUs: GPUs{}.String()})
	if err != nil {
		t.Fatal(err)
	}
	return objects
}

func TestEveryKindOfTheManifestsIsKnown(t *testing.T) {
	for _, o := range testObjects(t) {
		_, namespaced, err := resourceOf(o.GroupVersionKind())
		if err != nil {
			t.Error(err)
		}
		if namespaced != (o.GetNamespace() != "") {
			t.Errorf("%s %q: namespace %q, but the kind is namespaced: %t", o.GetKind(), o.GetName(), o.GetNamespace(), namespaced)
		}
	}
	if _, _, err := resourceOf(schema.GroupVersionKind{Version: "v1", Kind: "Secret"}); err == nil {
		t.Error("a kind that no manifest has is known, want an error")
	}
}

func TestManifestsUseTheNamesOfTheAPI(t *testing.T) {
	// The manifests are plain YAML, so nothing but this keeps them in step
	// with the names that driver and lab use.
	text, err := json.Marshal(testObjects(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`"kind":"DeviceClass","metadata":{"labels":{"app.kubernetes.io/part-of":"dra-lab"},"name":"` + api.DeviceClassName + `"}`,
		`"name":"` + api.MIGDeviceClassName + `"}`,
		`"device.driver == \"` + api.DriverName + `\" \u0026\u0026 device.attributes[\"` + api.DriverName + `\"].` + api.AttributeType + ` == \"` + api.TypeGPU + `\""`,
		`"device.driver == \"` + api.DriverName + `\" \u0026\u0026 device.attributes[\"` + api.DriverName + `\"].` + api.AttributeType + ` == \"` + api.TypeMIG + `\""`,
		`"namespace":"` + api.Namespace + `"`,
		`"app.kubernetes.io/name":"` + api.AppLabel + `"`,
		`"name":"` + api.DaemonSetName + `"`,
		`"path":"` + api.PathReady + `"`,
		`"path":"` + api.PathLive + `"`,
		`"mountPath":"` + api.PluginDir + `"`,
		`"mountPath":"` + api.RegistrarDir + `"`,
		`"mountPath":"` + api.CDIDir + `"`,
		`"mountPath":"` + api.HardwareDir + `"`,
		`"` + gpuLabel + `":"simulated"`,
		`"device.driver == \"` + api.FabricDriverName + `\""`,
		`"name":"` + api.FabricDeviceClassName + `"`,
		`"app.kubernetes.io/name":"` + api.ControllerName + `"`,
	} {
		if !strings.Contains(string(text), want) {
			t.Errorf("manifests lack %s", want)
		}
	}
}

func TestApplyKeepsTheOrderAndOwnsItsFields(t *testing.T) {
	// Given an API server that gives the DaemonSet generation 7,
	client := dynamicfake.NewSimpleDynamicClient(runtime.NewScheme())
	var got []string
	// The server takes a moment to serve what is defined.
	var defined *unstructured.Unstructured
	asked := 0
	client.PrependReactor("get", "customresourcedefinitions", func(clienttesting.Action) (bool, runtime.Object, error) {
		asked++
		if asked == 2 {
			condition := map[string]any{"type": "Established", "status": "True"}
			if err := unstructured.SetNestedSlice(defined.Object, []any{condition}, "status", "conditions"); err != nil {
				t.Fatal(err)
			}
		}
		got = append(got, "served?")
		return true, defined, nil
	})
	client.PrependReactor("patch", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
		patch, ok := action.(clienttesting.PatchActionImpl)
		if !ok {
			t.Fatalf("unexpected action %T", action)
		}
		if o := patch.PatchOptions; o.FieldManager != fieldManager || o.Force == nil || !*o.Force {
			t.Errorf("patch options %+v, want manager %s by force", o, fieldManager)
		}
		got = append(got, patch.GetResource().Resource+"/"+patch.Name)
		object := &unstructured.Unstructured{}
		if err := json.Unmarshal(patch.Patch, &object.Object); err != nil {
			t.Fatal(err)
		}
		switch patch.GetResource().Resource {
		case "daemonsets":
			object.SetGeneration(7)
		case "deployments":
			object.SetGeneration(5)
		case "customresourcedefinitions":
			defined = object.DeepCopy()
		}
		return true, object, nil
	})

	// when the objects for two nodes are applied,
	directory := artifacts(t)
	built, err := build(directory)
	if err != nil {
		t.Fatal(err)
	}
	objects, err := installer{}.objects(built, []string{"one", "two"})
	if err != nil {
		t.Fatal(err)
	}
	result, err := clients{dynamic: client}.apply(t.Context(), objects)
	if err != nil {
		t.Fatal(err)
	}

	// then labels come first and programs last, once what they use is served, and
	// their generations are known.
	want := []string{
		"nodes/one", "nodes/two", "namespaces/dra-lab", "serviceaccounts/dra-lab-driver",
		"clusterroles/dra-lab-driver", "clusterrolebindings/dra-lab-driver",
		"validatingadmissionpolicies/resourceslices.gpu.lab.example",
		"validatingadmissionpolicybindings/resourceslices.gpu.lab.example",
		"customresourcedefinitions/deviceoperations.gpu.lab.example",
		"clusterroles/dra-lab-driver-operations", "clusterrolebindings/dra-lab-driver-operations",
		"validatingadmissionpolicies/deviceoperations.gpu.lab.example",
		"validatingadmissionpolicybindings/deviceoperations.gpu.lab.example",
		"deviceclasses/gpu.lab.example", "deviceclasses/mig.gpu.lab.example", "deviceclasses/fabric.gpu.lab.example",
		"validatingadmissionpolicies/config.gpu.lab.example",
		"validatingadmissionpolicybindings/config.gpu.lab.example",
		"configmaps/lab", "served?", "served?", "daemonsets/driver",
		"configmaps/recovery",
		"serviceaccounts/dra-lab-controller", "clusterroles/dra-lab-controller", "clusterrolebindings/dra-lab-controller",
		"roles/dra-lab-controller", "rolebindings/dra-lab-controller",
		"validatingadmissionpolicies/fabric.gpu.lab.example",
		"validatingadmissionpolicybindings/fabric.gpu.lab.example",
		"deployments/controller",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("applied (-want +got):\n%s", diff)
	}
	if want := (applied{driverGeneration: 7, controllerGeneration: 5}); result != want {
		t.Errorf("generations %+v, want %+v", result, want)
	}
}

func TestGPUsGoToWorkersOrToTheOnlyNode(t *testing.T) {
	labelled := metav1.ObjectMeta{Name: "control", Labels: map[string]string{"node-role.kubernetes.io/control-plane": ""}}
	control := corev1.Node{ObjectMeta: labelled, Spec: corev1.NodeSpec{Taints: []corev1.Taint{
		{Key: "node-role.kubernetes.io/control-plane", Effect: corev1.TaintEffectNoSchedule},
	}}}
	open := corev1.Node{ObjectMeta: labelled}
	// A node that comes up has taints that go by themselves.
	one := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "one"}, Spec: corev1.NodeSpec{Taints: []corev1.Taint{
		{Key: corev1.TaintNodeNotReady, Effect: corev1.TaintEffectNoSchedule},
	}}}
	two := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "two"}}
	for name, c := range map[string]struct {
		nodes []corev1.Node
		want  roles
	}{
		"workers":                     {[]corev1.Node{two, control, one}, roles{gpus: []string{"one", "two"}, pods: []string{"one", "two"}}},
		"control plane that helps":    {[]corev1.Node{two, open, one}, roles{gpus: []string{"one", "two"}, pods: []string{"control", "one", "two"}}},
		"nothing but a control plane": {[]corev1.Node{open}, roles{gpus: []string{"control"}, pods: []string{"control"}}},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(c.want, rolesOf(c.nodes), cmp.AllowUnexported(roles{})); diff != "" {
				t.Errorf("roles (-want +got):\n%s", diff)
			}
		})
	}
}

func TestImagesAreApart(t *testing.T) {
	built, err := build(artifacts(t))
	if err != nil {
		t.Fatal(err)
	}
	for i, prefix := range []string{driverRepository + ":", controllerRepository + ":", trainerRepository + ":"} {
		if ref := built.list()[i].Ref(); !strings.HasPrefix(ref, prefix) {
			t.Errorf("reference %q, want one that begins with %q", ref, prefix)
		}
	}
}
