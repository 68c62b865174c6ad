package picture

import (
	"slices"

	"github.com/dra-lab/dra-lab/lab/timeline"
)

// causes are what an event of a kind follows from: the latest of these that is
// about the same thing. Where two are listed, either may be it.
var causes = map[timeline.Kind][]timeline.Kind{
	timeline.PodCreated:       {timeline.JobCreated},
	timeline.ClaimCreated:     {timeline.PodCreated},
	timeline.ClaimAllocated:   {timeline.ClaimCreated, timeline.PodUnschedulable},
	timeline.ClaimReserved:    {timeline.ClaimAllocated},
	timeline.PodUnschedulable: {timeline.PodCreated},
	timeline.PodScheduled:     {timeline.PodCreated, timeline.ClaimAllocated},
	timeline.PrepareStarted:   {timeline.PodScheduled, timeline.PrepareFailed},
	timeline.Prepared:         {timeline.PrepareStarted},
	timeline.PrepareFailed:    {timeline.PrepareStarted},
	timeline.SandboxReady:     {timeline.Prepared, timeline.PodScheduled},
	timeline.ContainerStarted: {timeline.SandboxReady},
	timeline.PodReady:         {timeline.ContainerStarted},
	timeline.PodNotReady:      {timeline.ContainerExited},

	timeline.FaultInjected:   {timeline.FaultAsked},
	timeline.GPUEvent:        {timeline.FaultInjected, timeline.FaultAsked},
	timeline.DeviceHealth:    {timeline.GPUEvent, timeline.FaultCleared},
	timeline.PodHealth:       {timeline.DeviceHealth},
	timeline.DeviceTainted:   {timeline.DeviceHealth, timeline.GPUEvent},
	timeline.DeviceUntaint:   {timeline.DeviceHealth, timeline.FaultCleared},
	timeline.PodDisrupted:    {timeline.DeviceTainted},
	timeline.PodDeleted:      {timeline.PodDisrupted},
	timeline.PodFailed:       {timeline.ContainerExited},
	timeline.PodSucceeded:    {timeline.ContainerExited},
	timeline.JobCompleted:    {timeline.PodSucceeded},
	timeline.JobFailed:       {timeline.PodFailed},
	timeline.FaultCleared:    {timeline.FaultAsked},
	timeline.ClaimGone:       {timeline.ClaimDeallocated},
	timeline.PodGone:         {timeline.Unprepared, timeline.PodDeleted},
	timeline.ContainerExited: {timeline.PodDeleted, timeline.ContainerStarted},

	timeline.UnprepareStarted: {timeline.ContainerExited, timeline.PodDeleted},
	timeline.Unprepared:       {timeline.UnprepareStarted},
	timeline.UnprepareFailed:  {timeline.UnprepareStarted},
	timeline.ClaimUnreserved:  {timeline.ContainerExited, timeline.PodDeleted},
	timeline.ClaimDeallocated: {timeline.Unprepared, timeline.ClaimUnreserved},

	timeline.Workload("started"): {timeline.ContainerStarted, timeline.SandboxReady},
	timeline.Workload("resumed"): {timeline.Workload("started")},
	timeline.Workload("leaving"): {timeline.PodDeleted},
}

// lookBack bounds how many events before one are searched for its cause.
const lookBack = 2000

// cause finds the event that events[i] follows from.
func cause(events []timeline.Event, s timeline.Subjects, i int) (timeline.Event, bool) {
	e := events[i]
	kinds := causes[e.Kind]
	if len(kinds) == 0 {
		return timeline.Event{}, false
	}
	for j := i - 1; j >= max(0, i-lookBack); j-- {
		c := events[j]
		if slices.Contains(kinds, c.Kind) && (namesNothing(c) || namesNothing(e) || s.Related(c, e)) {
			return c, true
		}
	}
	return timeline.Event{}, false
}

// namesNothing is true of an event that is about the run as a whole, as that of a
// Job, or a fault that is cleared everywhere.
func namesNothing(e timeline.Event) bool { return e.Pod == "" && e.Claim == "" && e.Device == "" }
