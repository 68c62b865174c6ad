package health_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dra-lab/dra-lab/driver/api"
	"github.com/dra-lab/dra-lab/driver/internal/device"
	"github.com/dra-lab/dra-lab/driver/internal/health"
)

// history drives one machine through time.
type history struct {
	t       *testing.T
	machine *health.Machine
	now     time.Time
}

func begin(t *testing.T) *history {
	return &history{
		t:       t,
		machine: health.NewMachine(health.Rules{}, device.GPU{Index: 0, Name: "gpu-0", UUID: "GPU-0"}),
		now:     time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
	}
}

func (h *history) after(d time.Duration) *history {
	h.now = h.now.Add(d)
	return h
}

func (h *history) event(kind device.EventKind, code uint64) *history {
	h.machine.Event(device.Event{Kind: kind, Code: code}, h.now)
	return h
}

func (h *history) reads(r device.Reading) *history {
	h.machine.Read(r, h.now, h.now)
	return h
}

// is checks the verdict: health, and a part of the message.
func (h *history) is(want, message string) *history {
	h.t.Helper()
	s := h.machine.Status()
	if s.Health != want || !strings.Contains(s.Message, message) || want == api.HealthHealthy && s.Message != "" {
		h.t.Errorf("after %s: %s %q, want %s %q", h.now.Format(time.TimeOnly), s.Health, s.Message, want, message)
	}
	return h
}

// tainted checks the taints.
func (h *history) tainted(want ...string) *history {
	h.t.Helper()
	var got []string
	for _, taint := range (health.Rules{}).Taints(h.machine.Status()) {
		got = append(got, taint.String())
	}
	if diff := cmp.Diff(want, got); diff != "" {
		h.t.Errorf("taints (-want +got):\n%s", diff)
	}
	return h
}

// good is the reading of a GPU that answers everything and is well.
func good() device.Reading {
	return device.Reading{
		Temperature: device.Known(40), TemperatureLimit: device.Known(87),
		PCIeWidth: device.Known(16), PCIeWidthMax: device.Known(16),
		PowerMilliwatts: device.Known(70000), UncorrectedECC: device.Known[uint64](0),
		RemapFailed: device.Known(false), Recovery: device.Known(device.RecoveryNone),
		UsedBytes: device.Known[uint64](1),
	}
}

// with is good with a change.
func with(change func(*device.Reading)) device.Reading {
	r := good()
	change(&r)
	return r
}

func wants(a device.RecoveryAction) device.Reading {
	return with(func(r *device.Reading) { r.Recovery = device.Known(a) })
}

const tick = 5 * time.Second

func TestNothingIsKnownAtFirst(t *testing.T) {
	begin(t).is(api.HealthUnknown, "not asked yet").tainted().reads(good()).is(api.HealthHealthy, "").tainted()
}

func TestFatalXID(t *testing.T) {
	begin(t).reads(good()).
		after(tick).event(device.EventXID, 79).
		is(api.HealthUnhealthy, "XID 79: GPU has fallen off the bus").tainted("gpu.lab.example/xid=79:NoExecute").
		// It stays while the GPU wants to be recovered,
		after(tick).reads(wants(device.RecoveryNodeReboot)).is(api.HealthUnhealthy, "XID 79").
		// and goes when the GPU says that it is well.
		after(tick).reads(good()).is(api.HealthHealthy, "").tainted()
}

func TestEveryXIDIsFatalUnlessItIsTheApplications(t *testing.T) {
	for _, xid := range []uint64{13, 31, 43, 45, 68, 109} {
		begin(t).reads(good()).event(device.EventXID, xid).is(api.HealthHealthy, "").tainted()
	}
	for _, xid := range []uint64{48, 62, 64, 74, 79, 94, 95, 119, 999} {
		begin(t).reads(good()).event(device.EventXID, xid).is(api.HealthUnhealthy, "XID")
	}
}

func TestHarmlessEventHealsNothing(t *testing.T) {
	begin(t).reads(good()).event(device.EventXID, 48).
		after(tick).event(device.EventXID, 31).event(device.EventECCSingle, 0).event(device.EventRecovery, 0).
		is(api.HealthUnhealthy, "XID 48").tainted("gpu.lab.example/xid=48:NoExecute")
}

