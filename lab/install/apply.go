package install

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/dra-lab/dra-lab/driver/api"
)

// fieldManager owns what the manifests say. Fields that others set stay.
const fieldManager = "dra-lab"

// clients are connections to one API server.
type clients struct {
	kubernetes kubernetes.Interface
	dynamic    dynamic.Interface
}

func connect(config *rest.Config) (clients, error) {
	config = rest.CopyConfig(config)
	config.UserAgent = "dra-lab"
	// A handful of requests to a server on the same machine need no brake.
	config.QPS = -1
	typed, err := kubernetes.NewForConfig(config)
	if err != nil {
		return clients{}, fmt.Errorf("connect to %s: %w", config.Host, err)
	}
	untyped, err := dynamic.NewForConfig(config)
	if err != nil {
		return clients{}, fmt.Errorf("connect to %s: %w", config.Host, err)
	}
	return clients{kubernetes: typed, dynamic: untyped}, nil
}

// resourceOf maps a kind to the path at which the API server has it, and says
// whether that is in a namespace. The few kinds of the manifests are listed
// here rather than asked for: discovery would cost more than all the rest.
func resourceOf(kind schema.GroupVersionKind) (resource schema.GroupVersionResource, namespaced bool, err error) {
	names := map[schema.GroupKind]struct {
		plural     string
		namespaced bool
	}{
		{Kind: "Node"}:                     {"nodes", false},
		{Kind: "Namespace"}:                {"namespaces", false},
		{Kind: "ServiceAccount"}:           {"serviceaccounts", true},
		{Kind: "ConfigMap"}:                {"configmaps", true},
		{Group: "apps", Kind: "DaemonSet"}: {"daemonsets", true},
		{Group: "rbac.authorization.k8s.io", Kind: "ClusterRole"}:                         {"clusterroles", false},
		{Group: "rbac.authorization.k8s.io", Kind: "ClusterRoleBinding"}:                  {"clusterrolebindings", false},
		{Group: "admissionregistration.k8s.io", Kind: "ValidatingAdmissionPolicy"}:        {"validatingadmissionpolicies", false},
		{Group: "admissionregistration.k8s.io", Kind: "ValidatingAdmissionPolicyBinding"}: {"validatingadmissionpolicybindings", false},
		{Group: "resource.k8s.io", Kind: "DeviceClass"}:                                   {"deviceclasses", false},
	}
	found, ok := names[kind.GroupKind()]
	if !ok {
		return schema.GroupVersionResource{}, false, fmt.Errorf("find the resource of kind %s: not in the list", kind.GroupKind())
	}
	return kind.GroupVersion().WithResource(found.plural), found.namespaced, nil
}

// applied is what the server made of the objects.
type applied struct {
	driverGeneration int64 // of the DaemonSet
}

// apply applies objects one after the other.
func (c clients) apply(ctx context.Context, objects []*unstructured.Unstructured) (applied, error) {
	var result applied
	for _, object := range objects {
		resource, namespaced, err := resourceOf(object.GroupVersionKind())
		if err != nil {
			return applied{}, err
		}
		var target dynamic.ResourceInterface = c.dynamic.Resource(resource)
		if namespaced {
			target = c.dynamic.Resource(resource).Namespace(object.GetNamespace())
		}
		got, err := target.Apply(ctx, object.GetName(), object, metav1.ApplyOptions{FieldManager: fieldManager, Force: true})
		if err != nil {
			return applied{}, fmt.Errorf("apply %s %q: %w", object.GetKind(), object.GetName(), err)
		}
		if object.GetKind() == "DaemonSet" && object.GetName() == api.DaemonSetName {
			result.driverGeneration = got.GetGeneration()
		}
	}
	return result, nil
}
