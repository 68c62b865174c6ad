// Scenario training: a GPU fails in the middle of a training job, and the job
// ends with the same bits as if it had not.
//
// Given a Job of two ranks, each with a GPU from a claim template, that train a
// network together, when one rank's GPU falls off the bus (XID 79), then
//
//   - the driver reports the GPU unhealthy, and the Pod's status says so with
//     the reason;
//   - the driver taints the GPU, and the taint evicts the Pod, which writes a
//     checkpoint as it goes;
//   - the Job's replacement gets another GPU, and both ranks resume from the
//     newest checkpoint that they share;
//   - the job ends, both ranks with the weights of an undisturbed job, bit for
//     bit, and a loss far below the first;
//   - once the fault is cleared, the GPU is healthy and untainted again;
//   - nothing of the claims is left: no CDI spec, no checkpoint entry, no
//     allocation, no memory on the GPUs.

package scenarios

import (
	"context"
	_ "embed"
	"fmt"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	"sigs.k8s.io/e2e-framework/klient/decoder"
	"sigs.k8s.io/e2e-framework/pkg/envconf"
	"sigs.k8s.io/e2e-framework/pkg/features"

	"github.com/dra-lab/dra-lab/driver/api"
	"github.com/dra-lab/dra-lab/lab/timeline"
	"github.com/dra-lab/dra-lab/lab/timeline/workload"
	"github.com/dra-lab/dra-lab/scenarios/internal/stage"
	"github.com/dra-lab/dra-lab/scenarios/trainer/reference"
)

//go:embed training.yaml
var trainingManifest []byte //nolint:gochecknoglobals // filled by the compiler

const (
	ranks = 2
	// faultyRank loses its GPU at faultStep.
	faultyRank = 1
	faultStep  = 100
	xidTaint   = api.TaintXID + "=79:NoExecute"

	// lossFraction is what is left of the first loss at the end, at most.
	lossFraction = 0.05

	readyLimit  = 1500 * time.Millisecond // create to Ready
	healthLimit = 1500 * time.Millisecond // XID to Unhealthy in the Pod's status
	evictLimit  = 1500 * time.Millisecond // XID to the Pod's deletion

	soon = stage.Soon
	// long is the patience for what the job's own pace decides.
	long = 2 * time.Minute
)

// rankState is what the scenario learns about a rank's Pod.
type rankState struct {
	pod   timeline.Event // created
	grant stage.Grant
}

// training is the state that the scenario's steps share.
type training struct {
	*stage.Stage
	first       [ranks]rankState // the Pods that the Job began with
	replacement rankState
	baseline    map[stage.GPU]uint64
	xid         timeline.Event
	want        reference.Result
}

func TestTraining(t *testing.T) {
	s := &training{Stage: stage.New(t, "training")}
	s.Play(t, features.New("training").
		Setup(s.Begin).
		Setup(s.readBaseline).
		Assess("each rank gets a GPU of its own and is Ready", s.startJob).
		Assess("the ranks find the GPUs that their claims promised", s.checkDevices).
		Assess("the ranks train together", s.train).
		Assess("an XID on a rank's GPU reaches the Pod's status and evicts the Pod", s.breakGPU).
		Assess("the replacement gets another GPU and resumes from the checkpoint", s.resume).
		Assess("the job ends as an undisturbed one, bit for bit", s.finish).
		Assess("the GPU recovers when the fault is cleared", s.recover).
		Assess("nothing of the claims is left", s.checkClean))
}

// readBaseline remembers how much memory is in use on every GPU.
func (s *training) readBaseline(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
	var err error
	if s.baseline, err = s.Memory(ctx); err != nil {
		t.Fatal(err)
	}
	return ctx
}

