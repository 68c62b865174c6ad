package plugin_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthv1 "k8s.io/kubelet/pkg/apis/dra-health/v1"
	drav1 "k8s.io/kubelet/pkg/apis/dra/v1"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/dra-lab/dra-lab/driver/api"
	"github.com/dra-lab/dra-lab/driver/draconn"
	"github.com/dra-lab/dra-lab/driver/internal/fault"
	"github.com/dra-lab/dra-lab/driver/internal/plugin"
)

// breakable gives a driver the faults that inject writes for it.
func (m *machine) breakable(t testing.TB) func(*plugin.Config) {
	t.Helper()
	f, err := fault.New(fault.Config{
		Dir:     filepath.Join(m.hardwareDir(), string(api.TargetDriver)),
		OnError: func(err error) { t.Log(err) },
	})
	if err != nil {
		t.Fatal(err)
	}
	return func(c *plugin.Config) { c.Faults = f }
}

const driverDevice = string(api.TargetDriver)

func TestKillStepsAreThePoints(t *testing.T) {
	var points []string
	for _, p := range plugin.Points() {
		points = append(points, string(p))
	}
	same(t, "steps", api.KillSteps(), points)
}

func TestPrepareThatFailsSoOftenLeavesNothingAndThenSucceeds(t *testing.T) {
	for _, tc := range []struct{ kind, message string }{
		{api.FaultPrepareFails, "injected fault prepare-fails"},
		{api.FaultCDIFull, "no space left on device"},
		{api.FaultCheckpointFull, "no space left on device"},
	} {
		t.Run(tc.kind, func(t *testing.T) {
			m := newMachine(t)
			r := m.start(t, m.breakable(t))
			k := m.register(t, "")
			m.allocate(t, claim("a", "gpu-0"))
			m.inject(t, driverDevice, api.Fault{ID: "f", Kind: tc.kind, Times: 2, Since: time.Now()})
			for range 2 {
				if _, failed := k.prepare(t, "a"); !strings.Contains(failed["a"], tc.message) {
					t.Errorf("prepare: %v", failed)
				}
				same(t, "specs", []string{}, m.specs(t))
				same(t, "reservations", []string{}, m.reservations(t))
				same(t, "claims", []string{}, r.claims(t))
			}
			if _, failed := k.prepare(t, "a"); len(failed) > 0 {
				t.Errorf("the third time: %v", failed)
			}
			k.unprepare(t, "a")
		})
	}
}

func TestFullDiskKeepsAClaimUntilItIsNotFull(t *testing.T) {
	m := newMachine(t)
	r := m.start(t, m.breakable(t))
	k := m.register(t, "")
	m.allocate(t, claim("a", "gpu-0"))
	k.prepare(t, "a")
	m.inject(t, driverDevice, api.Fault{ID: "f", Kind: api.FaultCheckpointFull, Since: time.Now()})
	resp, err := k.Unprepare(t.Context(), &drav1.NodeUnprepareResourcesRequest{Claims: []*drav1.Claim{reference("a")}})
	if err != nil || !strings.Contains(resp.Claims["uid-a"].GetError(), "no space left") {
		t.Errorf("unprepare: %v, %v", resp, err)
	}
	same(t, "claims", []string{"a"}, r.claims(t))
	m.inject(t, driverDevice)
	k.unprepare(t, "a")
	same(t, "claims", []string{}, r.claims(t))
}

func TestGPUThatHangsCanBeGivenBackButNotTaken(t *testing.T) {
	m := newMachine(t)
	m.start(t, func(c *plugin.Config) { c.UsageWait = 200 * time.Millisecond })
	k := m.register(t, "")
	m.allocate(t, claim("a", "gpu-0"), claim("b", "gpu-0"), claim("c", "gpu-1"))
	k.prepare(t, "a")
	// The monitor's own question hangs as well.
	m.inject(t, "gpu-0", api.Fault{ID: "f", Kind: api.FaultHang, Since: time.Now()})
	refused := func() bool {
		_, failed := k.prepare(t, "b")
		return strings.Contains(failed["b"], "has not answered since")
	}
	eventually(t, "a claim is refused because the GPU does not answer, and not because it is held", refused)
	start := time.Now()
	k.unprepare(t, "a")
	if !refused() {
		t.Error("a GPU that hangs was given away")
	}
	if took := time.Since(start); took > 10*time.Second {
		t.Errorf("it took %s", took)
	}
	// The others are none the worse.
	if _, failed := k.prepare(t, "c"); len(failed) > 0 {
		t.Errorf("another GPU: %v", failed)
	}
	m.inject(t, "gpu-0")
	eventually(t, "the GPU answers", func() bool { _, failed := k.prepare(t, "b"); return len(failed) == 0 })
	k.unprepare(t, "b", "c")
}

