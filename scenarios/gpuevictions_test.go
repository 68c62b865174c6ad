// Scenario gpu-evictions: what ends a program on a GPU evicts its Pod; what does
// not leaves it alone; what stays behind after it keeps the next one away; and
// what comes and goes does not evict again and again.
//
// Given four Pods with a GPU each, when three of the GPUs have an XID, an
// uncorrectable memory error and fall off the bus, then their Pods are evicted,
// while a corrected memory error on the fourth is only told. When that Pod's
// program ends and memory stays in use, the GPU has the taint leaked until it is
// clean. A fifth GPU, whose fault comes and goes all the time, is tainted to stay
// from the second time on. Needs five GPUs.

package scenarios

import (
	"context"
	"fmt"
	"testing"
	"time"

	"sigs.k8s.io/e2e-framework/pkg/envconf"
	"sigs.k8s.io/e2e-framework/pkg/features"

	"github.com/dra-lab/dra-lab/driver/api"
	"github.com/dra-lab/dra-lab/lab/timeline"
	"github.com/dra-lab/dra-lab/scenarios/internal/stage"
)

// flap is how long the fault that comes and goes is there and away.
const flap = 2 * time.Second

type gpuEvictions struct {
	faulty
	fatal    []gpuFault
	survivor stage.GPU
	flapping stage.GPU
	flaps    timeline.Event
}

func TestGPUEvictions(t *testing.T) {
	s := &gpuEvictions{faulty: faulty{Stage: stage.New(t, "gpu-evictions")}, fatal: []gpuFault{
		{fault: api.Fault{Kind: api.FaultXID, Code: 79}, pod: "xid", says: "XID 79", taint: api.TaintXID + "=79:NoExecute"},
		{fault: api.Fault{Kind: api.FaultECCDouble}, pod: "ecc-double", says: "uncorrectable ECC error", taint: api.TaintECC + "=uncorrectable:NoExecute"},
		{fault: api.Fault{Kind: api.FaultLost}, pod: "gpu-lost", says: "GPU is lost", taint: api.TaintLost + "=lost:NoExecute"},
	}}
	s.Play(t, features.New("GPU evictions").
		Setup(s.Begin).
		Setup(s.look).
		Assess("four Pods have a GPU each, and on a fifth a fault comes and goes", s.startPods).
		Assess("each fatal fault evicts the Pod whose GPU has it", s.evict).
		Assess("a corrected memory error is told and evicts nobody", s.survive).
		Assess("memory that stays in use after the program's end taints the GPU", s.leak).
		Assess("a fault that comes and goes keeps its taint from the second time on", s.checkFlapping).
		Assess("when the faults are cleared, no GPU is tainted", s.recover).
		Assess("everything is as it was", s.checkClean))
}

func (s *gpuEvictions) startPods(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
	used := map[stage.GPU]bool{}
	pods := []string{"ecc-single"}
	for _, c := range s.fatal {
		pods = append(pods, c.pod)
	}
	for i, pod := range pods {
		s.create(ctx, t, pod, s.nodes[i%len(s.nodes)], 1)
	}
	for _, pod := range pods {
		s.Await(ctx, t, stage.Start, "Pod "+pod+" to be Ready", stage.Is(timeline.PodReady, stage.Pod(pod)))
		used[s.devices(ctx, t, pod)[0]] = true
	}
	s.survivor = s.devices(ctx, t, "ecc-single")[0]
	for i := range s.fatal {
		s.fatal[i].gpu = s.devices(ctx, t, s.fatal[i].pod)[0]
	}
	for gpu := range s.baseline {
		if !used[gpu] && (s.flapping.Name == "" || gpu.Name < s.flapping.Name) {
			s.flapping = gpu
		}
	}
	s.flaps = s.Break(ctx, t, s.flapping, api.Fault{Kind: api.FaultXID, Code: 79, Flap: flap})
	return ctx
}

