package plugin_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/klog/v2"
	drav1 "k8s.io/kubelet/pkg/apis/dra/v1"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/dra-lab/dra-lab/driver/api"
	"github.com/dra-lab/dra-lab/driver/draconn"
	"github.com/dra-lab/dra-lab/driver/draconn/kubelettest"
	"github.com/dra-lab/dra-lab/driver/internal/gpu"
	"github.com/dra-lab/dra-lab/driver/internal/gpu/simulated"
	"github.com/dra-lab/dra-lab/driver/internal/plugin"
	"github.com/dra-lab/dra-lab/driver/internal/report"
)

const nodeName = "node-1"

// machine is a node: its directories and hardware outlive every driver on it.
type machine struct {
	root   string
	client *fake.Clientset
}

func newMachine(t testing.TB) *machine {
	t.Helper()
	// Not t.TempDir: the path of a socket has at most 107 bytes.
	root, err := os.MkdirTemp("", "m")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(root); err != nil {
			t.Error(err)
		}
	})
	m := &machine{root: root}
	for _, dir := range []string{m.pluginDir(), m.registrarDir(), m.cdiDir()} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	m.client = newClient()
	return m
}

func (m *machine) pluginDir() string    { return filepath.Join(m.root, "p") }
func (m *machine) registrarDir() string { return filepath.Join(m.root, "r") }
func (m *machine) cdiDir() string       { return filepath.Join(m.root, "cdi") }
func (m *machine) hardwareDir() string  { return filepath.Join(m.root, "hw") }

// inventory gives the node a number of GPUs.
func (m *machine) inventory(t testing.TB, count int) {
	t.Helper()
	m.writeInventory(t, fmt.Sprintf(`{"gpus":[{"profile":"h100","count":%d}]}`, count))
}

func (m *machine) writeInventory(t testing.TB, content string) {
	t.Helper()
	if err := os.MkdirAll(m.hardwareDir(), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(m.hardwareDir(), api.InventoryName), []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

// newClient is an API server that makes names, as the real one does.
func newClient() *fake.Clientset {
	client := fake.NewClientset(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName, UID: "uid-of-the-node"}})
	var mu sync.Mutex
	count := 0
	client.PrependReactor("create", "resourceslices", func(action clienttesting.Action) (bool, runtime.Object, error) {
		slice := action.(clienttesting.CreateAction).GetObject().(*resourceapi.ResourceSlice)
		if slice.Name == "" {
			mu.Lock()
			count++
			slice.Name = fmt.Sprintf("%s%05d", slice.GenerateName, count)
			mu.Unlock()
		}
		return false, nil, nil
	})
	return client
}

// claim is what the scheduler has allocated: devices for one request.
func claim(name string, devices ...string) *resourceapi.ResourceClaim {
	c := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-" + name)}}
	c.Status.Allocation = &resourceapi.AllocationResult{}
	for _, d := range devices {
		c.Status.Allocation.Devices.Results = append(c.Status.Allocation.Devices.Results, resourceapi.DeviceRequestAllocationResult{
			Request: "gpu", Driver: api.DriverName, Pool: nodeName, Device: d,
		})
	}
	return c
}

