package install

import (
	"context"
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
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
		{Kind: "Node"}:                      {"nodes", false},
		{Kind: "Namespace"}:                 {"namespaces", false},
		{Kind: "ServiceAccount"}:            {"serviceaccounts", true},
		{Kind: "ConfigMap"}:                 {"configmaps", true},
		{Group: "apps", Kind: "DaemonSet"}:  {"daemonsets", true},
		{Group: "apps", Kind: "Deployment"}: {"deployments", true},
		{Group: "apiextensions.k8s.io", Kind: "CustomResourceDefinition"}:                 {"customresourcedefinitions", false},
		{Group: "rbac.authorization.k8s.io", Kind: "Role"}:                                {"roles", true},
		{Group: "rbac.authorization.k8s.io", Kind: "RoleBinding"}:                         {"rolebindings", true},
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
	driverGeneration     int64 // of the DaemonSet
	controllerGeneration int64 // of the Deployment
}

// apply applies objects one after the other. Programs are started once the
// resources that the objects define are served.
func (c clients) apply(ctx context.Context, objects []*unstructured.Unstructured) (applied, error) {
	var result applied
	var defined []string
	for _, object := range objects {
		resource, namespaced, err := resourceOf(object.GroupVersionKind())
		if err != nil {
			return applied{}, err
		}
		workload := object.GetKind() == "DaemonSet" || object.GetKind() == "Deployment"
		if workload && len(defined) > 0 {
			if err := c.established(ctx, defined); err != nil {
				return applied{}, err
			}
			defined = nil
		}
		var target dynamic.ResourceInterface = c.dynamic.Resource(resource)
		if namespaced {
			target = c.dynamic.Resource(resource).Namespace(object.GetNamespace())
		}
		got, err := target.Apply(ctx, object.GetName(), object, metav1.ApplyOptions{FieldManager: fieldManager, Force: true})
		if err != nil {
			return applied{}, fmt.Errorf("apply %s %q: %w", object.GetKind(), object.GetName(), err)
		}
		switch {
		case object.GetKind() == "DaemonSet" && object.GetName() == api.DaemonSetName:
			result.driverGeneration = got.GetGeneration()
		case object.GetKind() == "Deployment" && object.GetName() == api.ControllerName:
			result.controllerGeneration = got.GetGeneration()
		case object.GetKind() == "CustomResourceDefinition" && !isEstablished(got):
			defined = append(defined, object.GetName())
		}
	}
	return result, nil
}

// How long, and how often, the server is asked whether it serves a resource that
// was defined. It takes it a moment.
const (
	establishTime = 30 * time.Second
	establishPoll = 50 * time.Millisecond
)

// established waits until the definitions of these names are in force.
func (c clients) established(ctx context.Context, names []string) error {
	crds := c.dynamic.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"})
	for _, name := range names {
		err := wait.PollUntilContextTimeout(ctx, establishPoll, establishTime, true, func(ctx context.Context) (bool, error) {
			crd, err := crds.Get(ctx, name, metav1.GetOptions{})
			return err == nil && isEstablished(crd), err
		})
		if err != nil {
			return fmt.Errorf("wait until resource %q is served: %w", name, err)
		}
	}
	return nil
}

func isEstablished(crd *unstructured.Unstructured) bool {
	conditions, _, err := unstructured.NestedSlice(crd.Object, "status", "conditions")
	if err != nil {
		return false
	}
	return slices.ContainsFunc(conditions, func(c any) bool {
		condition, ok := c.(map[string]any)
		return ok && condition["type"] == "Established" && condition["status"] == "True"
	})
}
