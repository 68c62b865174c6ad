package plugin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"

	"github.com/dra-lab/dra-lab/driver/api"
	"github.com/dra-lab/dra-lab/driver/api/v1alpha1"
	"github.com/dra-lab/dra-lab/driver/internal/checkpoint"
	"github.com/dra-lab/dra-lab/driver/internal/health"
	"github.com/dra-lab/dra-lab/driver/internal/operation"
	"github.com/dra-lab/dra-lab/driver/internal/slots"
)

// Bounds of operations.
const (
	// resetTimeout is short: no claim can be prepared meanwhile.
	resetTimeout = 2 * time.Second
	// probeTimeout is how long a GPU may take to answer.
	probeTimeout = 10 * time.Second
	probePoll    = 50 * time.Millisecond
	// parallelOperations is how many devices are worked on at a time: one that
	// does not answer holds up nobody.
	parallelOperations = 4
	// tellTimeout bounds the write of an outcome.
	tellTimeout = 10 * time.Second
)

// operating carries out what the controller orders for this node. An order that was carried out and not reported, because the driver died
// in between, is carried out again: each of them does nothing the second time.
func (d *Driver) operating(ctx context.Context) {
	queue := workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[string](100*time.Millisecond, time.Minute))
	informer := operation.NewInformer(d.cfg.Operations, fields.OneTermEqualSelector(v1alpha1.OperationNodeField, d.cfg.Node).String())
	changed := func(object any) {
		if name, err := cache.DeletionHandlingMetaNamespaceKeyFunc(object); err == nil {
			queue.Add(name)
		}
	}
	_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: changed, DeleteFunc: changed, UpdateFunc: func(_, now any) { changed(now) },
	})
	if err != nil {
		d.stop(fmt.Errorf("watch operations: %w", err))
		return
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		informer.RunWithContext(ctx)
	}()
	defer func() { <-done }()
	defer context.AfterFunc(ctx, queue.ShutDown)()
	if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		return
	}
	// What is attached and nobody wants attached.
	if d.cfg.Slots != nil {
		attached, err := d.cfg.Slots.List()
		if err != nil {
			d.background(ctx, "operations", err)
		}
		for _, a := range attached {
			queue.Add(v1alpha1.OperationName(api.FabricPool, a.Device))
		}
	}
	var workers sync.WaitGroup
	for range parallelOperations {
		workers.Go(func() { d.work(ctx, queue, informer.GetStore()) })
	}
	workers.Wait()
}

// work carries out the orders that are due until the queue is shut down. It has
// each device to itself.
func (d *Driver) work(ctx context.Context, queue workqueue.TypedRateLimitingInterface[string], known cache.Store) {
	for {
		name, shutdown := queue.Get()
		if shutdown {
			return
		}
		if err := d.operate(ctx, known, name); err != nil && ctx.Err() == nil {
			if !apierrors.IsConflict(err) {
				d.background(ctx, "operations", err)
			}
			queue.AddRateLimited(name)
		} else {
			queue.Forget(name)
		}
		queue.Done(name)
	}
}

