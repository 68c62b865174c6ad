// Scenario recovery: the controller repairs a GPU without anyone's hand, and
// knows when to stop.
//
// Given a GPU that nobody uses, when it reports an XID that a reset mends, then
// it is tainted, the controller has it reset, and it is well and untainted. When
// the fault comes back as often as the policy allows attempts, then the
// controller gives up, says so, and leaves the GPU tainted for an operator.

package scenarios

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/e2e-framework/pkg/envconf"
	"sigs.k8s.io/e2e-framework/pkg/features"

	"github.com/dra-lab/dra-lab/driver/api"
	"github.com/dra-lab/dra-lab/driver/api/v1alpha1"
	"github.com/dra-lab/dra-lab/lab/timeline"
	"github.com/dra-lab/dra-lab/scenarios/internal/stage"
)

const (
	recoveryConfigMap = "recovery"
	recoveryKey       = "policy.yaml"
	// recoveryAttempts is how many attempts the scenario allows.
	recoveryAttempts = 2
	resetLimit       = time.Second     // taint to reset
	recoveryLimit    = 5 * time.Second // taint to untainted
	// doubleBit is an XID that a reset mends.
	doubleBit = 48
)

// hastyPolicy gives up soon, so that the scenario need not wait.
const hastyPolicy = `apiVersion: gpu.lab.example/v1alpha1
kind: RecoveryPolicy
rules:
- {taint: gpu.lab.example/xid, action: Reset}
maxAttempts: 2
backoff: 1s
maxBackoff: 2s
forgetAfter: 1m
`

type recovery struct {
	*stage.Stage
	gpu    stage.GPU
	policy *corev1.ConfigMap // as it was
}

func TestRecovery(t *testing.T) {
	s := &recovery{Stage: stage.New(t, "recovery")}
	t.Cleanup(func() { s.restore(t) })
	s.Play(t, features.New("recovery").
		Setup(s.Begin).
		Setup(s.choose).
		Assess("a GPU with an XID is reset and well again", s.repair).
		Assess("the controller gives up on a fault that keeps coming back", s.giveUp).
		Assess("an operator has the last word", s.operator))
}

