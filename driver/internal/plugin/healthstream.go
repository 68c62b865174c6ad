package plugin

import (
	"context"
	"time"

	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/klog/v2"

	"github.com/dra-lab/dra-lab/driver/api"
)

// WatchHealthStatus sends the health of the devices: all of them at first, and
// when one changes and at intervals those that were verified lately, or that are
// known not to answer. Others that nobody verified are not mentioned then, so
// that the kubelet comes to call them unknown.
func (d *Driver) WatchHealthStatus(ctx context.Context, reports chan<- kubeletplugin.DeviceHealthReport) error {
	changed, cancel, err := d.monitor.Subscribe()
	if err != nil {
		return err
	}
	defer cancel()
	d.watchers.Add(1)
	defer d.watchers.Add(-1)
	klog.FromContext(ctx).V(2).Info("Health is watched")
	d.report(api.Report{Step: api.StepHealthWatch})

	resend := time.NewTicker(d.cfg.ResendEvery)
	defer resend.Stop()
	faults := newHealthFaults(d.cfg.Faults)
	defer faults.stop()
	tell, all := true, true
	for {
		var report kubeletplugin.DeviceHealthReport
		if tell {
			report = d.healthReport(all)
		}
		due, err := faults.pass(ctx, report)
		if err != nil {
			return err
		}
		for _, report := range due {
			select {
			case <-ctx.Done():
				return nil
			case reports <- report:
				d.metrics.HealthReports.Inc()
			}
		}
		tell, all = true, false
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		case <-resend.C:
		case <-faults.look:
			tell = faults.recovered()
			all = tell
		}
	}
}

// healthReport is about all devices, or about those that were verified lately.
func (d *Driver) healthReport(all bool) kubeletplugin.DeviceHealthReport {
	now := time.Now()
	var report kubeletplugin.DeviceHealthReport
	for _, s := range d.monitor.Snapshot() {
		fresh := d.monitor.Fresh(s, now)
		silent := s.Health == api.HealthUnknown
		if !fresh && !all && !silent {
			continue
		}
		h := kubeletplugin.DeviceHealth{
			PoolName: d.cfg.Node, DeviceName: s.Name,
			Health: kubeletplugin.HealthStatus(s.Health), LastUpdated: s.Verified, Message: s.Message,
		}
		if !fresh && !silent {
			h.Health, h.Message = kubeletplugin.HealthStatusUnknown, "not verified yet"
		}
		report.Devices = append(report.Devices, h)
		// What is wrong with a GPU is wrong with every part of it.
		for _, part := range d.whole(s.Index).Parts() {
			h.DeviceName = part.Name
			report.Devices = append(report.Devices, h)
		}
	}
	return report
}
