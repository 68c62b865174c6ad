package live

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"sync"
	"time"

	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	healthv1 "k8s.io/kubelet/pkg/apis/dra-health/v1"
	drav1 "k8s.io/kubelet/pkg/apis/dra/v1"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/dra-lab/dra-lab/driver/draconn/plugintest"
	"github.com/dra-lab/dra-lab/lab/cluster"
)

const (
	driverName = "live.lab.example"
	registry   = "/var/lib/kubelet/plugins_registry"
	deviceNum  = 3 // one for each Pod

	// resendEvery is well within the 30 s for which a report holds.
	resendEvery = 10 * time.Second
)

// driver is the driver of one node. Its methods are for one goroutine, except
// for those that say otherwise.
type driver struct {
	node   cluster.Node
	client kubernetes.Interface
	// Sockets, as this machine and as the node have them.
	serviceHost, serviceNode     string
	registrarHost, registrarNode string

	registrar  *plugintest.Server // nil: it does not run
	controller *resourceslice.Controller
	registered chan time.Time // when the kubelet said so

	mu       sync.Mutex
	service  *plugintest.Server // nil: it does not run
	health   []*healthv1.DeviceHealth
	prepared []string // claims, as often as they were
}

// newDriver makes the driver of a node. tag tells its sockets in the shared
// folder from those of other nodes; it is short, as a socket's address has to be.
func newDriver(node cluster.Node, client kubernetes.Interface, shared, tag string) *driver {
	host := func(name string) string { return filepath.Join(shared, "u", name) }
	onNode := func(name string) string { return path.Join(cluster.SharedDir, "u", name) }
	return &driver{
		node: node, client: client,
		serviceHost: host(tag), serviceNode: onNode(tag),
		registrarHost: host(tag + "-reg"), registrarNode: onNode(tag + "-reg"),
		registered: make(chan time.Time, 16),
	}
}

// start starts what of the driver does not run.
func (d *driver) start() error {
	if err := os.MkdirAll(filepath.Dir(d.serviceHost), 0o755); err != nil {
		return fmt.Errorf("make folder for sockets: %w", err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.service == nil {
		server, err := plugintest.Start(d.serviceHost, plugintest.Config{Prepare: d.prepare})
		if err != nil {
			return fmt.Errorf("start driver: %w", err)
		}
		server.SetHealth(d.health...)
		d.service = server
	}
	if d.registrar == nil {
		server, err := plugintest.Start(d.registrarHost, plugintest.Config{
			Services: []string{},
			Info: &registration.PluginInfo{
				Type: registration.DRAPlugin, Name: driverName, Endpoint: d.serviceNode, SupportedVersions: plugintest.Services(),
			},
			Notified: func(s *registration.RegistrationStatus) {
				if s.PluginRegistered {
					select {
					case d.registered <- time.Now():
					default: // nobody has waited for so many
					}
				}
			},
		})
		if err != nil {
			return fmt.Errorf("start registrar: %w", err)
		}
		d.registrar = server
	}
	return nil
}

// killService kills the process with the services.
func (d *driver) killService() {
	d.mu.Lock()
	service := d.service
	d.service = nil
	d.mu.Unlock()
	if service != nil {
		service.Kill()
	}
}

// kill kills all of the driver.
func (d *driver) kill() {
	d.controller.Stop()
	d.controller = nil
	d.killService()
	if d.registrar != nil {
		d.registrar.Kill()
		d.registrar = nil
	}
}

// announce has the kubelet find the driver. It is the only thing of it that lies
// on the node itself.
func (d *driver) announce(ctx context.Context) error {
	if _, err := d.node.Exec(ctx, nil, "ln", "-sfn", d.registrarNode, d.link()); err != nil {
		return fmt.Errorf("announce driver: %w", err)
	}
	return nil
}

func (d *driver) link() string { return path.Join(registry, driverName+"-reg.sock") }

// awaitRegistration waits for a registration since a moment.
func (d *driver) awaitRegistration(ctx context.Context, since time.Time) (time.Time, error) {
	for {
		select {
		case at := <-d.registered:
			if at.After(since) {
				return at, nil
			}
		case <-ctx.Done():
			return time.Time{}, fmt.Errorf("wait for registration: %w", context.Cause(ctx))
		}
	}
}

// publish starts the controller that publishes the driver's devices.
func (d *driver) publish(ctx context.Context) (err error) {
	var devices []resourcev1.Device
	for i := range deviceNum {
		devices = append(devices, resourcev1.Device{Name: deviceName(i)})
	}
	d.controller, err = resourceslice.StartController(context.WithoutCancel(ctx), resourceslice.Options{
		DriverName: driverName, KubeClient: d.client,
		Owner: &resourceslice.Owner{APIVersion: "v1", Kind: "Node", Name: d.node.Name()},
		Resources: &resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{
			d.node.Name(): {Slices: []resourceslice.Slice{{Devices: devices}}},
		}},
	})
	if err != nil {
		return fmt.Errorf("publish devices: %w", err)
	}
	return nil
}

func deviceName(i int) string { return fmt.Sprintf("gpu-%d", i) }

// slices selects what the driver has published on its node.
func (d *driver) slices() string {
	return fields.Set{
		resourcev1.ResourceSliceSelectorDriver: driverName, resourcev1.ResourceSliceSelectorNodeName: d.node.Name(),
	}.String()
}

// report reports the health of all devices, now and to streams that begin later.
func (d *driver) report(health healthv1.HealthStatus) {
	var devices []*healthv1.DeviceHealth
	for i := range deviceNum {
		devices = append(devices, &healthv1.DeviceHealth{
			Device: &healthv1.DeviceIdentifier{PoolName: d.node.Name(), DeviceName: deviceName(i)},
			Health: health,
		})
	}
	d.say(devices)
}

// silence reports nothing any more.
func (d *driver) silence() { d.say(nil) }

func (d *driver) say(devices []*healthv1.DeviceHealth) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.health = devices
	if d.service != nil {
		d.service.SetHealth(devices...)
	}
}

// resend repeats the latest report until ctx ends, as drivers have to: a report
// holds for 30 s. It is for a goroutine of its own.
func (d *driver) resend(ctx context.Context) {
	tick := time.NewTicker(resendEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		d.mu.Lock()
		if d.service != nil && d.health != nil {
			d.service.SetHealth(d.health...)
		}
		d.mu.Unlock()
	}
}

// prepare answers with the device that the scheduler has chosen.
func (d *driver) prepare(ctx context.Context, claim *drav1.Claim) ([]*drav1.Device, error) {
	d.mu.Lock()
	d.prepared = append(d.prepared, claim.Name)
	d.mu.Unlock()
	c, err := d.client.ResourceV1().ResourceClaims(claim.Namespace).Get(ctx, claim.Name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	if c.Status.Allocation == nil {
		return nil, errors.New("not allocated")
	}
	var devices []*drav1.Device
	for _, r := range c.Status.Allocation.Devices.Results {
		devices = append(devices, &drav1.Device{PoolName: r.Pool, DeviceName: r.Device, RequestNames: []string{r.Request}})
	}
	return devices, nil
}

// prepares is how often claims have been prepared so far.
func (d *driver) prepares() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.prepared)
}

// remove takes all of the driver away.
func (d *driver) remove(ctx context.Context) error {
	_, err := d.node.Exec(ctx, nil, "rm", "-f", d.link())
	d.kill()
	return errors.Join(err, os.RemoveAll(d.serviceHost), os.RemoveAll(d.registrarHost),
		d.client.ResourceV1().ResourceSlices().DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{FieldSelector: d.slices()}))
}
