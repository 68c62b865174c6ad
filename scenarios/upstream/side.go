package upstream

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	healthv1 "k8s.io/kubelet/pkg/apis/dra-health/v1"
	drav1 "k8s.io/kubelet/pkg/apis/dra/v1"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/dra-lab/dra-lab/driver/draconn/plugintest"
	"github.com/dra-lab/dra-lab/lab/cluster"
	"github.com/dra-lab/dra-lab/lab/kubesource"
	"github.com/dra-lab/dra-lab/scenarios/kubelets"
)

// Side is one kubelet, for one reproduction.
type Side struct {
	Version  string
	checkout *kubesource.Checkout // may be nil
	// The rest is zero at package level.
	Node      cluster.Node
	Client    kubernetes.Interface
	Namespace string // the side's own, another one each time
	lab       *cluster.Cluster
	image     string
	id        string
	undo      []func(context.Context) error
	undoFirst func(context.Context) error // may be nil
}

// Kubelet is the plugin manager of the side's version.
func (s *Side) Kubelet() kubelets.Kubelet {
	return kubelets.Kubelet{Version: s.Version, Checkout: s.checkout}
}

func (s *Side) close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	var all error
	if s.undoFirst != nil {
		all = s.undoFirst(ctx)
	}
	for i := len(s.undo) - 1; i >= 0; i-- {
		all = errors.Join(all, s.undo[i](ctx))
	}
	return all
}

// sharedOnNode is where nodes have the folder that they share with the host.
const sharedOnNode = "/var/lib/dra-lab/shared"

// registry is where kubelets look for plugins.
const registry = "/var/lib/kubelet/plugins_registry"

// Driver is a driver of the side's kubelet, served by this process.
type Driver struct {
	*plugintest.Server
	Name   string
	side   *Side
	class  string // the DeviceClass that selects its devices; empty: Name
	config plugintest.Config
	host   string // socket
	link   string // the same, on the node, where the kubelet looks for it

	mu         sync.Mutex
	calls      []string
	registered chan struct{} // closed when the kubelet has registered it
}

// Calls lists the calls of the kubelet per claim, oldest first: "prepare NAME",
// "unprepare NAME".
func (d *Driver) Calls() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return append([]string(nil), d.calls...)
}

func (d *Driver) called(what string, claim *drav1.Claim) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.calls = append(d.calls, what+" "+claim.Name)
}

// StartDriver starts a driver, has the kubelet register it, and publishes one
// device, gpu-0, with a DeviceClass that selects it. In c, Info is filled in.
// suffix tells several drivers of a reproduction apart.
func (s *Side) StartDriver(ctx context.Context, suffix string, c plugintest.Config) (*Driver, error) {
	d, err := s.instance(ctx, "u"+s.id+suffix+".lab.example", s.id+suffix, c)
	if err != nil {
		return nil, err
	}
	return d, d.publish(ctx)
}

// Successor starts another instance of the driver beside it, as a rolling update
// does: the name and the devices are the same, the sockets its own.
func (d *Driver) Successor(ctx context.Context, c plugintest.Config) (*Driver, error) {
	return d.side.instance(ctx, d.Name, strings.TrimSuffix(path.Base(d.link), regSuffix)+"-next", c)
}

const regSuffix = "-reg.sock"

