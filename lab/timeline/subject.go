package timeline

import (
	"cmp"
	"slices"
)

// Subjects says which events are about the same Pod, claim or device, although
// each names only what its source knew: a report of the driver has no Pod, and a
// taint has no claim.
type Subjects struct {
	podsOf    map[string][]string // of a claim
	claimsOf  map[string][]string // of a Pod
	devicesOf map[string][]string // of a claim, as node/name
}

// Subjects reads the relations from the timeline's events.
func (t Timeline) Subjects() Subjects {
	s := Subjects{podsOf: map[string][]string{}, claimsOf: map[string][]string{}, devicesOf: map[string][]string{}}
	add := func(to map[string][]string, key, value string) {
		if key != "" && value != "" && !slices.Contains(to[key], value) {
			to[key] = append(to[key], value)
		}
	}
	for _, e := range t.Events {
		add(s.podsOf, e.Claim, e.Pod)
		add(s.claimsOf, e.Pod, e.Claim)
		if e.Kind == ClaimAllocated {
			add(s.devicesOf, e.Claim, deviceKey(e))
		}
	}
	return s
}

func deviceKey(e Event) string {
	if e.Device == "" {
		return ""
	}
	return e.Node + "/" + e.Device
}

// Related reports whether one of two events is about something that the other is
// about too. An event that names nothing is related to none.
func (s Subjects) Related(a, b Event) bool {
	switch {
	case a.Claim != "" && b.Claim != "":
		return a.Claim == b.Claim
	case a.Pod != "" && b.Pod != "":
		return a.Pod == b.Pod && (a.Device == "" || b.Device == "" || a.Device == b.Device)
	case a.Device != "" && b.Device != "":
		return deviceKey(a) == deviceKey(b)
	}
	for _, claim := range s.claims(a) {
		if slices.Contains(s.claims(b), claim) || slices.Contains(s.podsOf[claim], b.Pod) || slices.Contains(s.devicesOf[claim], deviceKey(b)) {
			return true
		}
	}
	for _, claim := range s.claims(b) {
		if slices.Contains(s.podsOf[claim], a.Pod) || slices.Contains(s.devicesOf[claim], deviceKey(a)) {
			return true
		}
	}
	return false
}

func (s Subjects) claims(e Event) []string {
	if e.Claim != "" {
		return []string{e.Claim}
	}
	return s.claimsOf[e.Pod]
}

// Pods are the names of the Pods in the timeline, in the order in which they
// came.
func (t Timeline) Pods() []string {
	var pods []string
	for _, e := range t.Events {
		if e.Pod != "" && !slices.Contains(pods, e.Pod) {
			pods = append(pods, e.Pod)
		}
	}
	return pods
}

// Of is the part of the timeline that is about one Pod, its claims, and their
// devices from the moment on in which it got them. Times are counted from the
// Pod's creation. It is empty when the timeline does not know the Pod.
func (t Timeline) Of(pod string) Timeline {
	s := t.Subjects()
	part := t
	part.Title, part.Events = t.Title+", Pod "+pod, nil
	subject, allocated := Event{Pod: pod}, false
	for _, e := range t.Events {
		if e.Kind == ClaimAllocated && e.Pod == pod {
			allocated = true
		}
		about := e.Pod == pod
		switch {
		case about || e.Pod != "":
		case e.Claim != "":
			about = slices.Contains(s.podsOf[e.Claim], pod)
		case e.Device != "":
			about = allocated && s.Related(subject, e)
		}
		if about {
			part.Events = append(part.Events, e)
		}
	}
	i := slices.IndexFunc(part.Events, func(e Event) bool { return e.Kind == PodCreated })
	if len(part.Events) > 0 {
		part.Origin = part.Events[max(i, 0)].Time
	}
	return part
}

// Lane is where an event starts and where it goes to, the same for one that
// concerns its component alone. An event's component is who knows of it first;
// what a driver reports about a call, for example, is drawn from the kubelet that
// made the call.
func (e Event) Lane() (from, to Component) {
	switch e.Kind {
	case PrepareStarted, UnprepareStarted:
		return Kubelet, Driver
	case Prepared, PrepareFailed, Unprepared, UnprepareFailed, DeviceHealth:
		return Driver, Kubelet
	case GPUEvent:
		return GPU, Driver
	case SlicePublished, DeviceTainted, DeviceUntaint:
		return Driver, APIServer
	case ContainerStarted:
		return Kubelet, Container
	case ContainerExited:
		return Container, Kubelet
	case FaultAsked, FaultCleared:
		return User, GPU
	case PodHealth, PodReady, PodNotReady, PodSucceeded, PodFailed, Warning,
		JobCreated, JobCompleted, JobFailed, PodCreated, PodScheduled, PodUnschedulable, PodDisrupted, PodDeleted,
		ClaimCreated, ClaimAllocated, ClaimReserved, ClaimUnreserved, ClaimDeallocated:
		return cmp.Or(e.Component, APIServer), APIServer
	}
	return e.Component, e.Component
}