// operate brings this node in line with the operation of a name.
func (d *Driver) operate(ctx context.Context, known cache.Store, name string) error {
	object, found, err := known.GetByKey(name)
	if err != nil {
		return err
	}
	op, ok := object.(*v1alpha1.DeviceOperation)
	if !found || !ok {
		return d.detachOrphan(ctx, name)
	}
	if answered, _ := op.Done(); answered || op.Spec.Node != d.cfg.Node {
		return nil
	}
	var outcome outcome
	switch op.Spec.Action {
	case v1alpha1.OperationReset:
		outcome = d.reset(ctx, op.Spec)
	case v1alpha1.OperationProbe:
		outcome = d.probe(ctx, op.Spec)
	case v1alpha1.OperationAttach, v1alpha1.OperationDetach:
		outcome = d.plug(ctx, op.Spec)
	default:
		return nil // nothing that is done here
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return d.answer(ctx, op, outcome)
}

// outcome is what became of an order.
type outcome struct {
	reason, message string
}

func succeeded(message string) outcome { return outcome{v1alpha1.ReasonSucceeded, message} }

// failed puts an error into an outcome.
func failed(err error) outcome {
	reason := v1alpha1.ReasonFailed
	switch {
	case errors.Is(err, checkpoint.ErrHeld), errors.Is(err, errProcesses), errors.Is(err, slots.ErrInUse):
		reason = v1alpha1.ReasonInUse
	case errors.Is(err, errors.ErrUnsupported):
		reason = v1alpha1.ReasonUnsupported
	}
	return outcome{reason, err.Error()}
}

// answer tells the controller, and whoever reads reports or Events.
func (d *Driver) answer(ctx context.Context, op *v1alpha1.DeviceOperation, o outcome) error {
	ctx, cancel := context.WithTimeout(ctx, tellTimeout)
	defer cancel()
	op = op.DeepCopy()
	status := metav1.ConditionFalse
	if o.reason == v1alpha1.ReasonSucceeded {
		status = metav1.ConditionTrue
	}
	op.Status.ObservedAttempt, op.Status.ObservedAt = op.Spec.Attempt, metav1.Now()
	meta.SetStatusCondition(&op.Status.Conditions, metav1.Condition{
		Type: v1alpha1.ConditionCompleted, Status: status, Reason: o.reason, Message: o.message,
	})
	if _, err := d.cfg.Operations.UpdateStatus(ctx, op, metav1.UpdateOptions{}); err != nil {
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("report operation %s: %w", op.Name, err)
	}
	logger := klog.FromContext(ctx)
	logger.Info("Carried out operation", "operation", op.Name, "action", op.Spec.Action, "attempt", op.Spec.Attempt, "outcome", o.reason, "message", o.message)
	r := api.Report{Step: api.StepOperation, Device: op.Spec.Device, Detail: string(op.Spec.Action) + ": " + o.message}
	kind, reason := corev1.EventTypeNormal, "GPU"+string(op.Spec.Action)
	if status != metav1.ConditionTrue {
		r.Detail, r.Err = string(op.Spec.Action), o.message
		kind, reason = corev1.EventTypeWarning, reason+"Failed"
	}
	d.report(r)
	d.event(kind, reason, string(op.Spec.Action), op.Spec.Device+": "+o.message)
	return nil
}

// errProcesses is the refusal to reset what a process uses.
var errProcesses = errors.New("in use")

// reset resets a simulated GPU that neither a claim nor a process has.
func (d *Driver) reset(ctx context.Context, spec v1alpha1.DeviceOperationSpec) outcome {
	gpu, ok := d.inventory().GPUs[spec.Device]
	switch {
	case !ok || spec.Driver != api.DriverName || spec.Pool != d.cfg.Node:
		return failed(fmt.Errorf("reset %s of %s: not on this node: %w", spec.Device, spec.Pool, errors.ErrUnsupported))
	case d.cfg.Reset == nil || !d.cfg.Simulated:
		return failed(fmt.Errorf("reset %s: only simulated GPUs are reset: %w", spec.Device, errors.ErrUnsupported))
	}
	ctx, cancel := context.WithTimeout(ctx, resetTimeout)
	defer cancel()
	err := d.store.WhileFree(ctx, spec.Pool, spec.Device, func() error {
		usage, err := d.cfg.Hardware.Usage(gpu.Index)
		switch {
		case err != nil:
			return fmt.Errorf("reset %s: %w", spec.Device, err)
		case len(usage.Processes) > 0:
			return fmt.Errorf("reset: %w: %s", errProcesses, inUse(spec.Device, usage))
		}
		return d.cfg.Reset(ctx, gpu)
	})
	if err != nil {
		return failed(err)
	}
	d.monitor.Repaired(gpu.Index)
	signal(d.leaked)
	return succeeded("reset, errors and leftovers are gone")
}

// probe asks a GPU how it is, and waits for the answer.
func (d *Driver) probe(ctx context.Context, spec v1alpha1.DeviceOperationSpec) outcome {
	gpu, ok := d.inventory().GPUs[spec.Device]
	if !ok || spec.Driver != api.DriverName || spec.Pool != d.cfg.Node {
		return failed(fmt.Errorf("probe %s of %s: not on this node: %w", spec.Device, spec.Pool, errors.ErrUnsupported))
	}
	ctx, cancel := context.WithTimeoutCause(ctx, probeTimeout, fmt.Errorf("no answer within %s", probeTimeout))
	defer cancel()
	asked := time.Now()
	d.monitor.Ask(gpu.Index)
	ticker := time.NewTicker(probePoll)
	defer ticker.Stop()
	for {
		all := d.monitor.Snapshot()
		i := slices.IndexFunc(all, func(s health.Status) bool { return s.Name == spec.Device })
		if i >= 0 && all[i].Verified.After(asked) {
			if all[i].Health != api.HealthHealthy {
				return outcome{v1alpha1.ReasonUnhealthy, all[i].Health + ": " + all[i].Message}
			}
			return succeeded("healthy")
		}
		select {
		case <-ctx.Done():
			return failed(fmt.Errorf("probe %s: %w", spec.Device, context.Cause(ctx)))
		case <-ticker.C:
		}
	}
}

// plug attaches or detaches a network-attached GPU.
func (d *Driver) plug(ctx context.Context, spec v1alpha1.DeviceOperationSpec) outcome {
	switch {
	case d.cfg.Slots == nil || spec.Driver != api.FabricDriverName || spec.Pool != api.FabricPool:
		return failed(fmt.Errorf("attach %s of %s: this node takes no such device: %w", spec.Device, spec.Pool, errors.ErrUnsupported))
	case spec.Action == v1alpha1.OperationDetach:
		if err := d.cfg.Slots.Detach(ctx, spec.Device); err != nil {
			return failed(err)
		}
		return succeeded("detached")
	case spec.Claim == nil:
		return failed(fmt.Errorf("attach %s: for no claim", spec.Device))
	}
	err := d.cfg.Slots.Attach(ctx, slots.Attachment{Device: spec.Device, ClaimUID: spec.Claim.UID})
	if err != nil {
		return failed(err)
	}
	return succeeded("attached for claim " + spec.Claim.Namespace + "/" + spec.Claim.Name)
}

// detachOrphan detaches a device whose operation is gone, which happens when
// somebody has taken its finalizer away or the node was away for so long that it
// was given up. The API server is asked, since the informer may be behind.
func (d *Driver) detachOrphan(ctx context.Context, name string) error {
	if d.cfg.Slots == nil {
		return nil
	}
	attached, err := d.cfg.Slots.List()
	if err != nil {
		return err
	}
	i := slices.IndexFunc(attached, func(a slots.Attachment) bool { return v1alpha1.OperationName(api.FabricPool, a.Device) == name })
	if i < 0 {
		return nil
	}
	asking, cancel := context.WithTimeout(ctx, tellTimeout)
	defer cancel()
	op, err := d.cfg.Operations.Get(asking, name, metav1.GetOptions{})
	switch {
	case err == nil && op.Spec.Node == d.cfg.Node:
		return nil
	case err != nil && !apierrors.IsNotFound(err):
		return fmt.Errorf("look for operation %s: %w", name, err)
	}
	if err := d.cfg.Slots.Detach(ctx, attached[i].Device); err != nil {
		return fmt.Errorf("detach what nobody wants attached: %w", err)
	}
	d.report(api.Report{Step: api.StepOperation, Device: attached[i].Device, Detail: "Detach: its operation is gone"})
	return nil
}