func TestFirstFatalEventIsTheOneThatCounts(t *testing.T) {
	begin(t).reads(good()).event(device.EventXID, 48).after(time.Second).event(device.EventXID, 45).event(device.EventXID, 79).
		is(api.HealthUnhealthy, "XID 48").tainted("gpu.lab.example/xid=48:NoExecute")
}

func TestAnswerRightAfterAFatalEventIsNotBelieved(t *testing.T) {
	begin(t).reads(good()).
		after(tick).event(device.EventXID, 79).
		after(time.Second).reads(good()).is(api.HealthUnhealthy, "XID 79").
		// A second event begins the wait anew.
		event(device.EventXID, 79).
		after(1900*time.Millisecond).reads(good()).is(api.HealthUnhealthy, "XID 79").
		after(100*time.Millisecond).reads(good()).is(api.HealthHealthy, "")
}

func TestAnswerToAQuestionFromBeforeTheEventHealsNothing(t *testing.T) {
	h := begin(t).reads(good())
	asked := h.now
	h.after(tick).event(device.EventXID, 79).after(tick)
	h.machine.Read(good(), asked, h.now)
	h.is(api.HealthUnhealthy, "XID 79")
}

func TestGPUThatDoesNotTellWhetherItRecoveredStaysIll(t *testing.T) {
	silent := with(func(r *device.Reading) { r.Recovery = device.Value[device.RecoveryAction]{} })
	begin(t).reads(silent).event(device.EventXID, 79).after(time.Hour).reads(silent).is(api.HealthUnhealthy, "XID 79")
}

func TestECC(t *testing.T) {
	errors := func(n uint64) device.Reading {
		return with(func(r *device.Reading) { r.UncorrectedECC = device.Known(n) })
	}
	// Errors from before the driver started are history,
	begin(t).reads(errors(3)).is(api.HealthHealthy, "").
		// a new one is not, even when its event was lost,
		after(tick).reads(errors(4)).is(api.HealthUnhealthy, "uncorrectable ECC error").tainted("gpu.lab.example/ecc=uncorrectable:NoExecute").
		// and it is over when the GPU says so, although the counter stays.
		after(tick).reads(errors(4)).is(api.HealthHealthy, "")

	begin(t).reads(good()).event(device.EventECCDouble, 0).is(api.HealthUnhealthy, "uncorrectable ECC error")
	begin(t).reads(good()).event(device.EventECCSingle, 0).is(api.HealthHealthy, "")
}

func TestNeedForRecoveryIsAProblemByItself(t *testing.T) {
	// As when the event came before the driver started.
	begin(t).reads(wants(device.RecoveryGPUReset)).
		is(api.HealthUnhealthy, "recovery needed: GPU reset").tainted("gpu.lab.example/recovery=gpu-reset:NoExecute").
		after(tick).reads(good()).is(api.HealthHealthy, "")
	// With the cause known there is one taint, that of the cause.
	begin(t).reads(good()).event(device.EventXID, 79).reads(wants(device.RecoveryGPUReset)).
		tainted("gpu.lab.example/xid=79:NoExecute")
	begin(t).reads(with(func(r *device.Reading) { r.RemapFailed = device.Known(true) })).
		is(api.HealthUnhealthy, "could not be remapped")
}

func TestLostGPU(t *testing.T) {
	begin(t).reads(good()).
		after(tick).reads(device.Reading{Lost: true, Detail: "memory: GPU is lost"}).
		is(api.HealthUnhealthy, "GPU is lost").tainted("gpu.lab.example/gpu-lost=lost:NoExecute").
		after(tick).reads(good()).is(api.HealthHealthy, "").tainted()
}

func TestSilenceIsUnknownNotUnhealthy(t *testing.T) {
	begin(t).reads(good()).
		after(tick).reads(device.Reading{Detail: "7 questions are not supported here"}).
		is(api.HealthUnknown, "answers no question: 7 questions").tainted().
		after(tick).reads(good()).is(api.HealthHealthy, "")
	// One answer is enough to be known; what is not answered counts neither way.
	begin(t).reads(device.Reading{UsedBytes: device.Known[uint64](1)}).is(api.HealthHealthy, "")
}