func (s *training) startJob(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
	if err := s.Create(ctx, trainingManifest); err != nil {
		t.Fatal(err)
	}
	for rank := range ranks {
		pod := stage.Pod(podOf(rank))
		s.Await(ctx, t, stage.Start, fmt.Sprintf("rank %d to be Ready", rank), stage.Is(timeline.PodReady, pod))
		s.first[rank] = s.learn(ctx, t, s.Await(ctx, t, soon, "its creation", stage.Is(timeline.PodCreated, pod)))
	}
	if s.first[0].grant.GPU == s.first[1].grant.GPU {
		t.Errorf("both ranks have %s", s.first[0].grant.GPU)
	}
	for rank, r := range s.first {
		ready := s.checkStart(ctx, t, r)
		s.Measure(t, fmt.Sprintf("rank %d, Pod created to Ready", rank), r.pod, ready, readyLimit)
	}
	return ctx
}

// learn finds the claim and the GPU of a Pod.
func (s *training) learn(ctx context.Context, t *testing.T, created timeline.Event) rankState {
	t.Helper()
	return rankState{pod: created, grant: s.AwaitGrant(ctx, t, stage.Pod(created.Pod))}
}

// checkStart checks how a Pod came to run, from its creation to Ready, and
// returns that last event.
func (s *training) checkStart(ctx context.Context, t *testing.T, r rankState) timeline.Event {
	t.Helper()
	pod, claim := stage.Pod(r.pod.Pod), stage.Claim(r.grant.Claim)
	s.Await(ctx, t, soon, "the driver's report on "+r.grant.Claim, stage.Is(timeline.Prepared, claim))
	events := s.InOrder(t,
		stage.Step{What: "Pod created", Match: stage.Is(timeline.PodCreated, pod)},
		stage.Step{What: "claim created from the template", Match: stage.Is(timeline.ClaimCreated, claim)},
		stage.Step{What: "claim allocated", Match: stage.Is(timeline.ClaimAllocated, claim)},
		stage.Step{What: "claim reserved", Match: stage.Is(timeline.ClaimReserved, claim)},
		stage.Step{What: "Pod scheduled", Match: stage.Is(timeline.PodScheduled, pod)},
		stage.Step{What: "prepare started", Match: stage.Is(timeline.PrepareStarted, claim)},
		stage.Step{What: "CDI spec written", Match: stage.Is(timeline.PrepareStep, claim, stage.Says("CDI spec written"))},
		stage.Step{What: "claim prepared", Match: stage.Is(timeline.Prepared, claim)},
		stage.Step{What: "container started", Match: stage.Is(timeline.ContainerStarted, pod)},
		stage.Step{What: "Pod Ready", Match: stage.Is(timeline.PodReady, pod)},
	)
	return events[len(events)-1]
}

func (s *training) checkDevices(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
	for _, r := range s.first {
		s.checkDevice(ctx, t, r)
	}
	return ctx
}

