package exercises

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/dra-lab/dra-lab/driver/api"
	"github.com/dra-lab/dra-lab/scenarios/exercises/lesson"
)

func all(t *testing.T) []lesson.Exercise {
	t.Helper()
	found, err := All()
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// Nothing there is nothing solved, and the first thing that is missing is named.
func TestNothingIsSolvedByDoingNothing(t *testing.T) {
	for _, e := range all(t) {
		found := e.Check(lesson.Snapshot{})
		if lesson.Solved(found) {
			t.Errorf("%s is solved by nothing: %v", e.Folder(), found)
		}
		if found[0].Holds {
			t.Errorf("%s: the first finding holds of nothing: %v", e.Folder(), found)
		}
	}
}

func TestFind(t *testing.T) {
	for _, id := range []string{"3", "03", "selection", "03-selection"} {
		if e, err := Find(all(t), id); err != nil || e.Name != "selection" {
			t.Errorf("%q: %s, %v", id, e.Name, err)
		}
	}
	if _, err := Find(all(t), "99"); err == nil || !strings.Contains(err.Error(), "01-first-claim") {
		t.Errorf("99: %v", err)
	}
}

func pod(name, claim string, phase corev1.PodPhase) corev1.Pod {
	return corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       corev1.PodSpec{ResourceClaims: []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimName: &claim}}},
		Status:     corev1.PodStatus{Phase: phase},
	}
}

func claim(name, device string, reservedFor ...string) resourcev1.ResourceClaim {
	c := resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if device != "" {
		c.Status.Allocation = &resourcev1.AllocationResult{Devices: resourcev1.DeviceAllocationResult{
			Results: []resourcev1.DeviceRequestAllocationResult{{Driver: api.DriverName, Pool: "worker", Device: device}},
		}}
	}
	for _, p := range reservedFor {
		c.Status.ReservedFor = append(c.Status.ReservedFor, resourcev1.ResourceClaimConsumerReference{Resource: "pods", Name: p})
	}
	return c
}

// What a learner has reached half-way is acknowledged, and what is missing is
// said in one sentence.
func TestFirstClaimHalfWay(t *testing.T) {
	first := all(t)[0]
	for _, c := range []struct {
		given string
		s     lesson.Snapshot
		first string // that does not hold; empty: solved
	}{
		{"a Pod without a claim", lesson.Snapshot{Pods: []corev1.Pod{{ObjectMeta: metav1.ObjectMeta{Name: "hello"}}}}, "no Pod hello with an entry"},
		{"a claim that is not there", lesson.Snapshot{Pods: []corev1.Pod{pod("hello", "c", "Pending")}}, "does not exist: is the name"},
		{"a claim without a device", lesson.Snapshot{Pods: []corev1.Pod{pod("hello", "c", "Pending")}, Claims: []resourcev1.ResourceClaim{claim("c", "")}}, "no claim of the Pod has a device"},
		{"an allocated claim that no Pod reserves", lesson.Snapshot{Pods: []corev1.Pod{pod("hello", "c", "Pending")}, Claims: []resourcev1.ResourceClaim{claim("c", "gpu-0")}}, "no claim is reserved"},
		{"a Pod that does not run yet", lesson.Snapshot{Pods: []corev1.Pod{pod("hello", "c", "Pending")}, Claims: []resourcev1.ResourceClaim{claim("c", "gpu-0", "hello")}}, "the Pod does not run: it is Pending"},
		{"all of it", lesson.Snapshot{Pods: []corev1.Pod{pod("hello", "c", "Running")}, Claims: []resourcev1.ResourceClaim{claim("c", "gpu-0", "hello")}}, ""},
	} {
		missing := ""
		for _, f := range first.Check(c.s) {
			if !f.Holds {
				missing = f.Text
				break
			}
		}
		if (missing == "") != (c.first == "") || !strings.Contains(missing, c.first) {
			t.Errorf("%s: %q, want %q", c.given, missing, c.first)
		}
	}
}

// Any expression that does what is asked passes, and one that does not is told
// which GPU it is wrong about.
func TestSelectorsAreTriedOut(t *testing.T) {
	e, err := Find(all(t), "selection")
	if err != nil {
		t.Fatal(err)
	}
	for expression, want := range map[string]string{
		`device.attributes["gpu.lab.example"].architecture == "Hopper" && device.capacity["gpu.lab.example"].memory.isGreaterThan(quantity("40Gi"))`:       "",
		`device.attributes["gpu.lab.example"].architecture.startsWith("Hop") && quantity("41Gi").compareTo(device.capacity["gpu.lab.example"].memory) < 0`: "",
		`true`: "takes a Turing GPU with 16Gi",
		`device.attributes["gpu.lab.example"].architecture == "Hopper"`:            "takes a Hopper GPU with 20Gi",
		`device.capacity["gpu.lab.example"].memory.isGreaterThan(quantity("1Ti"))`: "does not take a Hopper GPU with 80Gi",
		`device.attributes["gpu.lab.example"].architecture == `:                    "does not take a Hopper GPU with 80Gi (",
	} {
		c := claim("c", "gpu-0", "picky")
		c.Spec.Devices.Requests = []resourcev1.DeviceRequest{{Name: "gpu", Exactly: &resourcev1.ExactDeviceRequest{
			Selectors: []resourcev1.DeviceSelector{{CEL: &resourcev1.CELDeviceSelector{Expression: expression}}},
		}}}
		missing := ""
		for _, f := range e.Check(lesson.Snapshot{Pods: []corev1.Pod{pod("picky", "c", "Running")}, Claims: []resourcev1.ResourceClaim{c}}) {
			if !f.Holds {
				missing = f.Text
				break
			}
		}
		if (missing == "") != (want == "") || !strings.Contains(missing, want) {
			t.Errorf("%s: %q, want %q", expression, missing, want)
		}
	}
}

// An answer is compared with what the cluster has.
func TestAnswers(t *testing.T) {
	e, err := Find(all(t), "inside-the-container")
	if err != nil {
		t.Fatal(err)
	}
	s := lesson.Snapshot{
		Pods: []corev1.Pod{pod("inside", "c", "Running")}, Claims: []resourcev1.ResourceClaim{claim("c", "gpu-1", "inside")},
		Slices: []resourcev1.ResourceSlice{{Spec: resourcev1.ResourceSliceSpec{
			Pool: resourcev1.ResourcePool{Name: "worker"},
			Devices: []resourcev1.Device{{Name: "gpu-1", Attributes: map[resourcev1.QualifiedName]resourcev1.DeviceAttribute{
				api.AttributeUUID: {StringValue: ptr.To("GPU-1")},
			}}},
		}}},
		ConfigMaps: []corev1.ConfigMap{{
			ObjectMeta: metav1.ObjectMeta{Name: lesson.AnswerName},
			Data:       map[string]string{"node": "worker", "device": "gpu-0", "uuid": "GPU-1", "cdi": api.CDIKind},
		}},
	}
	var wrong []string
	for _, f := range e.Check(s) {
		if !f.Holds {
			wrong = append(wrong, f.Text)
		}
	}
	if len(wrong) != 1 || wrong[0] != `device "gpu-0" is not right` {
		t.Errorf("%q", wrong)
	}
	s.ConfigMaps[0].Data["device"] = "gpu-1"
	if found := e.Check(s); !lesson.Solved(found) {
		t.Errorf("%v", found)
	}
}
