package fault_test

import (
	"context"
	"slices"
	"testing"
	"time"

	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/dra-lab/dra-lab/driver/api"
	"github.com/dra-lab/dra-lab/lab/cluster"
	"github.com/dra-lab/dra-lab/lab/fault"
	"github.com/dra-lab/dra-lab/lab/install"
	"github.com/dra-lab/dra-lab/lab/internal/live"
)

// victim is the last GPU of the last node: the one that the scheduler would
// give away last.
func victim(t *testing.T, c *cluster.Cluster) fault.Target {
	t.Helper()
	status, err := install.GetStatus(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range slices.Backward(status.Nodes) {
		if len(n.Devices) > 0 {
			return fault.Target{Node: n.Name, Device: n.Devices[len(n.Devices)-1].Name}
		}
	}
	t.Fatal("no node has devices")
	return fault.Target{}
}

// awaitTaint watches until the GPU has the taint key, or has no taints at all
// if key is empty, and returns its taints.
func awaitTaint(t *testing.T, client *kubernetes.Clientset, target fault.Target, key string) []resourcev1.DeviceTaint {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	selector := resourcev1.ResourceSliceSelectorNodeName + "=" + target.Node
	events, err := client.ResourceV1().ResourceSlices().Watch(ctx, metav1.ListOptions{FieldSelector: selector})
	if err != nil {
		t.Fatal(err)
	}
	defer events.Stop()
	var last []resourcev1.DeviceTaint
	for event := range events.ResultChan() {
		s, ok := event.Object.(*resourcev1.ResourceSlice)
		if !ok {
			t.Fatalf("watch slices: %v", event.Object)
		}
		if s.Spec.Driver != api.DriverName {
			continue
		}
		for _, d := range s.Spec.Devices {
			if d.Name != target.Device {
				continue
			}
			last = d.Taints
			has := slices.ContainsFunc(d.Taints, func(t resourcev1.DeviceTaint) bool { return t.Key == key })
			if has || key == "" && len(d.Taints) == 0 {
				return d.Taints
			}
		}
	}
	t.Fatalf("%s on %s: taints %v after 30s, want %q", target.Device, target.Node, last, key)
	return nil
}

func health(t *testing.T, c *cluster.Cluster, target fault.Target) install.DeviceState {
	t.Helper()
	status, err := install.GetStatus(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range status.Nodes {
		for _, d := range n.Devices {
			if n.Name == target.Node && d.Name == target.Device {
				return d
			}
		}
	}
	t.Fatalf("no device %s on node %s", target.Device, target.Node)
	return install.DeviceState{}
}

func TestLiveFaultTaintsTheGPUAndClearingMendsIt(t *testing.T) {
	c, client := live.Cluster(t)
	for _, broken := range []struct {
		kind   string
		params fault.Params
		taint  string
		effect resourcev1.DeviceTaintEffect
	}{
		{api.FaultXID, fault.Params{Code: 79}, api.TaintXID, resourcev1.DeviceTaintEffectNoExecute},
		{api.FaultECCDouble, fault.Params{}, api.TaintECC, resourcev1.DeviceTaintEffectNoExecute},
		{api.FaultLost, fault.Params{}, api.TaintLost, resourcev1.DeviceTaintEffectNoExecute},
		{api.FaultTemperature, fault.Params{}, api.TaintTelemetry, resourcev1.DeviceTaintEffectNoSchedule},
		{api.FaultPCIeWidth, fault.Params{}, api.TaintTelemetry, resourcev1.DeviceTaintEffectNoSchedule},
	} {
		t.Run(broken.kind, func(t *testing.T) {
			ctx := t.Context()
			// Given a healthy GPU,
			target := victim(t, c)
			awaitTaint(t, client, target, "")
			f, err := fault.New(broken.kind, broken.params)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if _, err := fault.Clear(context.WithoutCancel(ctx), c, fault.Filter{ID: f.ID}); err != nil {
					t.Error(err)
				}
			})

			// when it is broken,
			start := time.Now()
			if err := fault.Inject(ctx, c, target, f); err != nil {
				t.Fatal(err)
			}
			injected := time.Since(start)

			// then the driver taints it and calls it unhealthy,
			taints := awaitTaint(t, client, target, broken.taint)
			t.Logf("inject took %s, taint was there after %s: %v", injected, time.Since(start), taints)
			if taints[0].Effect != broken.effect {
				t.Errorf("taint %v, want effect %s", taints[0], broken.effect)
			}
			if d := health(t, c, target); d.Health != api.HealthUnhealthy || d.Message == "" {
				t.Errorf("health %q (%q), want Unhealthy with a message", d.Health, d.Message)
			}
			list, err := fault.List(ctx, c)
			if err != nil {
				t.Fatal(err)
			}
			if !slices.ContainsFunc(list, func(a fault.Active) bool {
				return a.ID == f.ID && a.Node == target.Node && a.Device == target.Device
			}) {
				t.Errorf("list %v lacks fault %s", list, f.ID)
			}

			// and when the fault is cleared, it is as before.
			start = time.Now()
			cleared, err := fault.Clear(ctx, c, fault.Filter{ID: f.ID})
			if err != nil {
				t.Fatal(err)
			}
			if len(cleared) != 1 {
				t.Errorf("cleared %v, want the one fault", cleared)
			}
			awaitTaint(t, client, target, "")
			t.Logf("untainted %s after clear began", time.Since(start))
			if d := health(t, c, target); d.Health != api.HealthHealthy {
				t.Errorf("health %q (%q), want Healthy", d.Health, d.Message)
			}
		})
	}
}

func TestLiveCorrectedErrorDoesNotTaint(t *testing.T) {
	c, client := live.Cluster(t)
	target := victim(t, c)
	awaitTaint(t, client, target, "")
	t.Cleanup(func() {
		filter := fault.Filter{Node: target.Node, Device: target.Device}
		if _, err := fault.Clear(context.WithoutCancel(t.Context()), c, filter); err != nil {
			t.Error(err)
		}
	})
	// When a fatal fault comes after harmless ones, which were thus seen before
	// it,
	for _, broken := range []struct {
		kind   string
		params fault.Params
	}{
		{api.FaultECCSingle, fault.Params{}},
		{api.FaultXID, fault.Params{Code: 31}},
		{api.FaultLost, fault.Params{}},
	} {
		f, err := fault.New(broken.kind, broken.params)
		if err != nil {
			t.Fatal(err)
		}
		if err := fault.Inject(t.Context(), c, target, f); err != nil {
			t.Fatal(err)
		}
	}
	// then only it leaves a taint.
	for _, taint := range awaitTaint(t, client, target, api.TaintLost) {
		if taint.Key != api.TaintLost {
			t.Errorf("taint %v, want none but %s", taint, api.TaintLost)
		}
	}
	if _, err := fault.Clear(t.Context(), c, fault.Filter{Node: target.Node, Device: target.Device}); err != nil {
		t.Fatal(err)
	}
	awaitTaint(t, client, target, "") // the next test finds a healthy GPU
}
