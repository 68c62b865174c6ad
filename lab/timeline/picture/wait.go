package picture

import (
	"strings"
	"time"

	"github.com/dra-lab/dra-lab/lab/timeline"
)

// pause is how long nothing has to happen before it is said why.
const pause = time.Second

// reasons are why an event of a kind is waited for. The periods are the
// kubelet's and the controllers' own.
var reasons = map[timeline.Kind]string{
	timeline.PodScheduled:     "the scheduler tries again when something has changed that could help the Pod",
	timeline.ClaimAllocated:   "the scheduler tries again when a device has become free",
	timeline.PodUnschedulable: "the scheduler tries again when something has changed",
	timeline.PrepareStarted:   "the kubelet prepares claims when it syncs the Pod; after a failure it waits for the next sync, up to 90 s",
	timeline.Prepared:         "the driver prepares the devices",
	timeline.PrepareFailed:    "the kubelet gives a driver 45 s to answer",
	timeline.SandboxReady:     "the kubelet mounts volumes and has the sandbox made",
	timeline.ContainerStarted: "the kubelet pulls images and starts containers one after the other",
	timeline.PodReady:         "the readiness probe has to succeed",
	timeline.ContainerExited:  "the container runs, or ends within its grace period",
	timeline.PodHealth:        "the kubelet writes a Pod's status when it syncs the Pod, every 60 to 90 s unless something happens",
	timeline.DeviceHealth:     "the driver looks at its GPUs in turn, and has to see a fault gone several times before it says so",
	timeline.DeviceTainted:    "the driver publishes the taint",
	timeline.DeviceUntaint:    "the driver takes a taint back when the fault is gone and the GPU has answered well",
	timeline.PodDeleted:       "whoever deletes the Pod decides when",
	timeline.PodGone:          "the kubelet lets a Pod go when its containers have ended and its claims are unprepared",
	timeline.UnprepareStarted: "the kubelet unprepares when all containers of the Pod have ended",
	timeline.Unprepared:       "the driver gives the devices back",
	timeline.ClaimDeallocated: "the claim is deallocated when nobody uses it any more",
	timeline.JobCompleted:     "the Job counts its Pods when they have ended",
	timeline.FaultCleared:     "the user mends",
}

// waited says what was waited for between two events that follow each other, and
// "" when that took no time worth a word.
func waited(before, next timeline.Event) string {
	if next.Time.Sub(before.Time) < pause {
		return ""
	}
	switch {
	case before.Kind == timeline.Remark:
		return strings.TrimPrefix(before.Text, "note: ")
	case next.Kind == timeline.PodCreated && next.Component == timeline.ControllerManager:
		return "a controller waits, longer each time, before it replaces a Pod"
	case strings.HasPrefix(string(next.Kind), timeline.WorkloadPrefix):
		return "the workload computes"
	}
	return reasons[next.Kind]
}
