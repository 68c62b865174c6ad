// Package operation is how controller and driver speak about what is to be done
// to devices: a client for DeviceOperations, and the writes that decisions about
// them are made of.
package operation

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/gentype"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/dra-lab/dra-lab/driver/api/v1alpha1"
)

// Client reads and writes DeviceOperations.
type Client interface {
	Get(ctx context.Context, name string, o metav1.GetOptions) (*v1alpha1.DeviceOperation, error)
	List(ctx context.Context, o metav1.ListOptions) (*v1alpha1.DeviceOperationList, error)
	Watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error)
	Create(ctx context.Context, op *v1alpha1.DeviceOperation, o metav1.CreateOptions) (*v1alpha1.DeviceOperation, error)
	Update(ctx context.Context, op *v1alpha1.DeviceOperation, o metav1.UpdateOptions) (*v1alpha1.DeviceOperation, error)
	UpdateStatus(ctx context.Context, op *v1alpha1.DeviceOperation, o metav1.UpdateOptions) (*v1alpha1.DeviceOperation, error)
	Delete(ctx context.Context, name string, o metav1.DeleteOptions) error
}

// NewClient makes a client of the API server that config describes.
func NewClient(config *rest.Config) (Client, error) {
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		return nil, fmt.Errorf("configure client of device operations: %w", err)
	}
	config = rest.CopyConfig(config)
	group := v1alpha1.GroupVersion()
	config.GroupVersion = &group
	config.APIPath = "/apis"
	config.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	// Custom resources are served as JSON only.
	config.ContentType, config.AcceptContentTypes = runtime.ContentTypeJSON, runtime.ContentTypeJSON
	client, err := rest.RESTClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("configure client of device operations: %w", err)
	}
	return gentype.NewClientWithList[*v1alpha1.DeviceOperation, *v1alpha1.DeviceOperationList](
		v1alpha1.OperationResource, client, runtime.NewParameterCodec(scheme), "",
		func() *v1alpha1.DeviceOperation { return &v1alpha1.DeviceOperation{} },
		func() *v1alpha1.DeviceOperationList { return &v1alpha1.DeviceOperationList{} },
	), nil
}

// NewInformer follows the operations that a field selector chooses; the empty
// one chooses all. A server that does not have the resource yet is asked again.
func NewInformer(client Client, selector string) cache.SharedIndexInformer {
	watching := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.FieldSelector = selector
			return client.List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.FieldSelector = selector
			return client.Watch(ctx, o)
		},
	}
	return cache.NewSharedIndexInformer(cache.ToListWatcherWithWatchListSemantics(watching, client), &v1alpha1.DeviceOperation{}, 0, cache.Indexers{})
}