// choose takes a GPU that is well, and makes the policy hasty.
func (s *recovery) choose(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
	gpus, err := s.GPUs(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range gpus {
		taints, err := s.Taints(ctx, g)
		if err != nil {
			t.Fatal(err)
		}
		if len(taints) == 0 {
			s.gpu = g
			break
		}
	}
	if s.gpu.Name == "" {
		t.Fatal("no GPU is well")
	}
	if err := s.ForgetOperation(ctx, s.gpu.Node, s.gpu.Name); err != nil {
		t.Fatal(err)
	}
	policy, err := s.Client.CoreV1().ConfigMaps(api.Namespace).Get(ctx, recoveryConfigMap, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	s.policy = policy
	if err := s.setPolicy(ctx, hastyPolicy); err != nil {
		t.Fatal(err)
	}
	return ctx
}

func (s *recovery) setPolicy(ctx context.Context, text string) error {
	patch, err := json.Marshal(map[string]any{"data": map[string]string{recoveryKey: text}})
	if err != nil {
		return err
	}
	_, err = s.Client.CoreV1().ConfigMaps(api.Namespace).Patch(ctx, recoveryConfigMap, types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}

// restore gives the lab its policy back, and lets the attempts of the scenario
// not count for whoever breaks the GPU next.
func (s *recovery) restore(t *testing.T) {
	if s.policy == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), soon)
	defer cancel()
	if err := s.setPolicy(ctx, s.policy.Data[recoveryKey]); err != nil {
		t.Errorf("restore the recovery policy: %v", err)
	}
	if err := s.ForgetOperation(ctx, s.gpu.Node, s.gpu.Name); err != nil {
		t.Error(err)
	}
}

// strike breaks the GPU and waits until it is tainted because of it.
func (s *recovery) strike(ctx context.Context, t *testing.T) timeline.Event {
	t.Helper()
	asked := s.Note("the GPU gets a fault", s.gpu.Node)
	s.Break(ctx, t, s.gpu, api.Fault{Kind: api.FaultXID, Code: doubleBit, Message: "scenario recovery"})
	return s.Await(ctx, t, soon, "the taint", stage.Is(timeline.DeviceTainted, stage.Device(s.gpu), stage.After(asked)))
}

func (s *recovery) repair(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
	tainted := s.strike(ctx, t)
	gpu := stage.Device(s.gpu)
	reset := s.Await(ctx, t, soon, "the reset", stage.Is(timeline.DeviceOperation, stage.Detail("Reset"), gpu))
	well := s.Await(ctx, t, soon, "the taint to go", stage.Is(timeline.DeviceUntaint, gpu, stage.After(tainted)))
	s.Await(ctx, t, soon, "the GPU to be healthy", stage.Is(timeline.DeviceHealth, gpu, stage.Detail(api.HealthHealthy), stage.After(tainted)))
	s.Measure(t, "taint to reset", tainted, reset, resetLimit)
	s.Measure(t, "taint to untainted", tainted, well, recoveryLimit)
	op, err := s.AwaitOperation(ctx, soon, s.gpu.Node, s.gpu.Name, func(op *v1alpha1.DeviceOperation) bool {
		return op != nil && meta.IsStatusConditionTrue(op.Status.Conditions, v1alpha1.ConditionRecovered)
	})
	if err != nil {
		t.Fatal(err)
	}
	if op.Spec.Action != v1alpha1.OperationReset || op.Spec.Attempt != 1 {
		t.Errorf("operation %+v, want the first attempt at a reset", op.Spec)
	}
	return ctx
}

func (s *recovery) giveUp(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
	s.Remark("the fault comes back, and the policy of this scenario allows %d attempts", recoveryAttempts)
	gpu := stage.Device(s.gpu)
	for range recoveryAttempts - 1 {
		tainted := s.strike(ctx, t)
		s.Await(ctx, t, soon, "the taint to go", stage.Is(timeline.DeviceUntaint, gpu, stage.After(tainted)))
	}
	s.strike(ctx, t)
	op, err := s.AwaitOperation(ctx, soon, s.gpu.Node, s.gpu.Name, func(op *v1alpha1.DeviceOperation) bool {
		return op != nil && conditionReason(op) == "GivenUp"
	})
	if err != nil {
		t.Fatal(err)
	}
	if op.Spec.Attempt != recoveryAttempts {
		t.Errorf("given up after %d attempts, want %d", op.Spec.Attempt, recoveryAttempts)
	}
	s.Note("DeviceOperation "+op.Name+" says: "+meta.FindStatusCondition(op.Status.Conditions, v1alpha1.ConditionRecovered).Message, s.gpu.Node)
	taints, err := s.Taints(ctx, s.gpu)
	if err != nil {
		t.Fatal(err)
	}
	if len(taints) == 0 {
		t.Error("the GPU was given up and is not tainted")
	}
	return ctx
}

func conditionReason(op *v1alpha1.DeviceOperation) string {
	if c := meta.FindStatusCondition(op.Status.Conditions, v1alpha1.ConditionRecovered); c != nil {
		return c.Reason
	}
	return ""
}

// operator mends the GPU. A policy with an error changes nothing meanwhile.
func (s *recovery) operator(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
	refused := time.Now()
	if err := s.setPolicy(ctx, "rules: nonsense\n"); err != nil {
		t.Fatal(err)
	}
	if err := s.awaitRefusal(ctx, refused); err != nil {
		t.Error(err)
	}
	mended := s.Mend(ctx, t)
	s.Await(ctx, t, soon, "the taint to go", stage.Is(timeline.DeviceUntaint, stage.Device(s.gpu), stage.After(mended)))
	return ctx
}

// awaitRefusal waits for the Event that says that the policy was refused.
func (s *recovery) awaitRefusal(ctx context.Context, since time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, soon)
	defer cancel()
	for {
		list, err := s.Client.EventsV1().Events(api.Namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, e := range list.Items {
			if e.Reason == "PolicyRefused" && e.EventTime.After(since.Add(-time.Second)) && strings.Contains(e.Note, "recovery policy") {
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(200 * time.Millisecond):
		}
	}
}
