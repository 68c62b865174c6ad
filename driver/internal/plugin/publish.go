package plugin

import (
	"context"
	"fmt"
	"maps"
	stdslices "slices"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/dra-lab/dra-lab/driver/api"
	"github.com/dra-lab/dra-lab/driver/internal/health"
	"github.com/dra-lab/dra-lab/driver/internal/slices"
)

// republishAfter is how soon slices that did not reach the API server are given
// to the helper again. Its own attempts come at growing intervals, up to many
// minutes.
const republishAfter = 5 * time.Second

// publishing keeps ResourceSlices, metrics and reports in step with the health
// of the devices.
func (d *Driver) publishing(ctx context.Context) {
	changed, cancel, err := d.monitor.Subscribe()
	if err != nil {
		d.stop(err)
		return
	}
	defer cancel()
	var retry <-chan time.Time
	known := map[string]health.Status{}
	published := map[string][]health.Taint(nil)
	for {
		now := d.monitor.Snapshot()
		d.tellHealth(ctx, known, now)
		known = statuses(now)
		renewed := d.takeInventory()
		if taints := d.taints(now); renewed || published == nil || !maps.EqualFunc(taints, published, stdslices.Equal[[]health.Taint]) {
			d.publish(ctx, taints)
			d.tellTaints(published, taints)
			published = taints
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		case <-d.retaint:
		case <-d.republish:
			retry = time.After(republishAfter)
		case <-retry:
			retry = nil
			d.publish(ctx, published)
		case <-d.missing:
			d.publish(ctx, published)
		}
	}
}

// taints are those for the health of the devices, and those for what claims
// left behind on them.
func (d *Driver) taints(all []health.Status) map[string][]health.Taint {
	taints := map[string][]health.Taint{}
	for _, s := range all {
		if t := d.monitor.Rules().Taints(s); len(t) > 0 {
			taints[s.Name] = t
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for name, t := range d.leakTaints {
		if t.Effect == health.NoTaint {
			continue
		}
		taints[name] = append(taints[name], t)
	}
	return taints
}

func (d *Driver) publish(ctx context.Context, taints map[string][]health.Taint) {
	resources := slices.Pool(d.cfg.Node, d.devices.Load().gpus, taints, d.cfg.Simulated)
	d.mu.Lock()
	helper := d.helper
	d.mu.Unlock()
	if err := helper.PublishResources(ctx, resources); err != nil {
		d.stop(fmt.Errorf("publish devices: %w", err))
	}
}

// statuses are by device name.
func statuses(all []health.Status) map[string]health.Status {
	byName := make(map[string]health.Status, len(all))
	for _, s := range all {
		byName[s.Name] = s
	}
	return byName
}

// tellHealth reports what has changed since known.
func (d *Driver) tellHealth(ctx context.Context, known map[string]health.Status, now []health.Status) {
	for _, s := range now {
		before, ok := known[s.Name]
		if ok && before.Same(s) {
			continue
		}
		d.metrics.Health(s.Name, s.Health)
		if !ok && s.Health == api.HealthHealthy {
			continue // the normal case at start
		}
		detail := s.Health
		if s.Message != "" {
			detail += ": " + s.Message
		}
		klog.FromContext(ctx).Info("Health changed", "device", s.Name, "health", s.Health, "message", s.Message)
		d.report(api.Report{Step: api.StepHealth, Device: s.Name, Detail: detail})
		if ok || s.Health == api.HealthUnhealthy { // at the start all are unknown for a moment
			d.healthEvent(s.Name, s.Health, s.Message)
		}
	}
}

// tellTaints reports the difference.
func (d *Driver) tellTaints(before, after map[string][]health.Taint) {
	for _, name := range stdslices.Sorted(maps.Keys(before)) {
		for _, t := range before[name] {
			if !stdslices.Contains(after[name], t) {
				d.report(api.Report{Step: api.StepUntainted, Device: name, Detail: t.String()})
			}
		}
	}
	for _, name := range stdslices.Sorted(maps.Keys(after)) {
		for _, t := range after[name] {
			if !stdslices.Contains(before[name], t) {
				d.report(api.Report{Step: api.StepTainted, Device: name, Detail: t.String()})
			}
		}
	}
}

// How the driver makes sure that its devices are published.
const (
	confirmFirst = 20 * time.Millisecond // until the first look
	confirmEvery = time.Second
	// confirmAgain is for how long it keeps looking after a registration. A
	// kubelet that starts removes all slices of its node; the helper would put
	// them back after half a minute, in which no Pod finds a device.
	confirmAgain = 10 * time.Second
)

// confirming looks whether the API server has the devices when the driver
// starts, and whenever a kubelet registers it, and has them published again
// where they are missing.
func (d *Driver) confirming(ctx context.Context) {
	until := time.Now()
	began := until
	wait := confirmFirst
	missing := true
	for {
		select {
		case <-ctx.Done():
			return
		case <-d.reconfirm:
			until = time.Now().Add(confirmAgain)
			continue
		case <-time.After(wait):
		}
		wait = min(2*wait, confirmEvery)
		count, err := d.publishedDevices(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			d.background(ctx, "publish", fmt.Errorf("list own ResourceSlices: %w", err))
			continue
		case count != len(d.inventory().GPUs):
			if !missing {
				missing, began = true, time.Now()
			}
			signal(d.missing)
			continue
		case missing:
			missing = false
			d.published.Store(true)
			d.report(api.Report{Step: api.StepPublished, Detail: fmt.Sprintf("%d devices", count), Duration: time.Since(began)})
		}
		if time.Now().After(until) {
			select {
			case <-ctx.Done():
				return
			case <-d.reconfirm:
				until = time.Now().Add(confirmAgain)
			}
		}
	}
}

// publishedDevices counts the devices of this node, in its newest generation;
// -1 means that there is no slice yet.
func (d *Driver) publishedDevices(ctx context.Context) (int, error) {
	list, err := d.cfg.Client.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{
		FieldSelector: resourceapi.ResourceSliceSelectorNodeName + "=" + d.cfg.Node + "," + resourceapi.ResourceSliceSelectorDriver + "=" + api.DriverName,
	})
	if err != nil {
		return -1, err
	}
	count, newest := -1, int64(-1)
	for _, s := range list.Items {
		if s.Spec.Driver != api.DriverName || s.Spec.Pool.Name != d.cfg.Node {
			continue
		}
		switch generation := s.Spec.Pool.Generation; {
		case generation > newest:
			count, newest = len(s.Spec.Devices), generation
		case generation == newest:
			count += len(s.Spec.Devices)
		}
	}
	return count, nil
}