// instance starts an instance of a driver and has the kubelet register it. tag
// tells the instances on a node apart.
func (s *Side) instance(ctx context.Context, name, tag string, c plugintest.Config) (*Driver, error) {
	short := tag + "-" + s.Version + ".sock"
	onNode := path.Join(sharedOnNode, "u", short)
	d := &Driver{
		Name: name, side: s,
		host:       filepath.Join(s.lab.SharedDir(), "u", short),
		link:       path.Join(registry, tag+regSuffix),
		registered: make(chan struct{}),
	}
	services := c.Services
	if services == nil {
		services = plugintest.Services()
	}
	c.Info = &registration.PluginInfo{Type: registration.DRAPlugin, Name: name, Endpoint: onNode, SupportedVersions: services}
	var once sync.Once
	c.Notified = func(status *registration.RegistrationStatus) {
		if status.PluginRegistered {
			once.Do(func() { close(d.registered) })
		}
	}
	prepare, unprepare := c.Prepare, c.Unprepare
	c.Prepare = func(ctx context.Context, claim *drav1.Claim) ([]*drav1.Device, error) {
		d.called("prepare", claim)
		if prepare != nil {
			return prepare(ctx, claim)
		}
		return []*drav1.Device{d.Device()}, nil
	}
	c.Unprepare = func(ctx context.Context, claim *drav1.Claim) error {
		if claim.Namespace != s.Namespace {
			return nil // of a run that was killed: the kubelet has not forgotten it
		}
		d.called("unprepare", claim)
		if unprepare != nil {
			return unprepare(ctx, claim)
		}
		return nil
	}
	d.config = c
	if err := os.MkdirAll(filepath.Dir(d.host), 0o755); err != nil {
		return nil, fmt.Errorf("make folder for sockets: %w", err)
	}
	if err := d.Start(); err != nil {
		return nil, err
	}
	s.undo = append(s.undo, func(ctx context.Context) error {
		err := d.Deregister(ctx)
		d.Kill()
		return errors.Join(err, os.RemoveAll(d.host))
	})
	if _, err := s.Node.Exec(ctx, nil, "ln", "-sfn", onNode, d.link); err != nil {
		return nil, fmt.Errorf("announce driver %q: %w", name, err)
	}
	select {
	case <-d.registered:
		return d, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("wait for registration of driver %q: %w", name, context.Cause(ctx))
	}
}

// Deregister takes away what the kubelet found the driver by. The kubelet notices
// that within a second or two and forgets the driver.
func (d *Driver) Deregister(ctx context.Context) error {
	if _, err := d.side.Node.Exec(ctx, nil, "rm", "-f", d.link); err != nil {
		return fmt.Errorf("deregister driver %q: %w", d.Name, err)
	}
	return nil
}

// Start starts the driver's process again after Kill.
func (d *Driver) Start() error {
	server, err := plugintest.Start(d.host, d.config)
	if err != nil {
		return fmt.Errorf("start driver %q: %w", d.Name, err)
	}
	d.Server = server
	return nil
}

// Device is the driver's device as prepare returns it, without a CDI device:
// there is nothing to put into containers.
func (d *Driver) Device() *drav1.Device {
	return &drav1.Device{PoolName: d.pool(), DeviceName: "gpu-0", RequestNames: []string{"gpu"}}
}

func (d *Driver) pool() string { return d.side.Node.Name() }

// slice is the name of the driver's ResourceSlice.
func (d *Driver) slice() string { return d.side.Node.Name() + "-" + d.Name }

// Report reports the health of the driver's device, now and to streams that
// begin later, with the time for which it holds.
func (d *Driver) Report(health healthv1.HealthStatus, timeout time.Duration) {
	d.SetHealth(&healthv1.DeviceHealth{
		Device:                    &healthv1.DeviceIdentifier{PoolName: d.pool(), DeviceName: "gpu-0"},
		Health:                    health,
		HealthCheckTimeoutSeconds: int64(timeout / time.Second),
	})
}

func (d *Driver) publish(ctx context.Context) error {
	s := d.side
	node := s.Node.Name()
	slice := &resourcev1.ResourceSlice{
		ObjectMeta: metav1.ObjectMeta{Name: d.slice()},
		Spec: resourcev1.ResourceSliceSpec{
			Driver: d.Name, NodeName: &node,
			Pool:    resourcev1.ResourcePool{Name: node, Generation: 1, ResourceSliceCount: 1},
			Devices: []resourcev1.Device{{Name: "gpu-0"}},
		},
	}
	d.class = slice.Name // the side's own, as it can be removed without the others
	class := &resourcev1.DeviceClass{
		ObjectMeta: metav1.ObjectMeta{Name: d.class},
		Spec: resourcev1.DeviceClassSpec{Selectors: []resourcev1.DeviceSelector{{
			CEL: &resourcev1.CELDeviceSelector{Expression: fmt.Sprintf("device.driver == %q", d.Name)},
		}}},
	}
	// A run that was killed leaves the same behind.
	classes := s.Client.ResourceV1().DeviceClasses()
	if _, err := classes.Create(ctx, class, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create DeviceClass %q: %w", d.class, err)
	}
	slices := s.Client.ResourceV1().ResourceSlices()
	if err := slices.Delete(ctx, slice.Name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("replace ResourceSlice %q: %w", slice.Name, err)
	}
	if _, err := slices.Create(ctx, slice, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("create ResourceSlice %q: %w", slice.Name, err)
	}
	s.undo = append(s.undo, func(ctx context.Context) error {
		for _, remove := range []func(context.Context, string, metav1.DeleteOptions) error{slices.Delete, classes.Delete} {
			if err := remove(ctx, slice.Name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
				return err
			}
		}
		return nil
	})
	return nil
}

