package plugin

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/dra-lab/dra-lab/driver/api"
	"github.com/dra-lab/dra-lab/driver/internal/checkpoint"
	"github.com/dra-lab/dra-lab/driver/internal/health"
)

// watchLeaks looks at the devices with leaks until ctx ends, whichever instance
// on the node found them, and takes the taint away once they are clean.
func (d *Driver) watchLeaks(ctx context.Context) {
	ticker := time.NewTicker(d.cfg.ProbeEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-d.leaked:
		case <-ticker.C:
		}
		if err := d.lookAtLeaks(ctx); err != nil && ctx.Err() == nil {
			d.background(ctx, "leaks", err)
		}
	}
}

// lookAtLeaks finds out which devices have leaks now and has them published.
func (d *Driver) lookAtLeaks(ctx context.Context) error {
	leaks, err := d.store.Leaks(ctx)
	if err != nil {
		return fmt.Errorf("look for leaks: %w", err)
	}
	var held map[string]bool
	if len(leaks) > 0 {
		if held, err = d.held(ctx); err != nil {
			return fmt.Errorf("look for leaks: %w", err)
		}
	}
	taints := make(map[string]health.Taint, len(leaks))
	for _, l := range leaks {
		// While somebody uses the device nobody can tell what is whose.
		if !held[l.UUID] && d.clean(ctx, l) {
			if err := d.store.Mend(ctx, l.UUID); err != nil {
				return fmt.Errorf("forget leak of %s: %w", l.Name, err)
			}
			continue
		}
		taints[l.Name] = health.Taint{Key: api.TaintLeaked, Value: l.What, Effect: d.monitor.Rules().Effects[health.Leaked], Since: l.Since}
	}
	d.metrics.Leaked(len(taints))
	d.mu.Lock()
	before := d.leakTaints
	d.leakTaints = taints
	d.mu.Unlock()
	for _, l := range leaks {
		if t, ok := taints[l.Name]; ok && before[l.Name] != t {
			d.event(corev1.EventTypeWarning, reasonLeaked, actionUnprepare, fmt.Sprintf("%s: %s of claim %s stayed behind", l.Name, l.What, l.Claim))
		}
	}
	signal(d.retaint)
	return nil
}

// held are the UUIDs of devices that claims hold.
func (d *Driver) held(ctx context.Context) (map[string]bool, error) {
	entries, err := d.store.List(ctx)
	if err != nil {
		return nil, err
	}
	return heldBy(entries), nil
}

// heldBy are the UUIDs of devices that these claims hold.
func heldBy(entries []checkpoint.Entry) map[string]bool {
	held := map[string]bool{}
	for _, e := range entries {
		for _, dev := range e.Devices {
			if !dev.Monitor {
				held[dev.UUID] = true
			}
		}
	}
	return held
}

// clean says whether nothing is left of a leak. A device that cannot be asked,
// or is no longer here, is not clean.
func (d *Driver) clean(ctx context.Context, l checkpoint.Leak) bool {
	gpu, ok := d.inventory().GPUs[l.Name]
	if !ok || gpu.UUID != l.UUID {
		return false
	}
	if gpu.Partition != nil {
		return d.cleanPartition(ctx, gpu)
	}
	usage, err := d.cfg.Hardware.Usage(gpu.Index)
	if err != nil {
		return false
	}
	_, left := compare(checkpoint.Device{Name: l.Name, UUID: l.UUID, BaselineBytes: &l.BaselineBytes}, usage)
	return !left
}