func TestMemoryThatLeaksTaintsTheGPU(t *testing.T) {
	m := newMachine(t)
	r := m.start(t, func(c *plugin.Config) { c.ProbeEvery = 100 * time.Millisecond })
	k := m.register(t, "")
	m.allocate(t, claim("a", "gpu-0"))
	k.prepare(t, "a")
	m.inject(t, "gpu-0", api.Fault{ID: "f", Kind: api.FaultMemoryLeak, Code: 4096, Since: time.Now()})
	eventually(t, "the memory is in use", func() bool {
		s, err := r.Status(t.Context())
		return err == nil && s.Devices[0].UsedBytes > 4096<<20
	})
	k.unprepare(t, "a")
	taint := api.TaintLeaked + "=" + api.LeakMemory + ":NoSchedule"
	eventually(t, "the taint", func() bool { return slices.Contains(m.taints(t, "gpu-0"), taint) })
	m.inject(t, "gpu-0")
	eventually(t, "no taint", func() bool { return len(m.taints(t, "gpu-0")) == 0 })
}

// watch opens a health stream.
func (k *kubelet) watch(t *testing.T) *draconn.HealthStream {
	t.Helper()
	stream, err := k.WatchHealth(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stream.Close)
	if _, err := stream.Recv(); err != nil {
		t.Fatal(err)
	}
	return stream
}

func TestHealthStreamThatBreaks(t *testing.T) {
	m := newMachine(t)
	m.start(t, m.breakable(t))
	stream := m.register(t, "").watch(t)
	m.inject(t, driverDevice, api.Fault{ID: "f", Kind: api.FaultHealthBreaks, Times: 1, Since: time.Now()})
	if _, err := stream.Recv(); err == nil {
		t.Error("the stream goes on")
	}
}

func TestHealthStreamThatStallsOrIsLate(t *testing.T) {
	for _, kind := range []string{api.FaultHealthStalls, api.FaultHealthLate} {
		t.Run(kind, func(t *testing.T) {
			m := newMachine(t)
			m.start(t, func(c *plugin.Config) { m.breakable(t)(c); c.ResendEvery = time.Hour })
			stream := m.register(t, "").watch(t)
			f := api.Fault{ID: "f", Kind: kind, Since: time.Now()}
			if kind == api.FaultHealthLate {
				f.Code = 600
			}
			m.inject(t, driverDevice, f)
			m.inject(t, "gpu-1", api.Fault{ID: "x", Kind: api.FaultLost, Since: time.Now()})
			told := make(chan error, 1)
			go func() {
				for {
					report, err := stream.Recv()
					ill := err == nil && slices.ContainsFunc(report.Devices, func(d *healthv1.DeviceHealth) bool {
						return d.Device.DeviceName == "gpu-1" && d.Health == healthv1.HealthStatus_UNHEALTHY
					})
					if err != nil || ill {
						told <- err
						return
					}
				}
			}()
			select {
			case err := <-told:
				t.Fatalf("the stream tells at once: %v", err)
			case <-time.After(time.Second):
			}
			// What was held back is told as soon as the fault is over.
			m.inject(t, driverDevice)
			select {
			case err := <-told:
				if err != nil {
					t.Error(err)
				}
			case <-time.After(10 * time.Second):
				t.Error("the stream does not tell afterwards")
			}
		})
	}
}

