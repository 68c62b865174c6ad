package plugin

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"github.com/dra-lab/dra-lab/driver/api"
	"github.com/dra-lab/dra-lab/driver/internal/cdi"
	"github.com/dra-lab/dra-lab/driver/internal/claim"
	"github.com/dra-lab/dra-lab/driver/internal/fabric"
	"github.com/dra-lab/dra-lab/driver/internal/slots"
)

// attachedDir has the sockets of the plugin for network-attached GPUs, in
// PluginDir.
const attachedDir = "fabric"

// attached is the plugin for network-attached GPUs. To the kubelet it is a
// driver of its own; it keeps no state besides that of the slots.
type attached struct {
	driver *Driver
	slots  *slots.Slots
}

// startAttached registers the plugin with the kubelet.
func (d *Driver) startAttached(ctx context.Context) (*kubeletplugin.Helper, error) {
	dir := filepath.Join(d.cfg.PluginDir, attachedDir)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("start plugin for network-attached GPUs: %w", err)
	}
	registrar := filepath.Join(d.cfg.RegistrarDir, kubeletplugin.RollingUpdateRegistrarSocketFile(d.cfg.RegistrarDir, api.FabricDriverName, d.cfg.PodUID))
	if err := d.sweepSockets(ctx, api.FabricDriverName, dir, registrar); err != nil {
		return nil, err
	}
	a := &attached{driver: d, slots: d.cfg.Slots}
	if err := a.sweep(ctx); err != nil {
		return nil, fmt.Errorf("start plugin for network-attached GPUs: %w", err)
	}
	helper, err := kubeletplugin.Start(ctx, a,
		kubeletplugin.DriverName(api.FabricDriverName),
		kubeletplugin.NodeName(d.cfg.Node),
		kubeletplugin.KubeClient(d.cfg.Client),
		kubeletplugin.PluginDataDirectoryPath(dir),
		kubeletplugin.RegistrarDirectoryPath(d.cfg.RegistrarDir),
		kubeletplugin.RollingUpdate(d.cfg.PodUID),
		kubeletplugin.Serialize(false),
	)
	if err != nil {
		return nil, fmt.Errorf("start plugin for network-attached GPUs: %w", err)
	}
	return helper, nil
}

// sweep removes the CDI specs of claims for which nothing is attached. There
// are none unless somebody has taken an attachment away by hand.
func (a *attached) sweep(ctx context.Context) error {
	all, err := a.slots.List()
	if err != nil {
		return err
	}
	prepared, err := a.slots.Prepared()
	if err != nil {
		return err
	}
	known := map[string]bool{}
	for _, one := range all {
		known[one.ClaimUID] = true
	}
	for _, uid := range prepared {
		if known[uid] || claim.ValidateUID(uid) != nil {
			continue
		}
		if err := a.slots.Unprepare(ctx, uid); err != nil {
			return err
		}
		a.driver.report(api.Report{Step: api.StepSwept, ClaimUID: uid, Detail: "CDI spec of a claim without an attached device"})
	}
	return nil
}

// PrepareResourceClaims gives claims the devices that are attached for them.
func (a *attached) PrepareResourceClaims(ctx context.Context, claims []*resourceapi.ResourceClaim) (map[types.UID]kubeletplugin.PrepareResult, error) {
	results := make(map[types.UID]kubeletplugin.PrepareResult, len(claims))
	for _, c := range claims {
		w := a.driver.begin("prepare", api.StepPrepareStarted, c.UID, c.Namespace, c.Name)
		devices, err := a.prepare(ctx, c, w)
		w.finish(api.StepPrepared, api.StepPrepareFailed, err)
		if err != nil {
			klog.FromContext(ctx).Error(err, "Prepare claim", "claim", klog.KObj(c), "uid", c.UID)
		}
		results[c.UID] = kubeletplugin.PrepareResult{Devices: devices, Err: err}
	}
	return results, nil
}

func (a *attached) prepare(ctx context.Context, c *resourceapi.ResourceClaim, w *work) ([]kubeletplugin.Device, error) {
	if err := claim.ValidateUID(string(c.UID)); err != nil {
		return nil, err
	}
	if c.Status.Allocation == nil {
		return nil, fmt.Errorf("claim is not allocated")
	}
	var devices []cdi.Device
	var prepared []kubeletplugin.Device
	var names []string
	for _, r := range c.Status.Allocation.Devices.Results {
		switch {
		case r.Driver != api.FabricDriverName:
			continue
		case r.Pool != api.FabricPool:
			return nil, fmt.Errorf("request %q: device %q: pool is %q, want %q", r.Request, r.Device, r.Pool, api.FabricPool)
		case ptr.Deref(r.AdminAccess, false):
			return nil, fmt.Errorf("request %q: device %q: admin access to a network-attached device is not supported", r.Request, r.Device)
		}
		devices = append(devices, cdi.Device{Request: r.Request, Name: r.Device, UUID: fabric.UUID(r.Device), Edits: cdi.Edits{
			Env: []string{api.EnvSimulated + "=true"},
			Mounts: []cdi.Mount{{
				Node:      a.slots.Processes(r.Device),
				Container: filepath.Join(api.ContainerHardwareDir, r.Device, api.ProcessesName),
				Writable:  true,
			}},
		}})
		prepared = append(prepared, kubeletplugin.Device{Requests: []string{r.Request}, PoolName: r.Pool, DeviceName: r.Device})
		names = append(names, r.Device)
	}
	if len(devices) == 0 {
		return nil, nil
	}
	w.claim.Device = strings.Join(names, ",")
	ids, err := a.slots.Prepare(ctx, string(c.UID), devices)
	if err != nil {
		return nil, err
	}
	for i := range prepared {
		prepared[i].CDIDeviceIDs = []string{ids[i]}
	}
	return prepared, nil
}

// UnprepareResourceClaims lets the devices be detached. It does not detach them:
// the claim may be prepared here again.
func (a *attached) UnprepareResourceClaims(ctx context.Context, claims []kubeletplugin.NamespacedObject) (map[types.UID]error, error) {
	results := make(map[types.UID]error, len(claims))
	for _, c := range claims {
		w := a.driver.begin("unprepare", api.StepUnprepareStart, c.UID, c.Namespace, c.Name)
		err := a.slots.Unprepare(ctx, string(c.UID))
		w.finish(api.StepUnprepared, api.StepUnprepareFailed, err)
		results[c.UID] = err
	}
	return results, nil
}

// HandleError is the helper's way to tell what goes wrong in the background.
func (a *attached) HandleError(ctx context.Context, err error, msg string) {
	a.driver.HandleError(ctx, err, msg)
}

// WatchHealthStatus says that nobody looks at these devices.
func (a *attached) WatchHealthStatus(context.Context, chan<- kubeletplugin.DeviceHealthReport) error {
	return kubeletplugin.ErrHealthNotSupported
}
