// Scenario gpu-faults: what is wrong with a GPU without ending the program that
// uses it reaches the Pod's status and keeps new Pods away, and is over when it
// is over.
//
// Given two Pods on two nodes with seven GPUs, when each GPU gets another fault
// (too hot, slowed down by its power supply, a PCIe link that is narrow or slow,
// out of the fabric, silent, a library call that does not return), then the Pod's
// status says of each how it is and why, the ones of which it is known have a
// taint that keeps new Pods away, no Pod is evicted, and when the faults are
// cleared, all is as before. How long each hop takes is shown. Needs seven GPUs
// with NVLink.

package scenarios

import (
	"context"
	"testing"
	"time"

	"sigs.k8s.io/e2e-framework/pkg/envconf"
	"sigs.k8s.io/e2e-framework/pkg/features"

	"github.com/dra-lab/dra-lab/driver/api"
	"github.com/dra-lab/dra-lab/lab/timeline"
	"github.com/dra-lab/dra-lab/scenarios/internal/stage"
)

// What is not told by an event is found when the GPU is next asked, every 5 s.
// Some things have to be found twice, and silence counts after 15 s.
const (
	askedOnce  = 6 * time.Second
	askedTwice = 11 * time.Second
	silentFor  = 17 * time.Second
	// clearTime is what the command that clears faults may take besides.
	clearTime = 5 * time.Second
)

// gpuFault is a fault and what becomes of it.
type gpuFault struct {
	fault  api.Fault
	health string // in the Pod's status
	says   string // likewise
	taint  string // "" for none
	within time.Duration

	pod   string
	gpu   stage.GPU
	begun timeline.Event
}

type gpuFaults struct {
	faulty
	cases []*gpuFault
}

func TestGPUFaults(t *testing.T) {
	const telemetry = api.TaintTelemetry + "="
	s := &gpuFaults{faulty: faulty{Stage: stage.New(t, "gpu-faults")}, cases: []*gpuFault{
		{
			fault: api.Fault{Kind: api.FaultTemperature, Code: 105}, health: api.HealthUnhealthy,
			says: "temperature is at its limit", taint: telemetry + "hot:NoSchedule", within: askedOnce,
		},
		{
			fault: api.Fault{Kind: api.FaultPower}, health: api.HealthUnhealthy,
			says: "the power supply slows the GPU down", taint: telemetry + "brake:NoSchedule", within: askedTwice,
		},
		{
			fault: api.Fault{Kind: api.FaultPCIeWidth, Code: 8}, health: api.HealthUnhealthy,
			says: "8 of 16 lanes", taint: telemetry + "x8:NoSchedule", within: askedTwice,
		},
		{
			fault: api.Fault{Kind: api.FaultPCIeGeneration, Code: 1}, health: api.HealthUnhealthy,
			says: "generation 1 of", taint: telemetry + "gen1:NoSchedule", within: askedTwice,
		},
		{
			fault: api.Fault{Kind: api.FaultFabric}, health: api.HealthUnhealthy,
			says: "not in the NVLink fabric", taint: telemetry + "fabric:NoSchedule", within: askedOnce,
		},
		{
			fault: api.Fault{Kind: api.FaultUnreadable}, health: api.HealthUnknown,
			says: "answers no question", within: askedOnce,
		},
		{
			fault: api.Fault{Kind: api.FaultHang}, health: api.HealthUnknown,
			says: "has not answered since", within: silentFor,
		},
	}}
	s.Play(t, features.New("GPU faults").
		Setup(s.Begin).
		Setup(s.look).
		Assess("two Pods use seven GPUs", s.startPods).
		Assess("each fault reaches the Pod's status, with its reason, and taints the GPU where it should", s.breakAll).
		Assess("no Pod is evicted", s.checkAlive).
		Assess("when the faults are cleared, every GPU is well again", s.mendAll).
		Assess("nothing is left", s.stopPods).
		Assess("everything is as it was", s.checkClean))
}

func (s *gpuFaults) startPods(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
	const first = 4
	s.create(ctx, t, "first", s.nodes[0], first)
	s.create(ctx, t, "second", s.nodes[len(s.nodes)-1], len(s.cases)-first)
	for _, pod := range []string{"first", "second"} {
		s.Await(ctx, t, stage.Start, "Pod "+pod+" to be Ready", stage.Is(timeline.PodReady, stage.Pod(pod)))
	}
	for i, gpu := range s.devices(ctx, t, "first") {
		s.cases[i].pod, s.cases[i].gpu = "first", gpu
	}
	for i, gpu := range s.devices(ctx, t, "second") {
		s.cases[first+i].pod, s.cases[first+i].gpu = "second", gpu
	}
	return ctx
}

func (s *gpuFaults) breakAll(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
	for _, c := range s.cases {
		c.begun = s.Break(ctx, t, c.gpu, c.fault)
	}
	for _, c := range s.cases {
		gpu := stage.Device(c.gpu)
		told := s.Await(ctx, t, soon, c.fault.Kind+" to be found", stage.Is(timeline.DeviceHealth, gpu, stage.Detail(c.health), stage.Says(c.says)))
		s.Measure(t, c.fault.Kind+" to the driver's verdict", c.begun, told, c.within)
		status := s.Await(ctx, t, soon, c.fault.Kind+" in the Pod's status", podHealth(c.pod, c.gpu, c.health, c.says))
		s.Measure(t, c.fault.Kind+", verdict to the Pod's status", told, status, healthLimit)
		if c.taint == "" {
			continue
		}
		tainted := s.Await(ctx, t, soon, c.fault.Kind+" as a taint", stage.Is(timeline.DeviceTainted, gpu, stage.Detail(c.taint)))
		s.Measure(t, c.fault.Kind+", verdict to the taint", told, tainted, evictLimit)
	}
	return ctx
}

func (s *gpuFaults) checkAlive(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
	s.CheckQuiet(ctx, t, time.Second, "a Pod is evicted", anyOf(stage.Is(timeline.PodDisrupted), stage.Is(timeline.PodDeleted), stage.Is(timeline.ContainerExited)))
	for _, c := range s.cases {
		taints, err := s.Taints(ctx, c.gpu)
		if err != nil {
			t.Fatal(err)
		}
		if want := c.taint != ""; (len(taints) > 0) != want {
			t.Errorf("%s with %s has the taints %v, want one: %v", c.gpu, c.fault.Kind, taints, want)
		}
	}
	return ctx
}

func (s *gpuFaults) mendAll(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
	mended := s.Mend(ctx, t)
	for _, c := range s.cases {
		gpu := stage.Device(c.gpu)
		well := s.Await(ctx, t, soon, c.fault.Kind+" to be over", stage.Is(timeline.DeviceHealth, gpu, stage.Detail(api.HealthHealthy), stage.After(mended)))
		s.Measure(t, c.fault.Kind+" cleared, to the driver's verdict", mended, well, askedOnce+clearTime)
		s.Await(ctx, t, soon, c.fault.Kind+" gone from the Pod's status",
			stage.Is(timeline.PodHealth, stage.Pod(c.pod), gpu, stage.Detail(api.HealthHealthy), stage.After(mended)))
		if c.taint != "" {
			s.Await(ctx, t, soon, "no taint of "+c.fault.Kind, stage.Is(timeline.DeviceUntaint, gpu, stage.Detail(c.taint), stage.After(mended)))
		}
	}
	return ctx
}

func (s *gpuFaults) stopPods(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
	s.stop(ctx, t, "first")
	s.stop(ctx, t, "second")
	return ctx
}