func TestClockOfHealthReportsJumps(t *testing.T) {
	m := newMachine(t)
	m.start(t, func(c *plugin.Config) { m.breakable(t)(c); c.ResendEvery = 50 * time.Millisecond })
	stream := m.register(t, "").watch(t)
	m.inject(t, driverDevice, api.Fault{ID: "f", Kind: api.FaultClockJump, Code: -3600, Since: time.Now()})
	eventually(t, "a report of an hour ago", func() bool {
		report, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		return len(report.Devices) > 0 && time.Now().Unix()-report.Devices[0].LastUpdatedTime > 3500
	})
}

func TestServiceSocketIsLostAndComesBack(t *testing.T) {
	m := newMachine(t)
	r := m.start(t, m.breakable(t))
	k := m.register(t, "")
	m.allocate(t, claim("a", "gpu-0"))
	socket := filepath.Join(m.pluginDir(), api.SocketName)
	m.inject(t, driverDevice, api.Fault{ID: "f", Kind: api.FaultSocketLost, Since: time.Now()})
	eventually(t, "the socket goes", func() bool { return !exists(socket) })
	if !exists(m.registration("")) {
		t.Error("the registration socket is gone, too")
	}
	if err := r.Live(t.Context()); err == nil {
		t.Error("the driver takes itself for live")
	}
	m.inject(t, driverDevice)
	eventually(t, "the socket comes back", func() bool { return exists(socket) })
	if err := k.WaitServing(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, failed := k.prepare(t, "a"); len(failed) > 0 {
		t.Error(failed)
	}
	// A driver that ends meanwhile leaves no socket behind.
	m.inject(t, driverDevice, api.Fault{ID: "g", Kind: api.FaultSocketLost, Since: time.Now()})
	eventually(t, "the socket goes again", func() bool { return !exists(socket) })
	r.stop()
	left, err := filepath.Glob(filepath.Join(m.pluginDir(), "*.sock*"))
	if err != nil || len(left) > 0 {
		t.Errorf("left %v, %v", left, err)
	}
}

func TestRegistrationThatFails(t *testing.T) {
	m := newMachine(t)
	if err := os.MkdirAll(filepath.Join(m.hardwareDir(), driverDevice), 0o755); err != nil {
		t.Fatal(err)
	}
	m.inject(t, driverDevice, api.Fault{ID: "f", Kind: api.FaultRegistrationFails, Since: time.Now()})
	m.start(t, m.breakable(t))
	eventually(t, "the registration socket", func() bool { return exists(m.registration("")) })
	if err := m.info(t); err == nil || !strings.Contains(err.Error(), "injected fault registration-fails") {
		t.Errorf("registration ends with %v", err)
	}
	m.inject(t, driverDevice)
	if err := m.info(t); err != nil {
		t.Error(err)
	}
}

func TestPrepareHangsNoLongerThanItsCaller(t *testing.T) {
	m := newMachine(t)
	m.start(t, m.breakable(t))
	k := m.register(t, "")
	m.allocate(t, claim("a", "gpu-0"))
	m.inject(t, driverDevice, api.Fault{ID: "f", Kind: api.FaultPrepareHangs, Times: 1, Since: time.Now()})
	result := make(chan error, 1)
	go func() {
		resp, err := k.Prepare(t.Context(), &drav1.NodePrepareResourcesRequest{Claims: []*drav1.Claim{reference("a")}})
		if err == nil && resp.Claims["uid-a"].GetError() != "" {
			err = errors.New(resp.Claims["uid-a"].GetError())
		}
		result <- err
	}()
	select {
	case err := <-result:
		t.Fatalf("it does not hang: %v", err)
	case <-time.After(500 * time.Millisecond):
	}
	m.inject(t, driverDevice)
	if err := <-result; err != nil {
		t.Error(err)
	}
	k.unprepare(t, "a")
}

// info asks at the registration socket who is there.
func (m *machine) info(t *testing.T) error {
	t.Helper()
	cc, err := grpc.NewClient("unix:"+m.registration(""), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer cc.Close()
	_, err = registerapi.NewRegistrationClient(cc).GetInfo(t.Context(), &registerapi.InfoRequest{}, grpc.WaitForReady(true))
	return err
}
