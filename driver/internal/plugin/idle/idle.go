// Package idle is a DRA plugin on the same helper as the driver that does
// nothing: what a call to it takes is the price of the kubelet, the helper and
// the API server, which every driver pays. The driver is measured against it.
package idle

import (
	"context"
	"fmt"
	"strconv"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceslice"
)

// Config is for Start. All fields are required.
type Config struct {
	Driver string // name of the driver
	Node   string // also the name of the pool
	Client kubernetes.Interface
	// PluginDir and RegistrarDir must exist.
	PluginDir, RegistrarDir string
	// OnError is told what goes wrong in the background.
	OnError func(error)
}

// Start brings the plugin up. The caller has to Stop the helper.
func Start(ctx context.Context, cfg Config) (*kubeletplugin.Helper, error) {
	helper, err := kubeletplugin.Start(ctx, plugin{onError: cfg.OnError},
		kubeletplugin.DriverName(cfg.Driver),
		kubeletplugin.NodeName(cfg.Node),
		kubeletplugin.KubeClient(cfg.Client),
		kubeletplugin.PluginDataDirectoryPath(cfg.PluginDir),
		kubeletplugin.RegistrarDirectoryPath(cfg.RegistrarDir),
		kubeletplugin.Serialize(false), // as the driver has it
	)
	if err != nil {
		return nil, fmt.Errorf("start idle plugin: %w", err)
	}
	return helper, nil
}

// registeredPoll is how often Publish looks whether the kubelet has come.
const registeredPoll = 50 * time.Millisecond

// Publish waits until the kubelet has registered the plugin, as long as ctx
// allows, and then publishes a number of devices: who finds them may use them.
func Publish(ctx context.Context, helper *kubeletplugin.Helper, node string, devices int) error {
	for {
		if status := helper.RegistrationStatus(); status != nil && status.PluginRegistered {
			break
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for the kubelet: %w", context.Cause(ctx))
		case <-time.After(registeredPoll):
		}
	}
	if err := helper.PublishResources(ctx, pool(node, devices)); err != nil {
		return fmt.Errorf("publish devices: %w", err)
	}
	return nil
}

// pool has devices of which nothing but the name is known.
func pool(node string, devices int) resourceslice.DriverResources {
	var pool resourceslice.Pool
	for start := 0; start < devices || start == 0; start += resourceapi.ResourceSliceMaxDevices {
		var slice resourceslice.Slice
		for i := start; i < min(devices, start+resourceapi.ResourceSliceMaxDevices); i++ {
			slice.Devices = append(slice.Devices, resourceapi.Device{Name: "idle-" + strconv.Itoa(i)})
		}
		pool.Slices = append(pool.Slices, slice)
	}
	return resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{node: pool}}
}

type plugin struct{ onError func(error) }

// PrepareResourceClaims gives every claim what it was allocated, and a container
// nothing.
func (plugin) PrepareResourceClaims(_ context.Context, claims []*resourceapi.ResourceClaim) (map[types.UID]kubeletplugin.PrepareResult, error) {
	results := make(map[types.UID]kubeletplugin.PrepareResult, len(claims))
	for _, c := range claims {
		results[c.UID] = kubeletplugin.PrepareResult{}
	}
	return results, nil
}

// UnprepareResourceClaims has nothing to undo.
func (plugin) UnprepareResourceClaims(_ context.Context, claims []kubeletplugin.NamespacedObject) (map[types.UID]error, error) {
	results := make(map[types.UID]error, len(claims))
	for _, c := range claims {
		results[c.UID] = nil
	}
	return results, nil
}

// HandleError passes the error on.
func (p plugin) HandleError(_ context.Context, err error, msg string) {
	p.onError(fmt.Errorf("%s: %w", msg, err))
}

// WatchHealthStatus says that there is no health to watch.
func (plugin) WatchHealthStatus(context.Context, chan<- kubeletplugin.DeviceHealthReport) error {
	return kubeletplugin.ErrHealthNotSupported
}
