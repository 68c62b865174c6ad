package timeline

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/dra-lab/dra-lab/driver/api"
)

func claim(changes ...func(*resourcev1.ResourceClaim)) *resourcev1.ResourceClaim {
	c := &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: "claim", Namespace: "ns", UID: claimUID}}
	for _, change := range changes {
		change(c)
	}
	return c
}

func ofPod(c *resourcev1.ResourceClaim) {
	yes := true
	c.OwnerReferences = []metav1.OwnerReference{{Kind: "Pod", Name: "train-0-x", Controller: &yes}}
}

func allocated(devices ...string) func(*resourcev1.ResourceClaim) {
	return func(c *resourcev1.ResourceClaim) {
		c.Status.Allocation = &resourcev1.AllocationResult{}
		for _, device := range devices {
			c.Status.Allocation.Devices.Results = append(c.Status.Allocation.Devices.Results,
				resourcev1.DeviceRequestAllocationResult{Request: "gpu", Pool: "worker", Device: device})
		}
	}
}

func reserved(pods ...string) func(*resourcev1.ResourceClaim) {
	return func(c *resourcev1.ResourceClaim) {
		for _, p := range pods {
			c.Status.ReservedFor = append(c.Status.ReservedFor,
				resourcev1.ResourceClaimConsumerReference{Resource: "pods", Name: p, UID: claimUID + "-" + "pod"})
		}
	}
}

func TestClaimChanges(t *testing.T) {
	for name, c := range map[string]struct {
		old, now *resourcev1.ResourceClaim
		want     []string
	}{
		"created by a user":       {nil, claim(), []string{"user claim-created"}},
		"created from a template": {nil, claim(ofPod), []string{"controller-manager claim-created"}},
		"allocated and reserved": {
			claim(), claim(allocated("gpu-0"), reserved("a")), []string{"scheduler claim-allocated", "scheduler claim-reserved"},
		},
		"two devices":         {claim(), claim(allocated("gpu-0", "gpu-1")), []string{"scheduler claim-allocated", "scheduler claim-allocated"}},
		"nothing new":         {claim(allocated("gpu-0"), reserved("a")), claim(allocated("gpu-0"), reserved("a")), nil},
		"no longer reserved":  {claim(allocated("gpu-0"), reserved("a")), claim(allocated("gpu-0")), []string{"controller-manager claim-unreserved"}},
		"deallocated":         {claim(allocated("gpu-0")), claim(), []string{"controller-manager claim-deallocated"}},
		"gone":                {claim(), nil, []string{"api-server claim-gone"}},
		"freed in one update": {claim(allocated("gpu-0"), reserved("a")), claim(), []string{"controller-manager claim-deallocated", "controller-manager claim-unreserved"}},
	} {
		t.Run(name, func(t *testing.T) {
			checkKinds(t, claimChange(c.old, c.now, now()), c.want...)
		})
	}
}

func TestAllocationNamesNodeAndDevice(t *testing.T) {
	events := claimChange(claim(ofPod), claim(ofPod, allocated("gpu-3")), now())
	want := []Event{{
		Time: now(), Source: SourceWatch, Component: Scheduler, Kind: ClaimAllocated,
		Node: "worker", Pod: "train-0-x", Claim: "claim", Device: "gpu-3", Detail: "gpu", Text: "claim claim: allocated gpu-3 of worker",
	}}
	if diff := cmp.Diff(want, events); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
}

func TestConditionsOfDevicesAreTheControllers(t *testing.T) {
	attached := func(status metav1.ConditionStatus) func(*resourcev1.ResourceClaim) {
		return func(c *resourcev1.ResourceClaim) {
			c.Status.Allocation.NodeSelector = &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchFields: []corev1.NodeSelectorRequirement{{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{"chosen"}}},
			}}}
			c.Status.Devices = []resourcev1.AllocatedDeviceStatus{{
				Device: "net-0", Conditions: []metav1.Condition{{Type: "attached", Status: status, Message: "it is there"}},
			}}
		}
	}
	old := claim(allocated("net-0"), attached(metav1.ConditionFalse))
	events := claimChange(old, claim(allocated("net-0"), attached(metav1.ConditionTrue)), now())
	want := []Event{{
		Time: now(), Source: SourceWatch, Component: Controller, Kind: ClaimCondition,
		Node: "chosen", Claim: "claim", Device: "net-0", Detail: "attached=True", Text: "claim claim: condition of net-0: attached is True: it is there",
	}}
	if diff := cmp.Diff(want, events); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
	checkKinds(t, claimChange(old, old, now()))
}

