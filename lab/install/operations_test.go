package install

import (
	"encoding/json"
	"maps"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/dra-lab/dra-lab/driver/api"
	"github.com/dra-lab/dra-lab/driver/api/v1alpha1"
)

// The API server drops fields that the schema does not have, and refuses values
// that it does not list: so the schema has to be that of the types.
func TestSchemaOfOperationsIsThatOfTheTypes(t *testing.T) {
	all := testObjects(t)
	i := slices.IndexFunc(all, func(o *unstructured.Unstructured) bool { return o.GetKind() == "CustomResourceDefinition" })
	spec := all[i].Object["spec"].(map[string]any)
	version := spec["versions"].([]any)[0].(map[string]any)
	schema := version["schema"].(map[string]any)["openAPIV3Schema"].(map[string]any)
	if got, want := all[i].GetName(), v1alpha1.OperationResource+"."+v1alpha1.GroupVersion().Group; got != want {
		t.Errorf("name %q, want %q", got, want)
	}
	if got, want := version["name"], v1alpha1.GroupVersion().Version; got != want {
		t.Errorf("version %q, want %q", got, want)
	}
	if got, want := version["selectableFields"].([]any)[0].(map[string]any)["jsonPath"], "."+v1alpha1.OperationNodeField; got != want {
		t.Errorf("selectable field %q, want %q", got, want)
	}

	full := v1alpha1.DeviceOperation{
		Spec: v1alpha1.DeviceOperationSpec{
			Node: "n", Driver: api.DriverName, Pool: "n", Device: "gpu-0", Action: v1alpha1.OperationReset, Attempt: 1, Reason: "r",
			Claim: &v1alpha1.ClaimReference{Namespace: "ns", Name: "c", UID: "u"},
		},
		Status: v1alpha1.DeviceOperationStatus{
			ObservedAttempt: 1, ObservedAt: metav1.Now(),
			Conditions: []metav1.Condition{{Type: "T", Status: "True", ObservedGeneration: 1, LastTransitionTime: metav1.Now(), Reason: "R", Message: "m"}},
		},
	}
	data, err := json.Marshal(full)
	if err != nil {
		t.Fatal(err)
	}
	var object map[string]any
	if err := json.Unmarshal(data, &object); err != nil {
		t.Fatal(err)
	}
	delete(object, "metadata")
	compareSchema(t, "", schema, object)

	var actions []string
	for _, a := range schema["properties"].(map[string]any)["spec"].(map[string]any)["properties"].(map[string]any)["action"].(map[string]any)["enum"].([]any) {
		actions = append(actions, a.(string))
	}
	want := []string{
		string(v1alpha1.OperationAttach), string(v1alpha1.OperationDetach), string(v1alpha1.OperationProbe),
		string(v1alpha1.OperationReset), string(v1alpha1.OperationReplace), string(v1alpha1.OperationWait),
	}
	if diff := cmp.Diff(want, actions); diff != "" {
		t.Errorf("actions (-want +got):\n%s", diff)
	}
}

// compareSchema compares the names of fields, and looks into each.
func compareSchema(t *testing.T, path string, schema, value map[string]any) {
	t.Helper()
	properties, _ := schema["properties"].(map[string]any)
	want, got := slices.Sorted(maps.Keys(value)), slices.Sorted(maps.Keys(properties))
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("fields of %q (-types +schema):\n%s", path, diff)
		return
	}
	for name, v := range value {
		inner, _ := properties[name].(map[string]any)
		if list, ok := v.([]any); ok {
			inner, _ = inner["items"].(map[string]any)
			v = list[0]
		}
		if v, ok := v.(map[string]any); ok {
			compareSchema(t, path+"."+name, inner, v)
		}
	}
}