func (m *machine) allocate(t testing.TB, claims ...*resourceapi.ResourceClaim) {
	t.Helper()
	for _, c := range claims {
		if _, err := m.client.ResourceV1().ResourceClaims(c.Namespace).Create(t.Context(), c, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
}

// hardware gives the node's simulated GPUs.
func (m *machine) hardware(onError func(error)) (*gpu.GPUs, *simulated.Simulator, error) {
	sim, err := simulated.New(simulated.Config{Node: nodeName, Dir: m.hardwareDir(), OnError: onError})
	if err != nil {
		return nil, nil, err
	}
	if ret := sim.Init(); ret != 0 {
		return nil, nil, ret
	}
	gpus, err := gpu.Discover(sim, sim.Sysfs())
	return gpus, sim, err
}

func (m *machine) config(gpus *gpu.GPUs, sim *simulated.Simulator) plugin.Config {
	return plugin.Config{
		Node: nodeName, Client: m.client, Hardware: gpus, Binder: sim, Partitions: gpus, Simulated: true,
		BootID: "boot-1", Version: "test",
		PluginDir: m.pluginDir(), RegistrarDir: m.registrarDir(), CDIDir: m.cdiDir(),
		LeftoverWait: 50 * time.Millisecond,
	}
}

// running is a driver process, as far as it can be one within the test.
type running struct {
	*plugin.Driver
	reports *lines
	done    chan error
	stop    func() // waits
	uid     types.UID
}

// start runs a driver on the machine until the test ends.
func (m *machine) start(t testing.TB, change func(*plugin.Config)) *running {
	t.Helper()
	gpus, sim, err := m.hardware(func(err error) { t.Log(err) })
	if err != nil {
		t.Fatal(err)
	}
	r := &running{reports: &lines{}, done: make(chan error, 1)}
	reporter := report.New(r.reports, nodeName)
	cfg := m.config(gpus, sim)
	cfg.Reports = reporter
	if change != nil {
		change(&cfg)
	}
	r.uid = cfg.PodUID
	ctx, cancel := context.WithCancelCause(klog.NewContext(context.Background(), klog.Logger{}))
	r.Driver, err = plugin.Open(ctx, cfg)
	if err != nil {
		t.Fatal(err)
	}
	finished := make(chan struct{})
	go func() {
		defer close(finished)
		r.done <- errors.Join(r.Run(ctx), r.Close())
		reporter.Close()
		if err := gpus.Close(); err != nil {
			t.Error(err)
		}
		sim.Shutdown()
	}()
	r.stop = sync.OnceFunc(func() {
		cancel(errors.New("test is over"))
		<-finished
	})
	t.Cleanup(r.stop)
	return r
}

// kubelet does what the kubelet does with a plugin.
type kubelet struct {
	*draconn.Conn
	info *registerapi.PluginInfo
}

// register waits for a registration socket, asks who is there and connects.
func (m *machine) register(t testing.TB, uid types.UID) *kubelet {
	t.Helper()
	return m.registerAt(t, m.registration(uid))
}

func (m *machine) registerAt(t testing.TB, path string) *kubelet {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	p, err := kubelettest.Register(ctx, path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return &kubelet{Conn: p.Conn, info: p.Info}
}

func (m *machine) registration(uid types.UID) string {
	name := api.DriverName + "-reg.sock"
	if uid != "" {
		name = api.DriverName + "-" + string(uid) + "-reg.sock"
	}
	return filepath.Join(m.registrarDir(), name)
}

func reference(name string) *drav1.Claim {
	return &drav1.Claim{Namespace: "default", Name: name, Uid: "uid-" + name}
}

// prepare asks for claims and gives the CDI IDs of each, or the error.
func (k *kubelet) prepare(t testing.TB, names ...string) (ids map[string][]string, failed map[string]string) {
	t.Helper()
	req := &drav1.NodePrepareResourcesRequest{}
	for _, n := range names {
		req.Claims = append(req.Claims, reference(n))
	}
	resp, err := k.Prepare(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	ids, failed = map[string][]string{}, map[string]string{}
	for _, n := range names {
		c, ok := resp.Claims["uid-"+n]
		switch {
		case !ok:
			t.Errorf("no answer for claim %s", n)
		case c.Error != "":
			failed[n] = c.Error
		default:
			for _, d := range c.Devices {
				ids[n] = append(ids[n], d.CdiDeviceIds...)
			}
		}
	}
	return ids, failed
}

func (k *kubelet) unprepare(t testing.TB, names ...string) {
	t.Helper()
	req := &drav1.NodeUnprepareResourcesRequest{}
	for _, n := range names {
		req.Claims = append(req.Claims, reference(n))
	}
	resp, err := k.Unprepare(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range names {
		if c, ok := resp.Claims["uid-"+n]; !ok || c.Error != "" {
			t.Errorf("unprepare claim %s: %v", n, c)
		}
	}
}

// specs lists the claims that have a CDI spec.
func (m *machine) specs(t testing.TB) []string {
	t.Helper()
	entries, err := os.ReadDir(m.cdiDir())
	if err != nil {
		t.Fatal(err)
	}
	names := []string{}
	for _, e := range entries {
		_, name, _ := strings.Cut(strings.TrimSuffix(e.Name(), ".json"), "_uid-")
		names = append(names, name)
	}
	return names
}

// reservations lists device/claim of everything that is bound.
func (m *machine) reservations(t testing.TB) []string {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(m.hardwareDir(), "gpu-*", "reservations", "*"))
	if err != nil {
		t.Fatal(err)
	}
	names := []string{}
	parts, err := filepath.Glob(filepath.Join(m.hardwareDir(), "gpu-3", "mig", "*", "reservations", "*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range parts {
		device := partitionOf(filepath.Join("mig", filepath.Base(filepath.Dir(filepath.Dir(p)))))
		names = append(names, device+"/"+strings.TrimPrefix(strings.TrimSuffix(filepath.Base(p), ".json"), "uid-"))
	}
	for _, p := range paths {
		device := filepath.Base(filepath.Dir(filepath.Dir(p)))
		names = append(names, device+"/"+strings.TrimPrefix(strings.TrimSuffix(filepath.Base(p), ".json"), "uid-"))
	}
	return names
}

// claims lists what the checkpoint has, a started claim with a question mark.
func (r *running) claims(t testing.TB) []string {
	t.Helper()
	s, err := r.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	names := []string{}
	for _, c := range s.Claims {
		name := c.Name
		if !c.Completed {
			name += "?"
		}
		names = append(names, name)
	}
	return names
}

// inject sets the faults of a GPU, from outside.
func (m *machine) inject(t testing.TB, device string, faults ...api.Fault) {
	t.Helper()
	data, err := api.Faults{Faults: faults}.Encode()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(m.hardwareDir(), device, api.FaultsName)
	if err := os.WriteFile(path+".tmp", data, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".tmp", path); err != nil {
		t.Fatal(err)
	}
}

// eventually waits for something that another goroutine is going to do.
func eventually(t testing.TB, what string, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !done(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("it never happened: %s", what)
		}
	}
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// lines collects what a driver writes on its standard output.
type lines struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

// all gives the reports so far.
func (l *lines) all() []api.Report {
	l.mu.Lock()
	defer l.mu.Unlock()
	var reports []api.Report
	for line := range bytes.Lines(l.buf.Bytes()) {
		if r, ok := api.ParseReport(line); ok {
			reports = append(reports, r)
		}
	}
	return reports
}

// steps gives the steps so far of a claim, or those of no claim.
func (l *lines) steps(claim string) []string {
	var steps []string
	for _, r := range l.all() {
		if r.ClaimName == claim {
			steps = append(steps, r.Step)
		}
	}
	return steps
}

func (l *lines) has(step, text string) bool {
	return slices.ContainsFunc(l.all(), func(r api.Report) bool {
		return r.Step == step && strings.Contains(r.Device+" "+r.Detail+" "+r.Err, text)
	})
}

// taints gives the taints of a device in the published slices.
func (m *machine) taints(t testing.TB, device string) []string {
	t.Helper()
	list, err := m.client.ResourceV1().ResourceSlices().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	taints := []string{}
	for _, s := range list.Items {
		for _, d := range s.Spec.Devices {
			for _, taint := range d.Taints {
				if d.Name == device {
					taints = append(taints, fmt.Sprintf("%s=%s:%s", taint.Key, taint.Value, taint.Effect))
				}
			}
		}
	}
	return taints
}
