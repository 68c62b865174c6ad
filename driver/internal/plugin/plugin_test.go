package plugin_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/events"
	healthv1 "k8s.io/kubelet/pkg/apis/dra-health/v1"
	"k8s.io/utils/ptr"

	"github.com/dra-lab/dra-lab/driver/api"
	"github.com/dra-lab/dra-lab/driver/internal/checkpoint"
	"github.com/dra-lab/dra-lab/driver/internal/device"
	"github.com/dra-lab/dra-lab/driver/internal/plugin"
)

func same[T any](t *testing.T, what string, want, got T) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

func TestStart(t *testing.T) {
	m := newMachine(t)
	d := m.start(t, nil)
	// Not ready before the kubelet has registered it.
	eventually(t, "published", func() bool { return d.reports.has(api.StepPublished, "4 devices") })
	if err := d.Ready(t.Context()); err == nil || !strings.Contains(err.Error(), "registered") {
		t.Errorf("ready before the registration: %v", err)
	}
	k := m.register(t, "")
	if err := d.Ready(t.Context()); err != nil {
		t.Error(err)
	}
	same(t, "services", []string{"v1.DRAPlugin", "v1beta1.DRAPlugin", "v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth"}, k.info.SupportedVersions)
	same(t, "endpoint", filepath.Join(m.pluginDir(), "dra.sock"), k.info.Endpoint)

	// The registration socket came after the driver had reached itself.
	steps := d.reports.steps("")
	if ready, registered := index(steps, api.StepReady), index(steps, api.StepRegistered); ready < 0 || registered < ready {
		t.Errorf("steps are %v", steps)
	}
	d.stop()
	if err := <-d.done; err != nil {
		t.Errorf("a driver that was asked to stop fails: %v", err)
	}
	for _, path := range []string{k.info.Endpoint, m.registration("")} {
		if exists(path) {
			t.Errorf("%s is left over", path)
		}
	}
}

func index(all []string, s string) int {
	for i, x := range all {
		if x == s {
			return i
		}
	}
	return -1
}

func TestPrepareAndUnprepare(t *testing.T) {
	m := newMachine(t)
	m.allocate(t, claim("a", "gpu-0", "gpu-1"), claim("b", "gpu-2"))
	d := m.start(t, nil)
	k := m.register(t, "")

	// When two claims are prepared, twice, as after a restart of the kubelet,
	for range 2 {
		ids, failed := k.prepare(t, "a", "b")
		if len(failed) > 0 {
			t.Fatal(failed)
		}
		same(t, "CDI IDs", map[string][]string{
			"a": {"k8s.gpu.lab.example/claim=uid-a-gpu-0", "k8s.gpu.lab.example/claim=uid-a-gpu-1"},
			"b": {"k8s.gpu.lab.example/claim=uid-b-gpu-2"},
		}, ids)
	}
	same(t, "specs", []string{"a", "b"}, m.specs(t))
	same(t, "reservations", []string{"gpu-0/a", "gpu-1/a", "gpu-2/b"}, m.reservations(t))
	same(t, "checkpoint", []string{"a", "b"}, d.claims(t))

	// and unprepared, twice,
	for range 2 {
		k.unprepare(t, "a", "b")
	}
	// then nothing is left, and the memory is back.
	same(t, "specs", []string{}, m.specs(t))
	same(t, "reservations", []string{}, m.reservations(t))
	same(t, "checkpoint", []string{}, d.claims(t))
	if !d.reports.has("unprepare-step", "memory of gpu-2 is back to its baseline") {
		t.Errorf("reports: %+v", d.reports.all())
	}
}

