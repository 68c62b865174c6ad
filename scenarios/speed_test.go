// Scenario speed: the driver takes hardly longer than a plugin that does nothing.
//
// Given such a plugin on the same helper, beside the driver on the same node,
// with as many devices, when Pods with a device of the one or of the other start
// and go in turn, one by one and twelve at once, then the kubelet's own measure
// of its calls, and the time until all twelve Pods are Ready, differ by no more
// than small factors.

package scenarios

import (
	"context"
	_ "embed"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/e2e-framework/pkg/envconf"
	"sigs.k8s.io/e2e-framework/pkg/features"

	"github.com/dra-lab/dra-lab/driver/api"
	"github.com/dra-lab/dra-lab/scenarios/internal/stage"
)

//go:embed speed.yaml
var speedManifest string //nolint:gochecknoglobals // filled by the compiler

const (
	idleDriver    = "idle.lab.example"
	idlePlugin    = "/var/lib/kubelet/plugins/" + idleDriver
	idleProgram   = "/var/lib/dra-lab/idle/idle"
	speedParallel = 12
	// How often each is measured, after one round that is not.
	speedSingle, speedBurst = 12, 6

	prepareLimit   = 1.5 // times the idle plugin's
	unprepareLimit = 2.0
	burstLimit     = 1.1
)

// speedPod is a Pod that holds one device of a class on a node until it is
// deleted. What device it got it does not look at: the idle plugin gives none.
const speedPod = `
apiVersion: v1
kind: Pod
metadata:
  generateName: %[1]s-
spec:
  restartPolicy: Never
  terminationGracePeriodSeconds: 10
  automountServiceAccountToken: false
  enableServiceLinks: false
  nodeSelector: {kubernetes.io/hostname: %[2]s}
  containers:
  - name: trainer
    image: trainer
    args: [-hold, -gpu-memory=0, -devices=%[3]d]
    resources:
      requests: {cpu: 1m}
      claims: [{name: device}]
  resourceClaims:
  - name: device
    resourceClaimTemplateName: %[1]s
`

const speedTemplate = `
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata:
  name: %[1]s
spec:
  spec:
    devices:
      requests:
      - name: device
        exactly: {deviceClassName: %[2]s}
`

// contender is one of the two that are compared.
type contender struct {
	name, driver string
	devices      int // that its Pods find
	// Calls of the kubelet by how many Pods were started at once, and then by
	// method.
	calls map[int]map[string]stage.Calls
	ready []time.Duration // of all Pods of a burst
}

type speed struct {
	*stage.Stage
	node         string
	devices      int
	idle, driver *contender
	plugin       []byte // manifest
}

func newContender(name, driver string, devices int) *contender {
	c := &contender{name: name, driver: driver, devices: devices, calls: map[int]map[string]stage.Calls{}}
	for _, at := range []int{1, speedParallel} {
		c.calls[at] = map[string]stage.Calls{}
	}
	return c
}

func TestSpeed(t *testing.T) {
	s := &speed{
		Stage: stage.New(t, "speed"),
		idle:  newContender("idle", idleDriver, 0), driver: newContender("driver", api.DriverName, 1),
	}
	if err := s.find(t.Context()); err != nil {
		t.Fatal(err)
	}
	if s.node == "" {
		t.Skipf("no node has %d whole GPUs: lab up --gpus simulated=h100:%d", speedParallel, speedParallel)
	}
	s.Unrecorded = true
	s.plugin = fmt.Appendf(nil, speedManifest, s.node, s.devices)
	// After everything else: without the plugin its Pods could not end.
	t.Cleanup(func() { s.remove(t) })
	s.Play(t, features.New("speed").
		Setup(s.Begin).
		Setup(s.install).
		Assess("Pods of both start and go, one by one", s.single).
		Assess("Pods of both start and go, twelve at once", s.burst).
		Assess("the driver takes hardly longer", s.compare))
}

// find chooses the node with the most GPUs that are whole and free of taints, if
// there are enough on it.
func (s *speed) find(ctx context.Context) error {
	whole, all := map[string]int{}, map[string]int{}
	err := s.EachDevice(ctx, func(g stage.GPU, d resourcev1.Device) {
		all[g.Node]++
		if !ptr.Deref(d.AllowMultipleAllocations, false) && len(d.Taints) == 0 {
			whole[g.Node]++
		}
	})
	for node, count := range whole {
		if count >= speedParallel && (s.node == "" || count > whole[s.node] || count == whole[s.node] && node < s.node) {
			s.node, s.devices = node, all[node]
		}
	}
	return err
}