func (s *gpuEvictions) evict(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
	for i := range s.fatal {
		c := &s.fatal[i]
		c.begun = s.Break(ctx, t, c.gpu, c.fault)
	}
	for _, c := range s.fatal {
		kind, gpu, pod := c.fault.Kind, stage.Device(c.gpu), stage.Pod(c.pod)
		told := s.Await(ctx, t, soon, kind+" to be found", stage.Is(timeline.DeviceHealth, gpu, stage.Detail(api.HealthUnhealthy), stage.Says(c.says)))
		s.Measure(t, kind+" to the driver's verdict", c.begun, told, healthLimit)
		status := s.Await(ctx, t, soon, kind+" in the Pod's status", podHealth(c.pod, c.gpu, api.HealthUnhealthy, c.says))
		s.Measure(t, kind+", verdict to the Pod's status", told, status, healthLimit)
		tainted := s.Await(ctx, t, soon, kind+" as a taint", stage.Is(timeline.DeviceTainted, gpu, stage.Detail(c.taint)))
		s.Measure(t, kind+", verdict to the taint", told, tainted, healthLimit)
		deleted := s.Await(ctx, t, soon, kind+" to evict", stage.Is(timeline.PodDeleted, pod, stage.Detail(timeline.TaintEviction)))
		s.Measure(t, kind+", taint to the Pod's deletion", tainted, deleted, evictLimit)
	}
	for _, c := range s.fatal {
		s.Await(ctx, t, soon, "unprepare of "+c.pod, stage.Is(timeline.Unprepared, stage.Claim(c.pod)))
		s.Await(ctx, t, soon, "the end of Pod "+c.pod, stage.Is(timeline.PodGone, stage.Pod(c.pod)))
	}
	return ctx
}

func (s *gpuEvictions) survive(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
	s.Break(ctx, t, s.survivor, api.Fault{Kind: api.FaultECCSingle})
	s.Await(ctx, t, soon, "the corrected error", stage.Is(timeline.GPUEvent, stage.Device(s.survivor), stage.Says("corrected ECC error")))
	pod := stage.Pod("ecc-single")
	s.CheckQuiet(ctx, t, 2*time.Second, "something becomes of a corrected error", anyOf(
		stage.Is(timeline.DeviceHealth, stage.Device(s.survivor), stage.Detail(api.HealthUnhealthy)),
		stage.Is(timeline.PodDeleted, pod), stage.Is(timeline.ContainerExited, pod),
	))
	return ctx
}

func (s *gpuEvictions) leak(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
	const taint = api.TaintLeaked + "=" + api.LeakMemory + ":NoSchedule"
	s.Mend(ctx, t) // all others are through; this GPU can have one fault of this scenario at a time
	s.Break(ctx, t, s.flapping, api.Fault{Kind: api.FaultXID, Code: 79, Flap: flap})
	s.Break(ctx, t, s.survivor, api.Fault{Kind: api.FaultMemoryLeak, Code: 2048})
	s.remove(ctx, t, "ecc-single")
	left := s.Await(ctx, t, soon, "the leftover", driverStep(s.survivor.Node, api.StepLeftover))
	tainted := s.Await(ctx, t, soon, "the taint", stage.Is(timeline.DeviceTainted, stage.Device(s.survivor), stage.Detail(taint)))
	s.Measure(t, "leak found, to the taint", left, tainted, healthLimit)
	s.Await(ctx, t, soon, "unprepare", stage.Is(timeline.Unprepared, stage.Claim("ecc-single")))
	return ctx
}

func (s *gpuEvictions) checkFlapping(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
	gpu := stage.Device(s.flapping)
	s.Await(ctx, t, soon, "the fault to come again", stage.Is(timeline.DeviceHealth, gpu, stage.Says("it comes and goes")))
	s.CheckQuiet(ctx, t, 3*flap, "the taint goes", stage.Is(timeline.DeviceUntaint, gpu, stage.After(s.Note("the fault comes and goes", s.flapping.Node))))
	taints := 0
	for _, e := range s.Recorder.Timeline().Events {
		if stage.Is(timeline.DeviceTainted, gpu)(e) {
			taints++
		}
	}
	if taints > 3 {
		t.Errorf("the GPU was tainted %d times", taints)
	}
	s.Remark("in %s the fault came %d times, and the GPU was tainted %d times", time.Since(s.flaps.Time).Round(time.Second), 1+int(time.Since(s.flaps.Time)/(2*flap)), taints)
	return ctx
}

func (s *gpuEvictions) recover(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
	mended := s.Mend(ctx, t)
	for what, gpu := range map[string]stage.GPU{"leaked": s.survivor, "flapping": s.flapping} {
		untainted := s.Await(ctx, t, soon, fmt.Sprintf("%s to be untainted", gpu), stage.Is(timeline.DeviceUntaint, stage.Device(gpu), stage.After(mended)))
		s.Measure(t, what+" cleared, to no taint", mended, untainted, 25*time.Second)
	}
	return ctx
}