func TestReportsTellWhatWasDone(t *testing.T) {
	m := newMachine(t)
	m.allocate(t, claim("a", "gpu-0"))
	d := m.start(t, nil)
	k := m.register(t, "")
	k.prepare(t, "a")
	k.unprepare(t, "a")
	d.stop() // writes what is queued
	var got []string
	for _, r := range d.reports.all() {
		if r.ClaimName != "a" {
			continue
		}
		if r.Node != nodeName || r.ClaimUID != "uid-a" || r.ClaimNamespace != "default" || r.Time.IsZero() {
			t.Errorf("incomplete report: %+v", r)
		}
		got = append(got, strings.TrimSpace(r.Step+" "+r.Detail))
	}
	same(t, "reports", []string{
		"prepare-started",
		"prepare-step devices gpu-0 verified",
		"prepare-step checkpoint entry written",
		"prepare-step memory of gpu-0 initialised",
		"prepare-step CDI spec written",
		"prepare-step checkpoint entry completed",
		"prepared",
		"unprepare-started",
		"unprepare-step checkpoint entry found: PrepareCompleted",
		"unprepare-step CDI spec removed",
		"unprepare-step memory of gpu-0 given back",
		"unprepare-step memory of gpu-0 is back to its baseline (561 MiB used)",
		"unprepare-step checkpoint entry removed",
		"unprepared",
	}, got)
}

func TestDeviceOfAnotherClaimIsRefused(t *testing.T) {
	m := newMachine(t)
	m.allocate(t, claim("a", "gpu-0"), claim("thief", "gpu-1", "gpu-0"), claim("c", "gpu-1"))
	d := m.start(t, nil)
	k := m.register(t, "")
	k.prepare(t, "a")
	_, failed := k.prepare(t, "thief")
	if !strings.Contains(failed["thief"], "held by another claim: default/a") {
		t.Errorf("got %q", failed["thief"])
	}
	same(t, "specs", []string{"a"}, m.specs(t))
	same(t, "reservations", []string{"gpu-0/a"}, m.reservations(t))
	same(t, "checkpoint", []string{"a"}, d.claims(t))
	// The device that was free still is.
	if _, failed := k.prepare(t, "c"); len(failed) > 0 {
		t.Error(failed)
	}
}

func TestClaimsOfOneCallFailAlone(t *testing.T) {
	m := newMachine(t)
	m.allocate(t, claim("good", "gpu-0"), claim("bad", "gpu-9"))
	m.start(t, nil)
	ids, failed := m.register(t, "").prepare(t, "good", "bad")
	if len(ids["good"]) != 1 || !strings.Contains(failed["bad"], "does not exist on this node") {
		t.Errorf("got %v, %v", ids, failed)
	}
}