// install brings the plugin to the node.
func (s *speed) install(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	program, err := os.ReadFile(filepath.Join(filepath.Dir(self), "idle"))
	if err != nil {
		t.Fatalf("find the plugin that does nothing: %v (make build)", err)
	}
	if err := s.WriteOnNode(ctx, s.node, idleProgram, program, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := s.Install(ctx, s.plugin); err != nil {
		t.Fatal(err)
	}
	if err := s.AwaitDevices(ctx, soon, idleDriver, s.node, s.devices); err != nil {
		t.Fatal(err)
	}
	for _, c := range []*contender{s.idle, s.driver} {
		if err := s.Create(ctx, fmt.Appendf(nil, speedTemplate, c.name, c.driver)); err != nil {
			t.Fatal(err)
		}
	}
	return ctx
}

// remove takes the plugin away. The kubelet removes its slices.
func (s *speed) remove(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 2*time.Minute)
	defer cancel()
	if err := s.Uninstall(ctx, s.plugin); err != nil {
		t.Error(err)
	}
	if _, err := s.OnNode(ctx, s.node, "rm", "-rf", idlePlugin, filepath.Dir(idleProgram)); err != nil {
		t.Error(err)
	}
}

func (s *speed) single(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
	s.rounds(ctx, t, 1, speedSingle)
	return ctx
}

func (s *speed) burst(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
	s.rounds(ctx, t, speedParallel, speedBurst)
	return ctx
}

// rounds starts so many Pods at once of the one and of the other in turn, each
// as often as the other is first, and keeps what the kubelet measured.
func (s *speed) rounds(ctx context.Context, t *testing.T, at, count int) {
	t.Helper()
	for round := range count + 1 {
		order := []*contender{s.idle, s.driver}
		if round%2 == 1 {
			slices.Reverse(order)
		}
		for _, c := range order {
			before := s.kubelet(ctx, t, c)
			ready := s.startAndStop(ctx, t, c, at)
			if round == 0 {
				continue // programs and images are not in memory yet
			}
			if at == speedParallel {
				c.ready = append(c.ready, ready)
			}
			for method, now := range s.kubelet(ctx, t, c) {
				c.calls[at][method] = c.calls[at][method].And(now.Since(before[method]))
			}
		}
	}
}

// The methods that are compared.
const prepareMethod, unprepareMethod = "NodePrepareResources", "NodeUnprepareResources"

// kubelet is what the kubelet has measured so far.
func (s *speed) kubelet(ctx context.Context, t *testing.T, c *contender) map[string]stage.Calls {
	t.Helper()
	all := map[string]stage.Calls{}
	for _, method := range []string{prepareMethod, unprepareMethod} {
		calls, err := s.KubeletCalls(ctx, s.node, c.driver, method)
		if err != nil {
			t.Fatal(err)
		}
		all[method] = calls
	}
	return all
}

// startAndStop starts Pods, tells how long it took until all were Ready, and
// waits until all are gone.
func (s *speed) startAndStop(ctx context.Context, t *testing.T, c *contender, count int) time.Duration {
	t.Helper()
	pod := fmt.Appendf(nil, speedPod, c.name, s.node, c.devices)
	began := time.Now()
	if err := s.CreatePods(ctx, pod, count); err != nil {
		t.Fatal(err)
	}
	if err := s.AwaitReady(ctx, stage.Start, count); err != nil {
		t.Fatal(err)
	}
	took := time.Since(began)
	if err := s.Client.CoreV1().Pods(s.Namespace).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := s.AwaitReady(ctx, stage.Start, 0); err != nil {
		t.Fatal(err)
	}
	return took
}

func (s *speed) compare(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
	const row = "%-38s %10s %10s %6s %6s"
	s.Remark(row, "means, seen from the kubelet", "idle", "driver", "ratio", "limit")
	type figure struct {
		what         string
		idle, driver float64 // seconds
		limit        float64
	}
	var all []figure
	for _, method := range []string{prepareMethod, unprepareMethod} {
		limit := prepareLimit
		if method == unprepareMethod {
			limit = unprepareLimit
		}
		for _, at := range []int{1, speedParallel} {
			what := method + ", one by one"
			rounds := speedSingle
			if at > 1 {
				what, rounds = fmt.Sprintf("%s, %d Pods at once", method, at), speedBurst
			}
			idle, driver := s.idle.calls[at][method], s.driver.calls[at][method]
			for _, c := range []stage.Calls{idle, driver} {
				if c.Count < uint64(at*rounds) {
					t.Errorf("%s: the kubelet counted %d calls, want %d at least", what, c.Count, at*rounds)
				}
			}
			all = append(all, figure{what, idle.Mean(), driver.Mean(), limit})
		}
	}
	all = append(all, figure{fmt.Sprintf("%d Pods at once, all Ready (median)", speedParallel), median(s.idle.ready), median(s.driver.ready), burstLimit})
	for _, f := range all {
		if f.idle == 0 {
			t.Errorf("%s: nothing was measured", f.what)
			continue
		}
		s.Remark(row, f.what, milliseconds(f.idle), milliseconds(f.driver), fmt.Sprintf("%.2f", f.driver/f.idle), fmt.Sprintf("%.1f", f.limit))
		s.MeasureValue(t, f.what, f.driver/f.idle, f.limit, "times the idle plugin's")
	}
	return ctx
}

func milliseconds(seconds float64) string { return fmt.Sprintf("%.1f ms", seconds*1000) }

// median is in seconds, 0 of none.
func median(all []time.Duration) float64 {
	if len(all) == 0 {
		return 0
	}
	all = slices.Sorted(slices.Values(all))
	return (all[(len(all)-1)/2] + all[len(all)/2]).Seconds() / 2
}
