// Package controller is the driver's second component: one for the whole
// cluster. It publishes the GPUs that belong to no node, has them attached and
// detached, and has devices repaired. What is to be done, packages fabric and
// recovery decide; this one keeps their view of the cluster up to date and makes
// the writes that they ask for.
//
// Nothing is remembered here: a controller that starts anew decides upon the
// same objects. Every write is refused by the API server if it was decided upon
// old news, so not even two controllers at once do harm.
package controller

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/klog/v2"

	"github.com/dra-lab/dra-lab/driver/api"
	"github.com/dra-lab/dra-lab/driver/api/v1alpha1"
	"github.com/dra-lab/dra-lab/driver/internal/fabric"
	"github.com/dra-lab/dra-lab/driver/internal/operation"
	"github.com/dra-lab/dra-lab/driver/internal/recovery"
)

// Where the recovery policy is, in api.Namespace.
const (
	policyConfigMap = "recovery"
	policyKey       = "policy.yaml"
)

// Bounds of the wait after a write that failed.
const (
	retryMin = 100 * time.Millisecond
	retryMax = 30 * time.Second
)

// Config is for New. Client and Operations are required.
type Config struct {
	Client     kubernetes.Interface
	Operations operation.Client
	// Events may be nil.
	Events events.EventRecorder
	// FabricDevices is how many network-attached GPUs there are, 0 to
	// fabric.MaxDevices.
	FabricDevices int
	// Identity of this instance in the election, unique among all that run.
	Identity string
}

// Controller is one instance. New makes it, Run runs it once.
type Controller struct {
	cfg     Config
	metrics metrics
	changed chan struct{} // has a value when something may have to be decided
	// withdrawn is set when the API server does not know what the
	// network-attached devices need.
	withdrawn atomic.Bool

	slices, claims, nodes, policies, operations cache.SharedIndexInformer

	// Of the one goroutine that decides:

	policy     *recovery.Policy // nil: nothing is repaired
	policyText *string          // that policy was read from; nil: none yet
	published  map[string]bool  // devices of the fabric, and whether they are tainted
	fabric     *resourceslice.Controller
}

// New checks cfg and starts nothing.
func New(cfg Config) (*Controller, error) {
	switch {
	case cfg.Client == nil, cfg.Operations == nil:
		return nil, errors.New("open controller: clients are required")
	case cfg.FabricDevices < 0 || cfg.FabricDevices > fabric.MaxDevices:
		return nil, fmt.Errorf("open controller: %d network-attached devices, want 0 to %d", cfg.FabricDevices, fabric.MaxDevices)
	}
	return &Controller{cfg: cfg, metrics: newMetrics(), changed: make(chan struct{}, 1)}, nil
}

// Metrics are those of this instance.
func (c *Controller) Metrics() prometheus.Gatherer { return c.metrics.registry }

// lead does the work until ctx ends. Only one instance may be in it.
func (c *Controller) lead(ctx context.Context) error {
	c.metrics.leading.Set(1)
	defer c.metrics.leading.Set(0)
	logger := klog.FromContext(ctx)
	stop, err := c.follow(ctx)
	if err != nil {
		return err
	}
	defer stop()
	logger.Info("Leading")
	if c.cfg.FabricDevices > 0 {
		if err := c.publish(ctx); err != nil {
			return err
		}
		defer c.fabric.Stop()
	}
	retry := retryMin
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-c.changed:
		case <-timer.C:
		}
		again, ok := c.round(ctx, time.Now())
		if ok {
			retry = retryMin
		} else {
			again, retry = retry, min(2*retry, retryMax)
		}
		if again > 0 {
			timer.Reset(again)
		} else {
			timer.Stop()
		}
	}
}

