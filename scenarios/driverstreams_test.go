// Scenario driver-streams: a driver whose connections to the kubelet go wrong is
// found out, and comes back by itself.
//
// Given a Pod with a GPU, when the driver's health stream breaks, then the kubelet
// opens it again; when it stalls or is late, a GPU's fault reaches the Pod's
// status only when that is over, or so much later; when the clock of the reports
// is wrong, nothing happens, since the kubelet goes by its own. When the service
// socket is gone while the registration socket stays, new Pods cannot be prepared
// until it is back. When the kubelet is refused as it registers a new driver, that
// is not ready until it is told.

package scenarios

import (
	"context"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/e2e-framework/pkg/envconf"
	"sigs.k8s.io/e2e-framework/pkg/features"

	"github.com/dra-lab/dra-lab/driver/api"
	"github.com/dra-lab/dra-lab/lab/timeline"
	"github.com/dra-lab/dra-lab/scenarios/internal/stage"
)

type driverStreams struct {
	faulty
	node string
	gpu  stage.GPU
}

func TestDriverStreams(t *testing.T) {
	s := &driverStreams{faulty: faulty{Stage: stage.New(t, "driver-streams")}}
	s.Play(t, features.New("driver streams").
		Setup(s.Begin).
		Setup(s.look).
		Assess("a Pod uses a GPU", s.startPod).
		Assess("a health stream that breaks is opened again", s.breaks).
		Assess("while it stalls, the Pod's status does not change", s.stalls).
		Assess("while it is late, the Pod's status is, too", s.late).
		Assess("a wrong clock changes nothing", s.jumps).
		Assess("without the service socket no Pod is prepared, and with it the same Pod is", s.socket).
		Assess("a driver whose registration is refused is not ready before it is accepted", s.registration).
		Assess("nothing is left", s.stopPod).
		Assess("everything is as it was", s.checkClean))
}

func (s *driverStreams) startPod(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
	s.node = s.nodes[0]
	s.gpu = s.start(ctx, t, "watched", s.node, 1)[0]
	return ctx
}

func (s *driverStreams) breaks(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
	broken := s.BreakNode(ctx, t, s.node, api.Fault{Kind: api.FaultHealthBreaks, Times: 1})
	again := s.Await(ctx, t, soon, "the kubelet to open it again",
		stage.Is(timeline.DriverStep, stage.Detail(api.StepHealthWatch), stage.Node(s.node), stage.After(broken)))
	s.Measure(t, "health stream broken, to opened again", broken, again, 10*time.Second)
	s.Mend(ctx, t)
	return ctx
}

// heat makes the GPU too hot, and waits until the driver has found out.
func (s *driverStreams) heat(ctx context.Context, t *testing.T) timeline.Event {
	t.Helper()
	hot := s.Break(ctx, t, s.gpu, api.Fault{Kind: api.FaultTemperature, Code: 105})
	return s.Await(ctx, t, soon, "the driver to find out", stage.Is(timeline.DeviceHealth, stage.Device(s.gpu), stage.Detail(api.HealthUnhealthy), stage.After(hot)))
}

// cool ends that, and waits until the Pod's status says so.
func (s *driverStreams) cool(ctx context.Context, t *testing.T) {
	t.Helper()
	mended := s.Mend(ctx, t)
	s.Await(ctx, t, soon, "Healthy in the Pod's status",
		stage.Is(timeline.PodHealth, stage.Pod("watched"), stage.Detail(api.HealthHealthy), stage.After(mended)))
}

func (s *driverStreams) told() stage.Match {
	return podHealth("watched", s.gpu, api.HealthUnhealthy, "")
}

func (s *driverStreams) stalls(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
	s.BreakNode(ctx, t, s.node, api.Fault{Kind: api.FaultHealthStalls, Flap: 12 * time.Second})
	found := s.heat(ctx, t)
	s.CheckQuiet(ctx, t, time.Second, "the Pod's status tells", func(e timeline.Event) bool { return stage.After(found)(e) && s.told()(e) })
	status := s.Await(ctx, t, soon, "the Pod's status to tell", func(e timeline.Event) bool { return stage.After(found)(e) && s.told()(e) })
	s.Measure(t, "verdict to the Pod's status over a stream that stalls", found, status, 15*time.Second)
	s.cool(ctx, t)
	return ctx
}

