// Scenario network-attached: a GPU that belongs to no node is attached to the
// node that the scheduler chose, before the Pod that needs it starts.
//
// Given a pool of network-attached GPUs, when a Pod claims one, then the
// scheduler allocates it and waits with the Pod; the controller has the driver
// of the chosen node attach it and tells the scheduler by a condition of the
// claim; the Pod is bound, and its program finds the GPU. When the Pod is gone,
// then so is the GPU from the node.

package scenarios

import (
	"context"
	_ "embed"
	"path"
	"strconv"
	"strings"
	"testing"
	"time"

	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/e2e-framework/pkg/envconf"
	"sigs.k8s.io/e2e-framework/pkg/features"

	"github.com/dra-lab/dra-lab/driver/api"
	"github.com/dra-lab/dra-lab/driver/api/v1alpha1"
	"github.com/dra-lab/dra-lab/lab/timeline"
	"github.com/dra-lab/dra-lab/lab/timeline/workload"
	"github.com/dra-lab/dra-lab/scenarios/internal/stage"
)

//go:embed networkattached.yaml
var networkAttachedManifest []byte //nolint:gochecknoglobals // filled by the compiler

// Limits of the scenario, on a machine with nothing else to do.
const (
	attachLimit = time.Second // allocation to the claim's condition
	// attachedReadyLimit is from the condition to Ready: the scheduler looks every
	// 5 s.
	attachedReadyLimit = 6500 * time.Millisecond
)

type networkAttached struct {
	*stage.Stage
	devices map[string]resourcev1.Device // that are published
	grant   stage.Grant
}

func TestNetworkAttached(t *testing.T) {
	s := &networkAttached{Stage: stage.New(t, "network-attached")}
	s.find(t)
	s.Play(t, features.New("network-attached GPU").
		Setup(s.Begin).
		Assess("the GPU is attached before its Pod is bound", s.start).
		Assess("the GPU is at this node and at no other", s.checkPlace).
		Assess("the GPU is detached when the Pod is gone", s.stop))
}

// bindingConditionsMinor is the first version that has binding conditions on.
const bindingConditionsMinor = 36

// find reads the pool. Where the API server does not know binding conditions, a
// Pod would be bound at once, so the controller publishes none.
func (s *networkAttached) find(t *testing.T) {
	t.Helper()
	list, err := s.Client.ResourceV1().ResourceSlices().List(t.Context(), metav1.ListOptions{
		FieldSelector: resourcev1.ResourceSliceSelectorDriver + "=" + api.FabricDriverName,
	})
	if err != nil {
		t.Fatal(err)
	}
	s.devices = map[string]resourcev1.Device{}
	for _, slice := range list.Items {
		for _, d := range slice.Spec.Devices {
			s.devices[d.Name] = d
		}
	}
	if len(s.devices) > 0 {
		return
	}
	server, err := s.Client.Discovery().ServerVersion()
	if err != nil {
		t.Fatal(err)
	}
	if minor, err := strconv.Atoi(server.Minor); err == nil && minor < bindingConditionsMinor {
		t.Skipf("NOT RUN: Kubernetes %s has no binding conditions", server.GitVersion)
	}
	t.Fatal("no network-attached GPU is published")
}