// follow starts to watch everything that is decided upon, and waits until it is
// known. The caller has to stop it once ctx has ended.
func (c *Controller) follow(ctx context.Context) (stop func(), err error) {
	all := informers.NewSharedInformerFactory(c.cfg.Client, 0)
	slices := informers.NewSharedInformerFactoryWithOptions(c.cfg.Client, 0, informers.WithTweakListOptions(func(o *metav1.ListOptions) {
		o.FieldSelector = fields.OneTermEqualSelector(resourceapi.ResourceSliceSelectorDriver, api.DriverName).String()
	}))
	policies := informers.NewSharedInformerFactoryWithOptions(c.cfg.Client, 0, informers.WithNamespace(api.Namespace),
		informers.WithTweakListOptions(func(o *metav1.ListOptions) {
			o.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, policyConfigMap).String()
		}))
	c.slices = slices.Resource().V1().ResourceSlices().Informer()
	c.claims = all.Resource().V1().ResourceClaims().Informer()
	c.nodes = all.Core().V1().Nodes().Informer()
	c.policies = policies.Core().V1().ConfigMaps().Informer()
	c.operations = operation.NewInformer(c.cfg.Operations, "")
	changed := cache.ResourceEventHandlerFuncs{
		AddFunc:    func(any) { signal(c.changed) },
		DeleteFunc: func(any) { signal(c.changed) },
		UpdateFunc: func(any, any) { signal(c.changed) },
	}
	// Nodes change all the time. Only which there are matters.
	exist := cache.ResourceEventHandlerFuncs{AddFunc: changed.AddFunc, DeleteFunc: changed.DeleteFunc}
	for informer, handler := range map[cache.SharedIndexInformer]cache.ResourceEventHandler{
		c.slices: changed, c.claims: changed, c.policies: changed, c.operations: changed, c.nodes: exist,
	} {
		if _, err := informer.AddEventHandler(handler); err != nil {
			return nil, fmt.Errorf("watch the cluster: %w", err)
		}
	}
	if err := c.nodes.SetTransform(nameOnly); err != nil {
		return nil, fmt.Errorf("watch the cluster: %w", err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.operations.RunWithContext(ctx)
	}()
	for _, f := range []informers.SharedInformerFactory{all, slices, policies} {
		f.StartWithContext(ctx)
	}
	stop = func() {
		all.Shutdown()
		slices.Shutdown()
		policies.Shutdown()
		<-done
	}
	if !cache.WaitForCacheSync(ctx.Done(), c.slices.HasSynced, c.claims.HasSynced, c.nodes.HasSynced, c.policies.HasSynced, c.operations.HasSynced) {
		stop()
		return nil, fmt.Errorf("wait until the cluster is known: %w", context.Cause(ctx))
	}
	return stop, nil
}

// nameOnly keeps of a node what is used of it.
func nameOnly(object any) (any, error) {
	if n, ok := object.(*corev1.Node); ok {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.Name, UID: n.UID, ResourceVersion: n.ResourceVersion}}, nil
	}
	return object, nil
}

// publish starts to publish the network-attached devices.
func (c *Controller) publish(ctx context.Context) error {
	_, operations := c.allOperations()
	resources := fabric.Resources(c.cfg.FabricDevices, operations)
	var err error
	c.fabric, err = resourceslice.StartController(ctx, resourceslice.Options{
		DriverName: api.FabricDriverName,
		KubeClient: c.cfg.Client,
		Resources:  &resources,
		ErrorHandler: func(ctx context.Context, err error, msg string) {
			c.metrics.errors.Inc()
			klog.FromContext(ctx).Error(err, "Publish network-attached devices", "what", msg)
			// Without binding conditions, which Kubernetes has since 1.36, a Pod
			// would be bound to a node before its device is there.
			var dropped *resourceslice.DroppedFieldsError
			if errors.As(err, &dropped) {
				c.withdrawn.Store(true)
				signal(c.changed)
			}
		},
	})
	if err != nil {
		return fmt.Errorf("publish network-attached devices: %w", err)
	}
	c.published = published(resources)
	return nil
}

// published names the devices, and says whether each has a taint.
func published(resources resourceslice.DriverResources) map[string]bool {
	found := map[string]bool{}
	for _, s := range resources.Pools[api.FabricPool].Slices {
		for _, d := range s.Devices {
			found[d.Name] = len(d.Taints) > 0
		}
	}
	return found
}

// round decides once and makes the writes. again is when to do so once more even
// if nothing changes, 0 for never; ok is false when a write did not succeed.
func (c *Controller) round(ctx context.Context, now time.Time) (again time.Duration, ok bool) {
	c.readPolicy(ctx)
	claims := list[*resourceapi.ResourceClaim](c.claims)
	nodes := map[string]bool{}
	for _, n := range list[*corev1.Node](c.nodes) {
		nodes[n.Name] = true
	}
	ofNodes, ofFabric := c.allOperations()
	if c.fabric != nil {
		count := c.cfg.FabricDevices
		if c.withdrawn.Load() {
			count = 0
		}
		resources := fabric.Resources(count, ofFabric)
		if now := published(resources); !maps.Equal(now, c.published) {
			c.fabric.Update(&resources)
			c.published = now
		}
	}
	ok = true
	writes, again := fabric.Decide(fabric.State{Claims: claims, Operations: ofFabric, Nodes: nodes}, now)
	for _, a := range writes {
		ok = c.write(ctx, a) && ok
	}
	if c.policy == nil {
		return again, ok
	}
	courses, wait := recovery.All(*c.policy, recovery.State{
		Slices: list[*resourceapi.ResourceSlice](c.slices), Claims: claims, Operations: ofNodes, Nodes: nodes,
	}, now)
	for _, course := range courses {
		for _, a := range course {
			if !c.write(ctx, a) {
				ok = false
				break
			}
		}
	}
	if again == 0 || wait > 0 && wait < again {
		again = wait
	}
	return again, ok
}