// Claim creates a ResourceClaim for one device of each driver.
func (s *Side) Claim(ctx context.Context, name string, drivers ...*Driver) (*resourcev1.ResourceClaim, error) {
	claim, err := s.Client.ResourceV1().ResourceClaims(s.Namespace).Create(ctx, &resourcev1.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: claimSpec(drivers),
	}, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("create claim %q: %w", name, err)
	}
	return claim, nil
}

// Template creates a ResourceClaimTemplate for one device of each driver.
func (s *Side) Template(ctx context.Context, name string, drivers ...*Driver) error {
	_, err := s.Client.ResourceV1().ResourceClaimTemplates(s.Namespace).Create(ctx, &resourcev1.ResourceClaimTemplate{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: resourcev1.ResourceClaimTemplateSpec{Spec: claimSpec(drivers)},
	}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("create claim template %q: %w", name, err)
	}
	return nil
}

func claimSpec(drivers []*Driver) resourcev1.ResourceClaimSpec {
	var spec resourcev1.ResourceClaimSpec
	for i, d := range drivers {
		name := "gpu"
		if i > 0 {
			name += fmt.Sprint(i)
		}
		spec.Devices.Requests = append(spec.Devices.Requests, resourcev1.DeviceRequest{
			Name: name, Exactly: &resourcev1.ExactDeviceRequest{DeviceClassName: cmp.Or(d.class, d.Name)},
		})
	}
	return spec
}

// podClaim is the name of the claim in a Pod.
const podClaim = "gpus"

// Pod starts a Pod on the side's node. Its container waits to be stopped.
func (s *Side) Pod(ctx context.Context, name string, claim corev1.PodResourceClaim, edit ...func(*corev1.Pod)) (*corev1.Pod, error) {
	claim.Name = podClaim
	grace := int64(1)
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{
			NodeSelector:                  map[string]string{corev1.LabelHostname: s.Node.Name()},
			TerminationGracePeriodSeconds: &grace,
			ResourceClaims:                []corev1.PodResourceClaim{claim},
			Containers: []corev1.Container{{
				Name: "main", Image: s.image, ImagePullPolicy: corev1.PullNever,
				Resources: corev1.ResourceRequirements{Claims: []corev1.ResourceClaim{{Name: podClaim}}},
			}},
		},
	}
	for _, e := range edit {
		e(pod)
	}
	pod, err := s.Client.CoreV1().Pods(s.Namespace).Create(ctx, pod, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("create Pod %q: %w", name, err)
	}
	return pod, nil
}

// Delete asks for a Pod's deletion.
func (s *Side) Delete(ctx context.Context, pod string) error {
	if err := s.Client.CoreV1().Pods(s.Namespace).Delete(ctx, pod, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete Pod %q: %w", pod, err)
	}
	return nil
}

// AwaitPod waits until a Pod is as it should be; it is nil when there is none.
func (s *Side) AwaitPod(ctx context.Context, name, what string, is func(*corev1.Pod) bool) error {
	return s.awaitPod(ctx, name, what, is, func(context.Context) error { return nil })
}

// AwaitPoked is AwaitPod for what a kubelet says only when it syncs a Pod: it is
// made to do that about every second.
func (s *Side) AwaitPoked(ctx context.Context, name, what string, is func(*corev1.Pod) bool) error {
	var last time.Time
	return s.awaitPod(ctx, name, what, is, func(ctx context.Context) error {
		if time.Since(last) < time.Second {
			return nil
		}
		last = time.Now()
		if err := s.Poke(ctx, name); !apierrors.IsNotFound(err) {
			return err
		}
		return nil
	})
}

// Poke changes an annotation of a Pod, so that its kubelet syncs it.
func (s *Side) Poke(ctx context.Context, pod string) error {
	patch := fmt.Appendf(nil, `{"metadata":{"annotations":{"lab.example/poked":%q}}}`, time.Now().Format(time.RFC3339Nano))
	_, err := s.Client.CoreV1().Pods(s.Namespace).Patch(ctx, pod, types.MergePatchType, patch, metav1.PatchOptions{})
	if err != nil {
		return fmt.Errorf("annotate Pod %q: %w", pod, err)
	}
	return nil
}