// checkDevice checks that the trainer found what the claim promised, and that
// the GPU shows the trainer's memory. It has to be quick: the job goes on.
func (s *training) checkDevice(ctx context.Context, t *testing.T, r rankState) {
	t.Helper()
	s.AwaitProgram(ctx, t, r.pod.Pod, r.grant)
	used, err := s.Memory(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if gpu := r.grant.GPU; used[gpu] <= s.baseline[gpu] {
		t.Errorf("%s has %d bytes in use, %d before the job: the trainer does not show", gpu, used[gpu], s.baseline[gpu])
	}
}

func (s *training) train(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
	for rank, r := range s.first {
		s.Await(ctx, t, long, fmt.Sprintf("rank %d to write a checkpoint", rank),
			stage.Is(timeline.Workload(workload.EventCheckpoint), stage.Pod(r.pod.Pod), stage.AtStep(faultStep)))
	}
	return ctx
}

func (s *training) breakGPU(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
	victim := s.first[faultyRank]
	gpu, pod, claim := stage.Device(victim.grant.GPU), stage.Pod(victim.pod.Pod), stage.Claim(victim.grant.Claim)
	s.xid = s.Break(ctx, t, victim.grant.GPU, api.Fault{Kind: api.FaultXID, Code: 79, Message: "scenario training"})

	xid := stage.Step{What: "XID", Match: stage.Is(timeline.FaultInjected, gpu)}
	event := stage.Step{What: "the GPU's event", Match: stage.Is(timeline.GPUEvent, gpu, stage.Says("XID 79"))}
	report := stage.Step{What: "health report", Match: stage.Is(timeline.DeviceHealth, gpu, stage.Detail(api.HealthUnhealthy), stage.Says("XID 79"))}
	unhealthy := stage.Step{What: "Unhealthy in the Pod's status, with the reason",
		Match: stage.Is(timeline.PodHealth, pod, gpu, stage.Detail(api.HealthUnhealthy), stage.Says(`"XID 79`))}
	taint := stage.Step{What: "taint", Match: stage.Is(timeline.DeviceTainted, gpu, stage.Detail(xidTaint))}
	mark := stage.Step{What: "mark for eviction because of the taint", Match: stage.Is(timeline.PodDisrupted, pod, stage.Detail(timeline.TaintEviction))}
	deleted := stage.Step{What: "deletion because of the taint", Match: stage.Is(timeline.PodDeleted, pod, stage.Detail(timeline.TaintEviction))}
	leaving := stage.Step{What: "last checkpoint", Match: stage.Is(timeline.Workload(workload.EventLeaving), pod)}
	unprepared := stage.Step{What: "unprepare", Match: stage.Is(timeline.Unprepared, claim)}
	// They come by several ways, each of which keeps its own order only.
	for _, step := range []stage.Step{deleted, unhealthy, taint, leaving, unprepared} {
		s.Await(ctx, t, soon, step.What, step.Match)
	}

	events := s.InOrder(t, xid, event, report, unhealthy)
	s.Measure(t, "XID to Unhealthy in the Pod's status", s.xid, events[len(events)-1], healthLimit)
	events = s.InOrder(t, xid, event, taint, mark, deleted)
	s.Measure(t, "XID to the Pod's deletion", s.xid, events[len(events)-1], evictLimit)
	s.InOrder(t, deleted, leaving,
		stage.Step{What: "CDI spec removed", Match: stage.Is(timeline.UnprepareStep, claim, stage.Says("CDI spec removed"))},
		stage.Step{What: "memory back", Match: stage.Is(timeline.UnprepareStep, claim, stage.Says("back to its baseline"))},
		stage.Step{What: "checkpoint entry removed", Match: stage.Is(timeline.UnprepareStep, claim, stage.Says("checkpoint entry removed"))},
		unprepared,
	)
	return ctx
}

func (s *training) resume(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
	victim, survivor := s.first[faultyRank], s.first[1-faultyRank]
	another := func(e timeline.Event) bool { return stage.Pod(podOf(faultyRank))(e) && e.Pod != victim.pod.Pod }

	s.Remark("a Job waits 10 s after a Pod of its own has failed before it makes another (its back-off)")
	// Meanwhile: what the job must end with.
	args, err := trainerArgs()
	if err != nil {
		t.Fatal(err)
	}
	if s.want, err = reference.Run(args); err != nil {
		t.Fatal(err)
	}
	created := s.Await(ctx, t, long, "the replacement", stage.Is(timeline.PodCreated, another))
	s.Await(ctx, t, stage.Start, "the replacement to be Ready", stage.Is(timeline.PodReady, stage.Pod(created.Pod)))
	s.replacement = s.learn(ctx, t, created)
	ready := s.checkStart(ctx, t, s.replacement)
	s.Measure(t, "replacement, Pod created to Ready", created, ready, readyLimit)
	for _, r := range s.first {
		if gpu := s.replacement.grant.GPU; gpu == r.grant.GPU {
			t.Errorf("the replacement has %s, the GPU of Pod %s", gpu, r.pod.Pod)
		}
	}
	s.checkDevice(ctx, t, s.replacement)

	resumed := stage.Is(timeline.Workload(workload.EventResumed))
	last := s.Await(ctx, t, soon, "the last checkpoint", stage.Is(timeline.Workload(workload.EventLeaving), stage.Pod(victim.pod.Pod)))
	if last.Workload.Step < faultStep {
		t.Errorf("the last checkpoint is of step %d, the fault came at step %d", last.Workload.Step, faultStep)
	}
	for _, pod := range []string{survivor.pod.Pod, created.Pod} {
		e := s.Await(ctx, t, soon, "Pod "+pod+" to resume", func(e timeline.Event) bool { return resumed(e) && e.Pod == pod })
		if e.Workload.Step != last.Workload.Step {
			t.Errorf("Pod %s resumes at step %d, the checkpoint is of step %d", pod, e.Workload.Step, last.Workload.Step)
		}
	}
	return ctx
}

func (s *training) finish(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
	s.Await(ctx, t, long, "the job to end", stage.Is(timeline.JobCompleted))
	for rank, pod := range []string{s.first[0].pod.Pod, s.replacement.pod.Pod} {
		done := s.Await(ctx, t, soon, fmt.Sprintf("rank %d to be done", rank),
			stage.Is(timeline.Workload(workload.EventDone), stage.Pod(pod))).Workload
		if done.Weights != s.want.Weights {
			t.Errorf("rank %d has weights %s, an undisturbed job %s", rank, done.Weights, s.want.Weights)
		}
		if done.Loss > lossFraction*done.FirstLoss {
			t.Errorf("rank %d has loss %.4f at the end, %.4f at first: want at most %g of it", rank, done.Loss, done.FirstLoss, lossFraction)
		}
	}
	return ctx
}

func (s *training) recover(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
	broken := s.first[faultyRank].grant.GPU
	gpu := stage.Device(broken)
	after := stage.After(s.Mend(ctx, t))
	s.Await(ctx, t, soon, "the GPU to be healthy", stage.Is(timeline.DeviceHealth, gpu, stage.Detail(api.HealthHealthy), after))
	s.Await(ctx, t, soon, "the GPU to be untainted", stage.Is(timeline.DeviceUntaint, gpu, stage.Detail(xidTaint), after))
	// Nothing else may be wrong with it either.
	taints, err := s.Taints(ctx, broken)
	if err != nil {
		t.Fatal(err)
	}
	if len(taints) > 0 {
		t.Errorf("%s still has the taints %v", broken, taints)
	}
	status, err := s.DriverStatus(ctx, broken.Node)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range status.Devices {
		if d.Name == broken.Name && d.Health != api.HealthHealthy {
			t.Errorf("%s is %s: %s", broken, d.Health, d.Message)
		}
	}
	return ctx
}

func (s *training) checkClean(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
	for _, r := range []rankState{s.first[0], s.first[1], s.replacement} {
		claim := stage.Claim(r.grant.Claim)
		s.Await(ctx, t, soon, "unprepare of "+r.grant.Claim, stage.Is(timeline.Unprepared, claim))
		s.Await(ctx, t, soon, "the end of the allocation of "+r.grant.Claim, stage.Is(timeline.ClaimDeallocated, claim))
		s.CheckNoTrace(ctx, t, r.grant)
	}
	s.CheckMemory(ctx, t, s.baseline)
	return ctx
}

// podOf is how the names of the Pods of a rank begin.
func podOf(rank int) string { return fmt.Sprintf("train-%d-", rank) }

// trainerArgs are those in the manifest, so that the reference computes what
// the job does.
func trainerArgs() ([]string, error) {
	objects, err := decoder.DecodeAll(context.Background(), strings.NewReader(string(trainingManifest)))
	if err != nil {
		return nil, fmt.Errorf("read the training manifest: %w", err)
	}
	for _, o := range objects {
		if job, ok := o.(*batchv1.Job); ok {
			return job.Spec.Template.Spec.Containers[0].Args, nil
		}
	}
	return nil, fmt.Errorf("read the training manifest: no Job among %d objects", len(objects))
}