func slice(taints ...resourcev1.DeviceTaint) *resourcev1.ResourceSlice {
	node := "worker"
	return &resourcev1.ResourceSlice{
		ObjectMeta: metav1.ObjectMeta{Name: "slice"},
		Spec: resourcev1.ResourceSliceSpec{
			NodeName: &node, Pool: resourcev1.ResourcePool{Name: "worker"},
			Devices: []resourcev1.Device{{Name: "gpu-0"}, {Name: "gpu-1", Taints: taints}, {
				// What is wrong with a GPU is told once, not of each of its partitions.
				Name: "gpu-1-mig-1g10gb-0", Taints: taints,
				Attributes: map[resourcev1.QualifiedName]resourcev1.DeviceAttribute{api.AttributeType: {StringValue: ptr.To(api.TypeMIG)}},
			}},
		},
	}
}

func TestSliceChanges(t *testing.T) {
	xid := func(value string, added time.Time) resourcev1.DeviceTaint {
		return resourcev1.DeviceTaint{Key: "xid", Value: value, Effect: resourcev1.DeviceTaintEffectNoExecute, TimeAdded: &metav1.Time{Time: added}}
	}
	for name, c := range map[string]struct {
		old, now *resourcev1.ResourceSlice
		want     []string
	}{
		"published":            {nil, slice(), []string{"api-server slice-published"}},
		"published with taint": {nil, slice(xid("79", now())), []string{"api-server slice-published", "api-server device-tainted"}},
		"tainted":              {slice(), slice(xid("79", now())), []string{"api-server device-tainted"}},
		"published anew":       {slice(xid("79", now())), slice(xid("79", now().Add(time.Hour))), nil},
		"other value":          {slice(xid("79", now())), slice(xid("48", now())), []string{"api-server device-tainted", "api-server device-untainted"}},
		"untainted":            {slice(xid("79", now())), slice(), []string{"api-server device-untainted"}},
		"gone":                 {slice(), nil, []string{"api-server slice-gone"}},
	} {
		t.Run(name, func(t *testing.T) {
			events := sliceChange(c.old, c.now, now())
			checkKinds(t, events, c.want...)
			for _, e := range events {
				if e.Node != "worker" {
					t.Errorf("event %+v lacks the node", e)
				}
				if e.Kind == DeviceTainted && e.Device != "gpu-1" {
					t.Errorf("event %+v names device %q, want gpu-1", e, e.Device)
				}
			}
		})
	}
}

func TestJobChanges(t *testing.T) {
	job := func(conditions ...batchv1.JobConditionType) *batchv1.Job {
		ranks := int32(2)
		j := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: "train"}, Spec: batchv1.JobSpec{Completions: &ranks}}
		for _, c := range conditions {
			j.Status.Conditions = append(j.Status.Conditions, batchv1.JobCondition{Type: c, Status: corev1.ConditionTrue})
		}
		return j
	}
	checkKinds(t, jobChange(nil, job(), now()), "user job-created")
	checkKinds(t, jobChange(job(), job(batchv1.JobSuccessCriteriaMet), now()))
	checkKinds(t, jobChange(job(), job(batchv1.JobComplete), now()), "controller-manager job-completed")
	checkKinds(t, jobChange(job(batchv1.JobComplete), job(batchv1.JobComplete), now()))
	checkKinds(t, jobChange(job(), job(batchv1.JobFailed), now()), "controller-manager job-failed")
	checkKinds(t, jobChange(job(), nil, now()))
}

func TestOnlyWarningsOfKubernetesEventsAreNews(t *testing.T) {
	event := func(kind, reason, reporter string, count int32) *corev1.Event {
		return &corev1.Event{
			Type: kind, Reason: reason, Message: "m", Count: count, ReportingController: reporter,
			InvolvedObject: corev1.ObjectReference{Kind: "Pod", Name: "train-0-x"},
		}
	}
	checkKinds(t, eventChange(nil, event("Normal", "Pulled", "kubelet", 1), now()))
	checkKinds(t, eventChange(nil, event("Warning", "FailedScheduling", "default-scheduler", 1), now()))
	checkKinds(t, eventChange(nil, event("Warning", "FailedPrepareDynamicResources", "kubelet", 1), now()), "kubelet warning")
	checkKinds(t, eventChange(nil, event("Warning", "FailedResourceClaimCreation", "resource-claim-controller", 1), now()), "controller-manager warning")
	checkKinds(t, eventChange(event("Warning", "Failed", "kubelet", 1), event("Warning", "Failed", "kubelet", 1), now()))
	checkKinds(t, eventChange(event("Warning", "Failed", "kubelet", 1), event("Warning", "Failed", "kubelet", 2), now()), "kubelet warning")
	checkKinds(t, eventChange(event("Warning", "Failed", "kubelet", 1), nil, now()))

	precise := event("Warning", "Failed", "kubelet", 1)
	precise.EventTime = metav1.NewMicroTime(now().Add(-time.Second))
	if got := eventChange(nil, precise, now()); !got[0].Time.Equal(now().Add(-time.Second)) {
		t.Errorf("time %v, want the Event's own", got[0].Time)
	}
}
