// Package operationtest is an API server for tests that has DeviceOperations and
// nothing else: they can be watched, and writes that were decided upon old news
// are refused.
package operationtest

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/dra-lab/dra-lab/driver/api/v1alpha1"
)

// Client is the server and its client. It is safe for concurrent use.
type Client struct {
	mu       sync.Mutex
	version  int
	objects  map[string]*v1alpha1.DeviceOperation
	watchers *watch.Broadcaster
}

// maxEvents bounds the events that a watcher has not read yet.
const maxEvents = 1024

// NewClient makes an empty one, which ends with the test.
func NewClient(tb testing.TB) *Client {
	tb.Helper()
	c := &Client{objects: map[string]*v1alpha1.DeviceOperation{}, watchers: watch.NewBroadcaster(maxEvents, watch.WaitIfChannelFull)}
	tb.Cleanup(c.watchers.Shutdown)
	return c
}

// IsWatchListSemanticsUnSupported tells informers that a watch does not begin
// with what there is.
func (*Client) IsWatchListSemanticsUnSupported() bool { return true }

// Get reads one.
func (c *Client) Get(_ context.Context, name string, _ metav1.GetOptions) (*v1alpha1.DeviceOperation, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if op := c.objects[name]; op != nil {
		return op.DeepCopy(), nil
	}
	return nil, notFound(name)
}

// List reads all, whatever the field selector.
func (c *Client) List(context.Context, metav1.ListOptions) (*v1alpha1.DeviceOperationList, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	list := &v1alpha1.DeviceOperationList{}
	list.ResourceVersion = strconv.Itoa(c.version)
	for _, op := range c.objects {
		list.Items = append(list.Items, *op.DeepCopy())
	}
	return list, nil
}

// Watch follows all. It begins with those that there are: between a list and it
// nothing is lost.
func (c *Client) Watch(context.Context, metav1.ListOptions) (watch.Interface, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var have []watch.Event
	for _, op := range c.objects {
		have = append(have, watch.Event{Type: watch.Modified, Object: op.DeepCopy()})
	}
	return c.watchers.WatchWithPrefix(have)
}

// Create makes one.
func (c *Client) Create(_ context.Context, op *v1alpha1.DeviceOperation, _ metav1.CreateOptions) (*v1alpha1.DeviceOperation, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.objects[op.Name] != nil {
		return nil, apierrors.NewAlreadyExists(resource(), op.Name)
	}
	op = op.DeepCopy()
	op.CreationTimestamp, op.UID = metav1.Now(), types.UID("uid-"+strconv.Itoa(c.version))
	op.Status = v1alpha1.DeviceOperationStatus{}
	return c.store(op, watch.Added)
}

// Update changes everything but the status.
func (c *Client) Update(_ context.Context, op *v1alpha1.DeviceOperation, _ metav1.UpdateOptions) (*v1alpha1.DeviceOperation, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	have, err := c.current(op)
	if err != nil {
		return nil, err
	}
	now := op.DeepCopy()
	now.Status, now.DeletionTimestamp = have.Status, have.DeletionTimestamp
	return c.store(now, watch.Modified)
}

// UpdateStatus changes the status and nothing else.
func (c *Client) UpdateStatus(_ context.Context, op *v1alpha1.DeviceOperation, _ metav1.UpdateOptions) (*v1alpha1.DeviceOperation, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	have, err := c.current(op)
	if err != nil {
		return nil, err
	}
	now := have.DeepCopy()
	now.Status = op.DeepCopy().Status
	return c.store(now, watch.Modified)
}

// Delete removes one, or marks one that has finalizers.
func (c *Client) Delete(_ context.Context, name string, o metav1.DeleteOptions) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	have := c.objects[name]
	if have == nil {
		return notFound(name)
	}
	if o.Preconditions != nil && o.Preconditions.UID != nil && *o.Preconditions.UID != have.UID {
		return apierrors.NewConflict(resource(), name, errors.New("another UID"))
	}
	now := have.DeepCopy()
	deleted := metav1.Now()
	now.DeletionTimestamp = &deleted
	_, err := c.store(now, watch.Modified)
	return err
}

// current is what is stored, if op was made of it. The caller holds mu.
func (c *Client) current(op *v1alpha1.DeviceOperation) (*v1alpha1.DeviceOperation, error) {
	have := c.objects[op.Name]
	switch {
	case have == nil:
		return nil, notFound(op.Name)
	case op.ResourceVersion != have.ResourceVersion:
		return nil, apierrors.NewConflict(resource(), op.Name, errors.New("the object has been modified"))
	}
	return have, nil
}

// store tells everybody of a change. The caller holds mu.
func (c *Client) store(op *v1alpha1.DeviceOperation, what watch.EventType) (*v1alpha1.DeviceOperation, error) {
	c.version++
	op.ResourceVersion = strconv.Itoa(c.version)
	if op.DeletionTimestamp != nil && len(op.Finalizers) == 0 {
		delete(c.objects, op.Name)
		what = watch.Deleted
	} else {
		c.objects[op.Name] = op
	}
	return op.DeepCopy(), c.watchers.Action(what, op.DeepCopy())
}

func resource() schema.GroupResource {
	return v1alpha1.GroupVersion().WithResource(v1alpha1.OperationResource).GroupResource()
}

func notFound(name string) error { return apierrors.NewNotFound(resource(), name) }
