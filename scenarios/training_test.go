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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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

	// lossFraction is what is left of the first loss at the end, at most.
	lossFraction = 0.05

	readyLimit  = 1500 * time.Millisecond // create to Ready
	healthLimit = 1500 * time.Millisecond // XID to Unhealthy in the Pod's status
	evictLimit  = 1500 * time.Millisecond // XID to the Pod's deletion

	// soon is the patience for what takes seconds at most.
	soon = 30 * time.Second
	// long is the patience for what the job's own pace decides.
	long = 2 * time.Minute
)

// rankState is what the scenario learns about a rank's Pod.
type rankState struct {
	pod      timeline.Event // created
	claim    string
	claimUID string
	gpu      stage.GPU
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
		s.Await(ctx, t, soon, fmt.Sprintf("rank %d to be Ready", rank), stage.Is(timeline.PodReady, pod))
		r, err := s.learn(ctx, s.Await(ctx, t, soon, "its creation", stage.Is(timeline.PodCreated, pod)))
		if err != nil {
			t.Fatal(err)
		}
		s.first[rank] = r
	}
	if s.first[0].gpu == s.first[1].gpu {
		t.Errorf("both ranks have %s", s.first[0].gpu)
	}
	for rank, r := range s.first {
		ready := s.checkStart(ctx, t, r)
		s.Measure(t, fmt.Sprintf("rank %d, Pod created to Ready", rank), r.pod, ready, readyLimit)
	}
	return ctx
}

// learn finds the claim and the GPU of a Pod that has been prepared.
func (s *training) learn(ctx context.Context, created timeline.Event) (rankState, error) {
	r := rankState{pod: created}
	allocated, ok := s.Recorder.Timeline().First(stage.Is(timeline.ClaimAllocated, stage.Pod(created.Pod)))
	if !ok {
		return r, fmt.Errorf("find GPU of Pod %q: no allocation in the timeline", created.Pod)
	}
	r.claim, r.gpu = allocated.Claim, stage.GPU{Node: allocated.Node, Name: allocated.Device}
	claim, err := s.Client.ResourceV1().ResourceClaims(s.Namespace).Get(ctx, r.claim, metav1.GetOptions{})
	if err != nil {
		return r, fmt.Errorf("find claim of Pod %q: %w", created.Pod, err)
	}
	r.claimUID = string(claim.UID)
	return r, nil
}

// checkStart checks how a Pod came to run, from its creation to Ready, and
// returns that last event.
func (s *training) checkStart(ctx context.Context, t *testing.T, r rankState) timeline.Event {
	t.Helper()
	pod, claim := stage.Pod(r.pod.Pod), stage.Claim(r.claim)
	s.Await(ctx, t, soon, "the driver's report on "+r.claim, stage.Is(timeline.Prepared, claim))
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
	for rank, r := range s.first {
		s.checkDevice(ctx, t, rank, r)
	}
	return ctx
}