func TestTemperature(t *testing.T) {
	degrees := func(n int) device.Reading {
		return with(func(r *device.Reading) { r.Temperature = device.Known(n) })
	}
	begin(t).reads(degrees(86)).is(api.HealthHealthy, "").
		reads(degrees(87)).is(api.HealthUnhealthy, "limit of 87").tainted("gpu.lab.example/telemetry=hot:NoSchedule").
		// It has to cool by more than a little,
		reads(degrees(83)).is(api.HealthUnhealthy, "limit of 87").
		reads(degrees(81)).is(api.HealthHealthy, "").
		// and is then as free as before.
		reads(degrees(86)).is(api.HealthHealthy, "")
}

func TestNarrowPCIeLinkIsConfirmed(t *testing.T) {
	narrow := with(func(r *device.Reading) { r.PCIeWidth = device.Known(4) })
	begin(t).reads(narrow).is(api.HealthHealthy, "").reads(good()).reads(narrow).is(api.HealthHealthy, "").
		reads(narrow).is(api.HealthUnhealthy, "4 of 16 lanes").tainted("gpu.lab.example/telemetry=x4:NoSchedule").
		reads(good()).is(api.HealthHealthy, "")
}

func TestSeveralProblems(t *testing.T) {
	begin(t).reads(with(func(r *device.Reading) { r.Temperature = device.Known(99) })).event(device.EventXID, 79).
		is(api.HealthUnhealthy, "XID 79: GPU has fallen off the bus; temperature").
		tainted("gpu.lab.example/telemetry=hot:NoSchedule", "gpu.lab.example/xid=79:NoExecute")
}

func TestProblemIsRememberedOverARestart(t *testing.T) {
	before := begin(t).reads(good()).event(device.EventXID, 79)
	after := begin(t)
	for _, p := range before.machine.Latched() {
		after.machine.Latch(p)
	}
	after.is(api.HealthUnhealthy, "XID 79").
		after(tick).reads(wants(device.RecoveryNodeReboot)).is(api.HealthUnhealthy, "XID 79").
		after(tick).reads(good()).is(api.HealthHealthy, "")
}

func TestEffectsAreConfigurable(t *testing.T) {
	s := begin(t).reads(good()).event(device.EventXID, 79).machine.Status()
	rules := health.Rules{Effects: map[health.Condition]health.Effect{health.XID: health.NoSchedule}}
	if got := rules.Taints(s)[0].Effect; got != health.NoSchedule {
		t.Errorf("effect is %s", got)
	}
}

func TestNeedForRecoveryIsNotForgottenBecauseItIsNotTold(t *testing.T) {
	begin(t).reads(wants(device.RecoveryGPUReset)).
		after(tick).reads(with(func(r *device.Reading) { r.Recovery = device.Value[device.RecoveryAction]{} })).
		is(api.HealthUnhealthy, "recovery needed: GPU reset").tainted("gpu.lab.example/recovery=gpu-reset:NoExecute").
		after(tick).reads(good()).is(api.HealthHealthy, "")
	begin(t).reads(with(func(r *device.Reading) { r.RemapFailed = device.Known(true) })).
		after(tick).reads(with(func(r *device.Reading) { r.RemapFailed = device.Value[bool]{} })).
		is(api.HealthUnhealthy, "could not be remapped").
		after(tick).reads(good()).is(api.HealthHealthy, "")
}

func TestRulesOfTheCallerAreLeftAlone(t *testing.T) {
	effects := map[health.Condition]health.Effect{health.XID: health.NoSchedule}
	health.NewMachine(health.Rules{Effects: effects}, device.GPU{})
	if len(effects) != 1 {
		t.Errorf("the caller's effects became %v", effects)
	}
}

func TestGPUThatCouldNotBeReadIsUnknownAndGetsNoPods(t *testing.T) {
	unread := func(r *device.Reading) { r.Problem = "memory: Not Supported" }
	begin(t).reads(with(unread)).
		is(api.HealthUnknown, "could not be read: memory: Not Supported").
		tainted("gpu.lab.example/unreadable=inventory:NoSchedule").
		// What is wrong with it besides is told as ever.
		after(tick).reads(device.Reading{Lost: true, Problem: "memory: GPU is lost"}).
		is(api.HealthUnhealthy, "GPU is lost").
		tainted("gpu.lab.example/gpu-lost=lost:NoExecute", "gpu.lab.example/unreadable=inventory:NoSchedule").
		after(tick).reads(good()).is(api.HealthHealthy, "").tainted()
}