func (s *driverStreams) late(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
	const late = 4
	s.BreakNode(ctx, t, s.node, api.Fault{Kind: api.FaultHealthLate, Code: late})
	// Of another kind than the last: what comes back soon would be held.
	lost := s.Break(ctx, t, s.gpu, api.Fault{Kind: api.FaultPCIeWidth, Code: 4})
	found := s.Await(ctx, t, soon, "the driver to find out", stage.Is(timeline.DeviceHealth, stage.Device(s.gpu), stage.Says("4 of 16 lanes"), stage.After(lost)))
	status := s.Await(ctx, t, soon, "the Pod's status to tell", podHealth("watched", s.gpu, api.HealthUnhealthy, "4 of 16 lanes"))
	s.Measure(t, "verdict to the Pod's status over a stream that is late", found, status, (late+2)*time.Second)
	if took := status.Time.Sub(found.Time); took < (late-1)*time.Second {
		t.Errorf("it took %s only", took)
	}
	s.cool(ctx, t)
	return ctx
}

func (s *driverStreams) jumps(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
	s.BreakNode(ctx, t, s.node, api.Fault{Kind: api.FaultClockJump, Code: -3600})
	s.Remark("the times in the driver's reports are an hour old; the kubelet goes by when it heard them")
	// Reports are sent again every 10 s.
	s.CheckQuiet(ctx, t, 11*time.Second, "the Pod's status changes", stage.Is(timeline.PodHealth, stage.Pod("watched"), stage.After(s.Note("reports of an hour ago", s.node))))
	s.Mend(ctx, t)
	return ctx
}

func (s *driverStreams) socket(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
	lost := s.BreakNode(ctx, t, s.node, api.Fault{Kind: api.FaultSocketLost})
	s.Await(ctx, t, soon, "the socket to go", acts(s.node, api.FaultSocketLost))
	s.create(ctx, t, "late", s.node, 1)
	warned := s.Await(ctx, t, soon, "the kubelet to say that it cannot prepare", stage.Is(timeline.Warning, stage.Pod("late"), stage.After(lost)))
	s.Mend(ctx, t)
	prepared := s.AwaitPoked(ctx, t, long, "late", "its claim to be prepared", stage.Is(timeline.Prepared, stage.Claim("late")))
	s.Measure(t, "no socket seen, to prepared", warned, prepared, 20*time.Second)
	s.Await(ctx, t, stage.Start, "the Pod to be Ready", stage.Is(timeline.PodReady, stage.Pod("late")))
	s.stop(ctx, t, "late")
	return ctx
}

func (s *driverStreams) registration(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
	old, err := s.DriverPod(ctx, s.node)
	if err != nil {
		t.Fatal(err)
	}
	s.BreakNode(ctx, t, s.node, api.Fault{Kind: api.FaultRegistrationFails})
	if err := s.Client.CoreV1().Pods(old.Namespace).Delete(ctx, old.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	refused := s.Await(ctx, t, long, "the kubelet to be refused", acts(s.node, api.FaultRegistrationFails))
	s.CheckQuiet(ctx, t, 2*time.Second, "the driver is registered", stage.Is(timeline.DriverStep, stage.Detail(api.StepRegistered), stage.Node(s.node), stage.After(refused)))
	s.Mend(ctx, t)
	registered := s.Await(ctx, t, long, "the registration",
		stage.Is(timeline.DriverStep, stage.Detail(api.StepRegistered), stage.Node(s.node), stage.After(refused)))
	s.Measure(t, "registration refused, to registered", refused, registered, time.Minute)
	if err := s.AwaitDriver(ctx, s.node, string(old.UID)); err != nil {
		t.Fatal(err)
	}
	return ctx
}

func (s *driverStreams) stopPod(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
	s.stop(ctx, t, "watched")
	return ctx
}