func TestPrepareThatFailsHalfwayLeavesNothing(t *testing.T) {
	m := newMachine(t)
	m.allocate(t, claim("a", "gpu-0", "gpu-1"))
	d := m.start(t, nil)
	k := m.register(t, "")
	// Given a CDI directory that cannot be written,
	if err := os.RemoveAll(m.cdiDir()); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(m.cdiDir(), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	_, failed := k.prepare(t, "a")
	if !strings.Contains(failed["a"], "write CDI spec") {
		t.Errorf("got %q", failed["a"])
	}
	same(t, "reservations", []string{}, m.reservations(t))
	// The directory could not be looked at either, so the claim stays started
	// until someone can.
	if err := os.Remove(m.cdiDir()); err != nil {
		t.Fatal(err)
	}
	if _, failed := k.prepare(t, "a"); len(failed) > 0 {
		t.Error(failed)
	}
	same(t, "checkpoint", []string{"a"}, d.claims(t))
	same(t, "specs", []string{"a"}, m.specs(t))
}

func TestRestart(t *testing.T) {
	m := newMachine(t)
	m.allocate(t, claim("a", "gpu-0"), claim("b", "gpu-1"))
	first := m.start(t, nil)
	m.register(t, "").prepare(t, "a", "b")
	first.stop()

	// Given a reboot, which loses the CDI specs, and the spec of a claim that
	// was forgotten,
	for _, name := range m.specs(t) {
		if err := os.Remove(filepath.Join(m.cdiDir(), "k8s.gpu.lab.example-claim_uid-"+name+".json")); err != nil {
			t.Fatal(err)
		}
	}
	orphan := filepath.Join(m.cdiDir(), "k8s.gpu.lab.example-claim_uid-orphan.json")
	foreign := filepath.Join(m.cdiDir(), "vendor.example-gpu_uid-foreign.json")
	for _, f := range []string{orphan, foreign} {
		if err := os.WriteFile(f, []byte("{}"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	// when the driver starts again,
	second := m.start(t, func(c *plugin.Config) { c.BootID = "boot-2" })
	k := m.register(t, "")
	// then the specs are there before the kubelet can ask, and the orphan is
	// not.
	same(t, "specs", []string{"a", "b", "foreign"}, m.specs(t))
	same(t, "checkpoint", []string{"a", "b"}, second.claims(t))
	if !second.reports.has(api.StepSwept, "") {
		t.Error("the orphan's removal was not reported")
	}
	if _, failed := k.prepare(t, "a"); len(failed) > 0 {
		t.Error(failed)
	}
	k.unprepare(t, "a", "b")
	same(t, "specs", []string{"foreign"}, m.specs(t))
	same(t, "reservations", []string{}, m.reservations(t))
}

func TestClaimThatCannotBeRestoredHoldsNothingUp(t *testing.T) {
	m := newMachine(t)
	m.allocate(t, claim("a", "gpu-0"), claim("b", "gpu-1"))
	first := m.start(t, nil)
	m.register(t, "").prepare(t, "a", "b")
	first.stop()
	// Given a GPU that cannot be readied for one of the claims,
	second := m.start(t, func(c *plugin.Config) { c.Binder = declining{Binder: c.Binder, claim: "uid-a"} })
	k := m.register(t, "")
	// then the driver serves, says so, and works for the others.
	if !second.reports.has(api.StepError, "declined") {
		t.Error("the claim that could not be restored was not reported")
	}
	_, failed := k.prepare(t, "a", "b")
	if len(failed) != 1 || !strings.Contains(failed["a"], "declined") {
		t.Errorf("got %v, want that a fails", failed)
	}
	k.unprepare(t, "a", "b")
	same(t, "checkpoint", []string{}, second.claims(t))
}

// declining is a Binder that does not work for one claim.
type declining struct {
	plugin.Binder
	claim string
}

func (d declining) Bind(gpu device.GPU, claimUID string, settings device.Settings) error {
	if claimUID == d.claim {
		return errors.New("declined")
	}
	return d.Binder.Bind(gpu, claimUID, settings)
}

func TestDeviceThatIsGoneHoldsNothingUp(t *testing.T) {
	m := newMachine(t)
	m.allocate(t, claim("a", "gpu-3"))
	first := m.start(t, nil)
	m.register(t, "").prepare(t, "a")
	first.stop()
	// Given a node that comes back with fewer GPUs,
	m.inventory(t, 1)
	second := m.start(t, nil)
	k := m.register(t, "")
	if !second.reports.has(api.StepError, "no longer on this node") {
		t.Error("the missing device was not reported")
	}
	k.unprepare(t, "a")
	same(t, "checkpoint", []string{}, second.claims(t))
}

func TestLostDevice(t *testing.T) {
	m := newMachine(t)
	m.allocate(t, claim("a", "gpu-0"), claim("b", "gpu-1"))
	d := m.start(t, nil)
	k := m.register(t, "")
	k.prepare(t, "a")
	for _, device := range []string{"gpu-0", "gpu-1"} {
		m.inject(t, device, api.Fault{ID: "f", Kind: api.FaultLost})
		eventually(t, device+" is lost", func() bool { return d.reports.has(api.StepHealth, device+" Unhealthy: GPU is lost") })
	}
	// A lost device cannot be prepared, but it can be given back.
	if _, failed := k.prepare(t, "b"); !strings.Contains(failed["b"], `device "gpu-1"`) {
		t.Errorf("got %q", failed["b"])
	}
	k.unprepare(t, "a")
	same(t, "checkpoint", []string{}, d.claims(t))
}

// occupy has a process use a GPU until release is called.
func (m *machine) occupy(t *testing.T, device string) (release func()) {
	t.Helper()
	path := filepath.Join(m.hardwareDir(), device, api.ProcessesName, "x.json")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString(`{"pid":42,"bytes":1048576,"name":"stubborn"}`); err != nil {
		t.Fatal(err)
	}
	return sync.OnceFunc(func() {
		if err := errors.Join(os.Remove(path), f.Close()); err != nil {
			t.Error(err)
		}
	})
}

func TestProcessThatStaysTaintsItsDeviceUntilItGoes(t *testing.T) {
	m := newMachine(t)
	m.allocate(t, claim("a", "gpu-0"), claim("b", "gpu-0"))
	recorder := events.NewFakeRecorder(16)
	often := func(c *plugin.Config) { c.ProbeEvery, c.Events = 10*time.Millisecond, recorder }
	leaked := func() bool { return slices.Contains(m.taints(t, "gpu-0"), api.TaintLeaked+"=processes:NoSchedule") }
	d := m.start(t, often)
	k := m.register(t, "")
	// Given a process that outlives its claim,
	k.prepare(t, "a")
	release := m.occupy(t, "gpu-0")
	defer release()
	k.unprepare(t, "a")
	// then the claim is gone and the device says so,
	eventually(t, "reported", func() bool { return d.reports.has(api.StepLeftover, "processes 42 still use it") })
	same(t, "checkpoint", []string{}, d.claims(t))
	eventually(t, "tainted", leaked)
	if got, want := <-recorder.Events, "Warning GPULeaked gpu-0: processes of claim default/a stayed behind"; got != want {
		t.Errorf("the event is %q, want %q", got, want)
	}
	// to the next driver too,
	d.stop()
	d = m.start(t, often)
	k = m.register(t, "")
	eventually(t, "tainted by the next driver", func() bool { return d.reports.has(api.StepTainted, api.TaintLeaked) })
	if !leaked() {
		t.Errorf("taints are %v", m.taints(t, "gpu-0"))
	}
	// and while another claim has the device,
	k.prepare(t, "b")
	release()
	if !leaked() {
		t.Errorf("with a claim: taints are %v", m.taints(t, "gpu-0"))
	}
	// until it is as it had been.
	k.unprepare(t, "b")
	eventually(t, "untainted", func() bool { return d.reports.has(api.StepUntainted, api.TaintLeaked) && !leaked() })
}

// A claim can vanish behind the kubelet's back: its finalizer was removed, or
// the kubelet has lost its record of it. Whether its preparation was complete or
// cut off makes no difference.
func TestClaimsThatNoLongerExistAreCollected(t *testing.T) {
	m := newMachine(t)
	m.allocate(t, claim("gone", "gpu-0"), claim("renewed", "gpu-1"), claim("used", "gpu-2"), claim("here", "gpu-3"))
	often := func(c *plugin.Config) { c.CollectEvery = 10 * time.Millisecond }
	cut := m.start(t, nil)
	m.register(t, "").prepare(t, "gone", "renewed", "used", "here")
	cut.stop()
	// Given a claim that was only started,
	store, err := checkpoint.Open(t.Context(), filepath.Join(m.pluginDir(), api.CheckpointName), "boot-1")
	if err != nil {
		t.Fatal(err)
	}
	started := checkpoint.Entry{UID: "uid-started", Namespace: "default", Name: "started"}
	if _, err := store.Start(t.Context(), started); err != nil {
		t.Fatal(err)
	}
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}
	// one in use,
	release := m.occupy(t, "gpu-2")
	defer release()
	// and all but one gone, one of them replaced by another of its name,
	claims := m.client.ResourceV1().ResourceClaims("default")
	for _, name := range []string{"gone", "renewed", "used"} {
		if err := claims.Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	renewed := claim("renewed", "gpu-1")
	renewed.UID = "uid-of-another"
	m.allocate(t, renewed)

	d := m.start(t, often)
	eventually(t, "those not in use are collected", func() bool { return slices.Equal(d.claims(t), []string{"here", "used"}) })
	eventually(t, "the one in use is reported", func() bool { return d.reports.has(api.StepError, "not while it is used") })
	same(t, "specs", []string{"here", "used"}, m.specs(t))
	same(t, "reservations", []string{"gpu-2/used", "gpu-3/here"}, m.reservations(t))
	eventually(t, "both are reported", func() bool {
		return d.reports.has(api.StepCollected, "uid-of-another") && d.reports.has(api.StepCollected, "no longer exists")
	})
	release()
	eventually(t, "the last one is collected", func() bool { return slices.Equal(d.claims(t), []string{"here"}) })
}

// share is a claim that has a part of gpu-0.
func share(name, memory string) *resourceapi.ResourceClaim {
	c := claim(name, "gpu-0")
	r := &c.Status.Allocation.Devices.Results[0]
	r.ShareID = ptr.To(types.UID("share-" + name))
	r.ConsumedCapacity = map[resourceapi.QualifiedName]resource.Quantity{api.CapacityMemory: resource.MustParse(memory)}
	return c
}

func TestSharesOfOneGPU(t *testing.T) {
	m := newMachine(t)
	m.allocate(t, share("a", "30Gi"), share("b", "40Gi"), share("c", "20Gi"))
	shared := func(c *plugin.Config) { c.Shared = func(gpu device.GPU) bool { return gpu.Index == 0 } }
	d := m.start(t, shared)
	k := m.register(t, "")
	// Two fit, a third does not, whatever the scheduler thought,
	if _, failed := k.prepare(t, "a", "b"); len(failed) > 0 {
		t.Fatal(failed)
	}
	if _, failed := k.prepare(t, "c"); !strings.Contains(failed["c"], "too much of its memory") {
		t.Errorf("got %v", failed)
	}
	spec, err := os.ReadFile(filepath.Join(m.cdiDir(), "k8s.gpu.lab.example-claim_uid-a.json"))
	if err != nil {
		t.Fatal(err)
	}
	if want := api.MemoryEnvName("gpu-0") + "=32212254720"; !strings.Contains(string(spec), want) {
		t.Errorf("the CDI spec has no %s: %s", want, spec)
	}
	// also for the next driver, and what one leaves is the next one's.
	d.stop()
	m.start(t, shared)
	k = m.register(t, "")
	if _, failed := k.prepare(t, "c"); len(failed) == 0 {
		t.Error("the third share fits after a restart")
	}
	k.unprepare(t, "a")
	if _, failed := k.prepare(t, "c"); len(failed) > 0 {
		t.Error(failed)
	}
	k.unprepare(t, "b", "c")
	same(t, "reservations", []string{}, m.reservations(t))
}

func TestLastShareTellsWhatStayedBehind(t *testing.T) {
	m := newMachine(t)
	m.allocate(t, share("a", "30Gi"), share("b", "40Gi"))
	d := m.start(t, func(c *plugin.Config) { c.Shared = func(gpu device.GPU) bool { return gpu.Index == 0 } })
	k := m.register(t, "")
	k.prepare(t, "a")
	k.prepare(t, "b")
	release := m.occupy(t, "gpu-0")
	defer release()
	// Whose process that is nobody can tell while another claim has a share,
	k.unprepare(t, "a")
	if d.reports.has(api.StepLeftover, "") {
		t.Errorf("reports: %+v", d.reports.all())
	}
	if !d.reports.has("unprepare-step", "a share of gpu-0 is back") {
		t.Error("nothing is told of the share")
	}
	// but when all have been given back it is nobody's.
	k.unprepare(t, "b")
	eventually(t, "reported", func() bool { return d.reports.has(api.StepLeftover, "processes 42 still use it") })
	eventually(t, "tainted", func() bool {
		return slices.Contains(m.taints(t, "gpu-0"), api.TaintLeaked+"=processes:NoSchedule")
	})
	same(t, "checkpoint", []string{}, d.claims(t))
}

func TestLastShareIsComparedWithTheTimeBeforeTheFirst(t *testing.T) {
	m := newMachine(t)
	m.allocate(t, share("a", "30Gi"), share("b", "40Gi"))
	d := m.start(t, func(c *plugin.Config) { c.Shared = func(gpu device.GPU) bool { return gpu.Index == 0 } })
	k := m.register(t, "")
	k.prepare(t, "a")
	k.prepare(t, "b")
	k.unprepare(t, "a")
	k.unprepare(t, "b")
	if !d.reports.has("unprepare-step", "memory of gpu-0 is back to its baseline (561 MiB used)") || d.reports.has(api.StepLeftover, "") {
		t.Errorf("reports: %+v", d.reports.all())
	}
}

func TestTwoSharesOfOneGPUInOneClaimAreRefused(t *testing.T) {
	m := newMachine(t)
	c := share("a", "1Gi")
	second := *c.Status.Allocation.Devices.Results[0].DeepCopy()
	second.Request, second.ShareID = "more", ptr.To(types.UID("share-more"))
	c.Status.Allocation.Devices.Results = append(c.Status.Allocation.Devices.Results, second)
	m.allocate(t, c)
	d := m.start(t, func(c *plugin.Config) { c.Shared = func(device.GPU) bool { return true } })
	if _, failed := m.register(t, "").prepare(t, "a"); !strings.Contains(failed["a"], `device "gpu-0": allocated twice in one claim, ask for different ones`) {
		t.Errorf("got %v", failed)
	}
	same(t, "checkpoint", []string{}, d.claims(t))
}

func TestDamagedHealthFileIsReported(t *testing.T) {
	for name, content := range map[string]string{
		"damaged":         `{"v1":{"checksum":"sha256:00","data":{"bootID":"boot-1","latched":{}}}}`,
		"not JSON":        `{"v1":`,
		"another version": `{"v7":{"checksum":"sha256:00","data":{}}}`,
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t)
			if err := os.WriteFile(filepath.Join(m.pluginDir(), "health.json"), []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
			d := m.start(t, nil)
			m.register(t, "") // it starts all the same
			if !d.reports.has(api.StepError, "health read what was wrong with GPUs before the restart") {
				t.Errorf("reports: %+v", d.reports.all())
			}
			if want := `dra_lab_background_errors_total{source="health"} 1`; !strings.Contains(d.metrics(t), want) {
				t.Errorf("metrics have no %s", want)
			}
			// What comes from now on is remembered again.
			m.inject(t, "gpu-0", api.Fault{ID: "f", Kind: api.FaultXID, Code: 48})
			eventually(t, "tainted", func() bool { return len(m.taints(t, "gpu-0")) == 1 })
			d.stop()
			next := m.start(t, nil)
			m.register(t, "")
			if next.reports.has(api.StepError, "") {
				t.Errorf("the next driver reports: %+v", next.reports.all())
			}
		})
	}
}

// stream collects the health that a kubelet hears.
func stream(t *testing.T, k *kubelet) (next func() map[string]*healthv1.DeviceHealth) {
	t.Helper()
	s, err := k.WatchHealth(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return func() map[string]*healthv1.DeviceHealth {
		t.Helper()
		msg, err := s.Recv()
		if err != nil {
			t.Fatal(err)
		}
		byName := map[string]*healthv1.DeviceHealth{}
		for _, d := range msg.Devices {
			if d.Device.PoolName != nodeName {
				t.Errorf("pool is %q", d.Device.PoolName)
			}
			byName[d.Device.DeviceName] = d
		}
		return byName
	}
}

func TestFatalFaultAndRecovery(t *testing.T) {
	m := newMachine(t)
	d := m.start(t, nil)
	k := m.register(t, "")
	next := stream(t, k)
	first := next()
	for _, name := range []string{"gpu-0", "gpu-1", "gpu-2", "gpu-3"} {
		if h := first[name]; h.GetHealth() != healthv1.HealthStatus_HEALTHY || h.GetMessage() != "" {
			t.Errorf("%s is %v", name, h)
		}
	}

	// When a GPU falls off the bus,
	start := time.Now()
	m.inject(t, "gpu-1", api.Fault{ID: "f", Kind: api.FaultXID, Code: 79})
	// then the kubelet hears of it at once,
	got := next()
	took := time.Since(start)
	if h := got["gpu-1"]; h.Health != healthv1.HealthStatus_UNHEALTHY || !strings.HasPrefix(h.Message, "XID 79: GPU has fallen off the bus") {
		t.Errorf("got %v", h)
	}
	if h := got["gpu-0"]; h.GetHealth() != healthv1.HealthStatus_HEALTHY {
		t.Errorf("the others are %v", h)
	}
	t.Logf("fault to health stream: %s", took)
	// and the scheduler soon.
	eventually(t, "tainted", func() bool { return len(m.taints(t, "gpu-1")) == 1 })
	same(t, "taints", []string{"gpu.lab.example/xid=79:NoExecute"}, m.taints(t, "gpu-1"))
	same(t, "taints of the others", []string{}, m.taints(t, "gpu-0"))

	// When the fault is cleared, then both hear of that.
	m.inject(t, "gpu-1")
	for got["gpu-1"].GetHealth() != healthv1.HealthStatus_HEALTHY {
		got = next()
	}
	eventually(t, "untainted", func() bool { return len(m.taints(t, "gpu-1")) == 0 })
	eventually(t, "reported", func() bool { return d.reports.has(api.StepUntainted, "gpu-1 gpu.lab.example/xid=79:NoExecute") })
	for _, want := range [][2]string{
		{api.StepEvent, "gpu-1 XID 79, fatal"},
		{api.StepHealth, "gpu-1 Unhealthy: XID 79"},
		{api.StepTainted, "gpu-1 gpu.lab.example/xid=79:NoExecute"},
		{api.StepHealth, "gpu-1 Healthy"},
	} {
		if !d.reports.has(want[0], want[1]) {
			t.Errorf("no report %s %s", want[0], want[1])
		}
	}
}

func TestFaultSurvivesARestartOfTheDriver(t *testing.T) {
	m := newMachine(t)
	first := m.start(t, nil)
	m.register(t, "")
	m.inject(t, "gpu-0", api.Fault{ID: "f", Kind: api.FaultXID, Code: 48})
	eventually(t, "tainted", func() bool { return len(m.taints(t, "gpu-0")) == 1 })
	first.stop()
	// The next driver hears of no event, and still knows which XID it was,
	// from its first slice on.
	second := m.start(t, nil)
	eventually(t, "published", func() bool { return second.reports.has(api.StepPublished, "") })
	same(t, "taints", []string{"gpu.lab.example/xid=48:NoExecute"}, m.taints(t, "gpu-0"))
}

func TestHealthIsSentAgain(t *testing.T) {
	m := newMachine(t)
	m.start(t, func(c *plugin.Config) { c.ResendEvery = 20 * time.Millisecond })
	next := stream(t, m.register(t, ""))
	for range 5 {
		if got := next(); len(got) != 4 {
			t.Errorf("%d devices were sent", len(got))
		}
	}
}

func TestSlicesAreRetriedWhenTheAPIServerComesBack(t *testing.T) {
	m := newMachine(t)
	var mu sync.Mutex
	down := true
	m.client.PrependReactor("create", "resourceslices", func(clienttesting.Action) (bool, runtime.Object, error) {
		mu.Lock()
		defer mu.Unlock()
		if down {
			return true, nil, apierrors.NewServiceUnavailable("down")
		}
		return false, nil, nil
	})
	d := m.start(t, nil)
	eventually(t, "error reported", func() bool { return d.reports.has(api.StepError, "down") })
	if err := d.Ready(t.Context()); err == nil || !strings.Contains(err.Error(), "not published") {
		t.Errorf("ready: %v", err)
	}
	mu.Lock()
	down = false
	mu.Unlock()
	eventually(t, "published", func() bool { return d.reports.has(api.StepPublished, "4 devices") })
}

func TestFatalErrorEndsTheDriverWithItsCause(t *testing.T) {
	m := newMachine(t)
	d := m.start(t, nil)
	m.register(t, "")
	cause := errors.New("accept: too many open files")
	d.HandleError(t.Context(), cause, "DRA gRPC server failed")
	if err := <-d.done; !errors.Is(err, cause) {
		t.Errorf("got %v", err)
	}
}

func TestTwoInstances(t *testing.T) {
	m := newMachine(t)
	m.allocate(t, claim("a", "gpu-0"), claim("b", "gpu-1"), claim("thief", "gpu-0"))
	instance := func(uid types.UID) (*running, *kubelet) {
		return m.start(t, func(c *plugin.Config) { c.PodUID = uid }), m.register(t, uid)
	}
	// Given sockets of an instance that died without a word,
	for _, dir := range []string{m.pluginDir(), m.registrarDir()} {
		name := map[string]string{m.pluginDir(): "dra-dead.sock", m.registrarDir(): api.DriverName + "-dead-reg.sock"}[dir]
		l, err := net.Listen("unix", filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		l.(*net.UnixListener).SetUnlinkOnClose(false)
		l.Close()
	}
	old, viaOld := instance("old")
	viaOld.prepare(t, "a")
	// when a new one comes beside it, then both serve the same state:
	_, viaNew := instance("new")
	if _, failed := viaNew.prepare(t, "thief"); !strings.Contains(failed["thief"], "held by another claim") {
		t.Errorf("the new instance gives away what the old one has prepared: %v", failed)
	}
	viaNew.prepare(t, "b")
	viaOld.unprepare(t, "b")
	viaNew.unprepare(t, "a")
	same(t, "specs", []string{}, m.specs(t))
	same(t, "checkpoint", []string{}, old.claims(t))

	// and when the old one goes, the new one stays.
	old.stop()
	if _, failed := viaNew.prepare(t, "a"); len(failed) > 0 {
		t.Error(failed)
	}
	for _, dir := range []string{m.pluginDir(), m.registrarDir()} {
		sockets, err := filepath.Glob(filepath.Join(dir, "*.sock"))
		if err != nil || len(sockets) != 1 || !strings.Contains(sockets[0], "new") {
			t.Errorf("sockets: %v, %v", sockets, err)
		}
	}
}

func TestManyClaimsAtOnce(t *testing.T) {
	m := newMachine(t)
	names := []string{"a", "b", "c", "d"}
	for i, n := range names {
		m.allocate(t, claim(n, api.DeviceName(i)))
	}
	d := m.start(t, nil)
	k := m.register(t, "")
	var wg sync.WaitGroup
	for _, n := range names {
		for range 3 {
			wg.Go(func() {
				if _, failed := k.prepare(t, n); len(failed) > 0 {
					t.Error(failed)
				}
			})
		}
	}
	wg.Wait()
	same(t, "specs", names, m.specs(t))
	for _, n := range names {
		wg.Go(func() { k.unprepare(t, n) })
	}
	wg.Wait()
	same(t, "checkpoint", []string{}, d.claims(t))
	same(t, "reservations", []string{}, m.reservations(t))
}

func TestHTTP(t *testing.T) {
	m := newMachine(t)
	m.allocate(t, claim("a", "gpu-0"))
	d := m.start(t, nil)
	k := m.register(t, "")
	k.prepare(t, "a")
	eventually(t, "ready", func() bool { return d.Ready(t.Context()) == nil })
	server := httptest.NewServer(d.Handler())
	defer server.Close()
	get := func(path string) (int, string) {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := server.Client().Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(body)
	}
	for _, path := range []string{api.PathLive, api.PathReady} {
		if code, body := get(path); code != http.StatusOK {
			t.Errorf("%s: %d %s", path, code, body)
		}
	}
	_, body := get(api.PathMetrics)
	for _, want := range []string{
		`dra_lab_claim_duration_seconds_count{error="false",operation="prepare"} 1`,
		`dra_lab_accepted_connections_total 2`,
		`dra_lab_prepared_claims 1`,
		`dra_lab_prepared_devices 1`,
		`dra_lab_device_health{device="gpu-0",health="Healthy"} 1`,
		"process_resident_memory_bytes",
	} {
		if !strings.Contains(body, want) {
			t.Errorf("metrics have no %s", want)
		}
	}
	_, body = get(api.PathStatus)
	status, err := api.ParseDriverStatus([]byte(body))
	if err != nil {
		t.Fatal(err)
	}
	same(t, "claims", []api.PreparedClaim{{UID: "uid-a", Namespace: "default", Name: "a", Devices: []string{"gpu-0"}, Completed: true}}, status.Claims)
	if len(status.Devices) != 4 || status.Devices[0].Health != api.HealthHealthy || status.Devices[0].UsedBytes == 0 {
		t.Errorf("devices: %+v", status.Devices)
	}
	d.stop()
	if err := d.Live(context.Background()); err == nil {
		t.Error("a driver that has stopped is alive")
	}
}