func (s *Side) awaitPod(ctx context.Context, name, what string, is func(*corev1.Pod) bool, first func(context.Context) error) error {
	last := "no Pod"
	err := until(ctx, func() (bool, error) {
		if err := first(ctx); err != nil {
			return false, err
		}
		pod, err := s.Client.CoreV1().Pods(s.Namespace).Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			last = "no Pod"
			return is(nil), nil
		}
		if err != nil {
			return false, fmt.Errorf("look at Pod %q: %w", name, err)
		}
		last = string(pod.Status.Phase)
		for _, c := range pod.Status.Conditions {
			if c.Status == corev1.ConditionFalse && c.Message != "" {
				last += ": " + c.Message
			}
		}
		return is(pod), nil
	})
	if err != nil {
		return fmt.Errorf("wait for Pod %q %s: %w (last: %s)", name, what, err, last)
	}
	return nil
}

func running(p *corev1.Pod) bool { return p != nil && p.Status.Phase == corev1.PodRunning }
func gone(p *corev1.Pod) bool    { return p == nil }

// AwaitCalls waits until the driver's calls are as they should be.
func (s *Side) AwaitCalls(ctx context.Context, d *Driver, what string, is func([]string) bool) error {
	if err := until(ctx, func() (bool, error) { return is(d.Calls()), nil }); err != nil {
		return fmt.Errorf("wait for %s: %w (calls: %s)", what, err, strings.Join(d.Calls(), ", "))
	}
	return nil
}

// Journal returns the kubelet's log lines since a time that have a text.
func (s *Side) Journal(ctx context.Context, since time.Time, text string) ([]string, error) {
	out, err := s.Node.Exec(ctx, nil, "journalctl", "-u", "kubelet", "-o", "cat", fmt.Sprintf("--since=@%d", since.Unix()))
	if err != nil {
		return nil, fmt.Errorf("read kubelet's log on %q: %w", s.Node.Name(), err)
	}
	var found []string
	for line := range strings.Lines(string(out)) {
		if strings.Contains(line, text) {
			found = append(found, strings.TrimSpace(line))
		}
	}
	return found, nil
}

// within gives a step that need not happen its own patience and says whether it
// did.
func within(ctx context.Context, patience time.Duration, step func(context.Context) error) (bool, error) {
	limited, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	err := step(limited)
	if err != nil && limited.Err() != nil && ctx.Err() == nil {
		return false, nil
	}
	return err == nil, err
}

// until asks again and again until the answer is yes, an error, or ctx ends.
func until(ctx context.Context, ask func() (bool, error)) error {
	const pause = 100 * time.Millisecond
	tick := time.NewTicker(pause)
	defer tick.Stop()
	for {
		// A client refuses to begin what cannot be done in time, with an error
		// of its own.
		if end, ok := ctx.Deadline(); ok && time.Until(end) < pause/2 {
			<-ctx.Done()
			return context.Cause(ctx)
		}
		ok, err := ask()
		if ctx.Err() != nil {
			return context.Cause(ctx) // also the reason for err
		}
		if ok || err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// pauseImage finds the image that every node has for its Pods' sandboxes: it
// does nothing, for as long as one likes.
func pauseImage(ctx context.Context, n cluster.Node) (string, error) {
	var out []byte
	var last error
	if err := until(ctx, func() (bool, error) {
		out, last = n.Exec(ctx, nil, "crictl", "images", "-o", "json")
		return last == nil, nil
	}); err != nil {
		return "", fmt.Errorf("list images of %q: %w (last: %w)", n.Name(), err, last)
	}
	var list struct {
		Images []struct {
			RepoTags []string `json:"repoTags"`
		} `json:"images"`
	}
	if err := json.Unmarshal(out, &list); err != nil {
		return "", fmt.Errorf("list images of %q: %w", n.Name(), err)
	}
	for _, i := range list.Images {
		for _, tag := range i.RepoTags {
			if strings.Contains(tag, "/pause:") {
				return tag, nil
			}
		}
	}
	return "", fmt.Errorf("find a pause image on %q", n.Name())
}