func (c *Controller) allOperations() (ofNodes, ofFabric map[string]*v1alpha1.DeviceOperation) {
	ofNodes, ofFabric = map[string]*v1alpha1.DeviceOperation{}, map[string]*v1alpha1.DeviceOperation{}
	for _, op := range list[*v1alpha1.DeviceOperation](c.operations) {
		switch op.Spec.Driver {
		case api.DriverName:
			ofNodes[op.Name] = op
		case api.FabricDriverName:
			ofFabric[op.Name] = op
		}
	}
	return ofNodes, ofFabric
}

// write makes one write and tells of it.
func (c *Controller) write(ctx context.Context, a operation.Action) bool {
	logger := klog.FromContext(ctx)
	err := a.Do(ctx, writer{c.cfg})
	switch {
	case ctx.Err() != nil:
		return false
	case apierrors.IsConflict(err) || a.Verb == operation.Create && apierrors.IsAlreadyExists(err):
		// Decided upon old news: the news is on its way.
		logger.V(2).Info("Write was late", "write", a.String(), "err", err)
		return false
	case err != nil:
		c.metrics.errors.Inc()
		logger.Error(err, "Write")
		return false
	}
	c.metrics.writes.WithLabelValues(string(a.Verb)).Inc()
	logger.Info("Wrote", "write", a.String())
	c.tell(a.Event)
	return true
}

// tell writes an Event about a node.
func (c *Controller) tell(e *operation.Event) {
	if e == nil || c.cfg.Events == nil {
		return
	}
	kind := corev1.EventTypeNormal
	if e.Warning {
		kind = corev1.EventTypeWarning
	}
	// As those of the driver and of the kubelet: the name for a UID.
	node := &corev1.Node{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Node"},
		ObjectMeta: metav1.ObjectMeta{Name: e.Node, UID: types.UID(e.Node)},
	}
	c.cfg.Events.Eventf(node, nil, kind, e.Reason, e.Action, "%s", e.Note)
}

// readPolicy takes over the policy if it has changed. One that is wrong changes
// nothing; if there was none before, nothing is repaired: what somebody wanted
// to forbid must not happen because of a typing error.
func (c *Controller) readPolicy(ctx context.Context) {
	text := ""
	for _, m := range list[*corev1.ConfigMap](c.policies) {
		text = m.Data[policyKey]
	}
	if c.policyText != nil && *c.policyText == text {
		return
	}
	c.policyText = &text
	policy, err := recovery.DefaultPolicy(), error(nil)
	if text != "" {
		policy, err = recovery.ParsePolicy([]byte(text))
	}
	logger := klog.FromContext(ctx)
	if err == nil {
		logger.Info("Recovery policy", "rules", len(policy.Rules), "default", text == "")
		c.policy = &policy
		return
	}
	c.metrics.errors.Inc()
	logger.Error(err, "Recovery policy is refused", "configMap", klog.KRef(api.Namespace, policyConfigMap), "repairs", c.policy != nil)
	if c.cfg.Events != nil {
		c.cfg.Events.Eventf(&corev1.ConfigMap{
			TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
			ObjectMeta: metav1.ObjectMeta{Namespace: api.Namespace, Name: policyConfigMap},
		}, nil, corev1.EventTypeWarning, "PolicyRefused", "ReadPolicy", "%s", err.Error())
	}
}

// list gives what an informer knows. Nothing of it may be changed.
func list[T any](i cache.SharedIndexInformer) []T {
	objects := i.GetStore().List()
	all := make([]T, 0, len(objects))
	for _, o := range objects {
		if t, ok := o.(T); ok {
			all = append(all, t)
		}
	}
	return all
}

// signal leaves one value in c, which has room for one.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