// checkDevice compares what the trainer found with what the claim promised and
// looks whether the GPU shows the trainer's memory.
func (s *training) checkDevice(ctx context.Context, t *testing.T, rank int, r rankState) {
	t.Helper()
	started := s.Await(ctx, t, soon, fmt.Sprintf("rank %d to start", rank), stage.Is(timeline.Workload(workload.EventStarted), stage.Pod(r.pod.Pod)))
	uuid, err := s.UUID(ctx, r.gpu)
	if err != nil {
		t.Fatal(err)
	}
	if want := (api.DeviceRef{Name: r.gpu.Name, UUID: uuid}).String(); started.Workload.Devices != want {
		t.Errorf("rank %d found %q, its claim promised %q", rank, started.Workload.Devices, want)
	}
	used, err := s.Memory(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if used[r.gpu] <= s.baseline[r.gpu] {
		t.Errorf("%s has %d bytes in use, %d before the job: the trainer does not show", r.gpu, used[r.gpu], s.baseline[r.gpu])
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
	gpu, pod := stage.Device(victim.gpu), stage.Pod(victim.pod.Pod)
	s.xid = s.Break(ctx, t, victim.gpu, api.Fault{Kind: api.FaultXID, Code: 79, Message: "scenario training"})

	unhealthy := stage.Is(timeline.PodHealth, pod, stage.Detail(api.HealthUnhealthy))
	deleted := stage.Is(timeline.PodDeleted, pod)
	s.Await(ctx, t, soon, "the Pod's deletion", deleted)
	s.Await(ctx, t, soon, "Unhealthy in the Pod's status", unhealthy)
	s.Await(ctx, t, soon, "the unprepare of its claim", stage.Is(timeline.Unprepared, stage.Claim(victim.claim)))
	s.Await(ctx, t, soon, "the end of its container", stage.Is(timeline.ContainerExited, pod))

	xid := stage.Step{What: "XID", Match: stage.Is(timeline.FaultInjected, gpu)}
	report := stage.Step{What: "health report", Match: stage.Is(timeline.DeviceHealth, gpu, stage.Detail(api.HealthUnhealthy))}
	s.InOrder(t, xid,
		stage.Step{What: "the GPU's event", Match: stage.Is(timeline.GPUEvent, gpu)},
		report,
		stage.Step{What: "Unhealthy in the Pod's status, with the reason", Match: stage.Is(timeline.PodHealth, pod, stage.Detail(api.HealthUnhealthy), stage.Says("79"))},
	)
	s.InOrder(t, xid,
		stage.Step{What: "taint", Match: stage.Is(timeline.DeviceTainted, gpu, stage.Says(api.TaintXID+"=79:NoExecute"))},
		stage.Step{What: "mark for eviction", Match: stage.Is(timeline.PodDisrupted, pod)},
		stage.Step{What: "deletion", Match: deleted},
		stage.Step{What: "last checkpoint", Match: stage.Is(timeline.Workload(workload.EventLeaving), pod)},
		stage.Step{What: "CDI spec removed", Match: stage.Is(timeline.UnprepareStep, stage.Claim(victim.claim), stage.Says("CDI spec removed"))},
		stage.Step{What: "unprepare", Match: stage.Is(timeline.Unprepared, stage.Claim(victim.claim))},
	)
	recorded := s.Recorder.Timeline()
	if e, ok := recorded.First(unhealthy); ok {
		s.Measure(t, "XID to Unhealthy in the Pod's status", s.xid, e, healthLimit)
	}
	if e, ok := recorded.First(deleted); ok {
		s.Measure(t, "XID to the Pod's deletion", s.xid, e, evictLimit)
	}
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
	s.Await(ctx, t, soon, "the replacement to be Ready", stage.Is(timeline.PodReady, stage.Pod(created.Pod)))
	r, err := s.learn(ctx, created)
	if err != nil {
		t.Fatal(err)
	}
	s.replacement = r
	ready := s.checkStart(ctx, t, r)
	s.Measure(t, "replacement, Pod created to Ready", created, ready, readyLimit)
	if r.gpu == victim.gpu {
		t.Errorf("the replacement has %s again", r.gpu)
	}
	s.checkDevice(ctx, t, faultyRank, r)

	resumed := stage.Is(timeline.Workload(workload.EventResumed))
	last := s.Await(ctx, t, soon, "the last checkpoint", stage.Is(timeline.Workload(workload.EventLeaving), stage.Pod(victim.pod.Pod)))
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
	gpu := stage.Device(s.first[faultyRank].gpu)
	cleared := s.Mend(ctx, t)
	after := stage.After(cleared)
	s.Await(ctx, t, soon, "the GPU to be healthy", stage.Is(timeline.DeviceHealth, gpu, stage.Detail(api.HealthHealthy), after))
	s.Await(ctx, t, soon, "the GPU to be untainted", stage.Is(timeline.DeviceUntaint, gpu, after))
	return ctx
}

func (s *training) checkClean(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
	for _, r := range []rankState{s.first[0], s.first[1], s.replacement} {
		claim := stage.Claim(r.claim)
		s.Await(ctx, t, soon, "unprepare of "+r.claim, stage.Is(timeline.Unprepared, claim))
		s.Await(ctx, t, soon, "the end of the allocation of "+r.claim, func(e timeline.Event) bool {
			return claim(e) && (e.Kind == timeline.ClaimDeallocated || e.Kind == timeline.ClaimGone)
		})
		traces, err := s.Traces(ctx, r.gpu.Node, r.claimUID)
		if err != nil {
			t.Fatal(err)
		}
		if len(traces) > 0 {
			t.Errorf("claim %s left on %s: %s", r.claim, r.gpu.Node, strings.Join(traces, ", "))
		}
	}
	checkMemory(ctx, t, s.Stage, s.baseline)
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