func (s *networkAttached) start(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
	if err := s.Create(ctx, networkAttachedManifest); err != nil {
		t.Fatal(err)
	}
	pod := stage.Pod("remote")
	s.Remark("the scheduler looks at the conditions of a claim every 5 s")
	ready := s.Await(ctx, t, stage.Start, "the Pod to be Ready", stage.Is(timeline.PodReady, pod))
	s.grant = s.AwaitGrant(ctx, t, pod)
	claim, device := stage.Claim(s.grant.Claim), func(e timeline.Event) bool { return e.Device == s.grant.GPU.Name }
	started := s.Await(ctx, t, soon, "the program", stage.Is(timeline.Workload(workload.EventStarted), pod))
	uuid := s.devices[s.grant.GPU.Name].Attributes[api.AttributeUUID].StringValue
	if uuid == nil || started.Workload.Devices != (api.DeviceRef{Name: s.grant.GPU.Name, UUID: *uuid}).String() {
		t.Errorf("the program found %q, want %s as it was published", started.Workload.Devices, s.grant.GPU.Name)
	}
	events := s.InOrder(t,
		stage.Step{What: "allocation", Match: stage.Is(timeline.ClaimAllocated, claim)},
		stage.Step{What: "attachment by the node's driver", Match: stage.Is(timeline.DeviceOperation, stage.Detail("Attach"), device, stage.Node(s.grant.GPU.Node))},
		stage.Step{What: "condition of the claim", Match: stage.Is(timeline.ClaimCondition, claim, stage.Detail(api.ConditionAttached+"=True"))},
		stage.Step{What: "binding", Match: stage.Is(timeline.PodScheduled, pod)},
		stage.Step{What: "prepare", Match: stage.Is(timeline.Prepared, claim)},
		stage.Step{What: "start of the program", Match: stage.Is(timeline.Workload(workload.EventStarted), pod)},
	)
	s.Measure(t, "allocation to the claim's condition", events[0], events[2], attachLimit)
	s.Measure(t, "condition to Ready", events[2], ready, attachedReadyLimit)
	return ctx
}

// attachments are the nodes at which the GPU is attached.
func (s *networkAttached) attachments(ctx context.Context, t *testing.T) []string {
	t.Helper()
	gpus, err := s.GPUs(ctx)
	if err != nil {
		t.Fatal(err)
	}
	var at []string
	seen := map[string]bool{}
	for _, g := range gpus {
		if seen[g.Node] {
			continue
		}
		seen[g.Node] = true
		out, err := s.OnNode(ctx, g.Node, "find", path.Join(api.HardwareDir, api.FabricHardwareName),
			"-path", "*/"+s.grant.GPU.Name+"/attachment.json")
		if err != nil {
			t.Fatal(err)
		}
		if out != "" {
			at = append(at, g.Node)
		}
	}
	return at
}

func (s *networkAttached) checkPlace(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
	if at := s.attachments(ctx, t); len(at) != 1 || at[0] != s.grant.GPU.Node {
		t.Errorf("%s is attached to %v, want node %s", s.grant.GPU.Name, at, s.grant.GPU.Node)
	}
	op, err := s.Operation(ctx, api.FabricPool, s.grant.GPU.Name)
	switch {
	case err != nil:
		t.Fatal(err)
	case op == nil:
		t.Error("there is no operation that stands for the attachment")
	case op.Spec.Node != s.grant.GPU.Node || op.Spec.Claim == nil || op.Spec.Claim.UID != s.grant.UID:
		t.Errorf("operation %+v, want one of node %s and claim %s", op.Spec, s.grant.GPU.Node, s.grant.UID)
	}
	return ctx
}

func (s *networkAttached) stop(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
	if err := s.Client.CoreV1().Pods(s.Namespace).Delete(ctx, "remote", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	s.Await(ctx, t, soon, "unprepare", stage.Is(timeline.Unprepared, stage.Claim(s.grant.Claim)))
	s.Await(ctx, t, soon, "the end of the claim", stage.Is(timeline.ClaimGone, stage.Claim(s.grant.Claim)))
	s.Await(ctx, t, soon, "the detachment", stage.Is(timeline.DeviceOperation, stage.Detail("Detach"), stage.Device(s.grant.GPU)))
	_, err := s.AwaitOperation(ctx, soon, api.FabricPool, s.grant.GPU.Name, func(op *v1alpha1.DeviceOperation) bool { return op == nil })
	if err != nil {
		t.Error(err)
	}
	if at := s.attachments(ctx, t); len(at) > 0 {
		t.Errorf("%s is still attached to %s", s.grant.GPU.Name, strings.Join(at, ", "))
	}
	return ctx
}
