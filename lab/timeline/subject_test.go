package timeline

import (
	"slices"
	"testing"
	"time"
)

// twoPods is a run with two Pods on one node, each with a claim and a GPU, the
// first of which breaks.
func twoPods() Timeline {
	at := time.Unix(100, 0)
	var events []Event
	for i, e := range []Event{
		{Kind: PodCreated, Pod: "a", Component: User},
		{Kind: ClaimCreated, Pod: "a", Claim: "a-gpu", Component: ControllerManager},
		{Kind: GPUEvent, Node: "n", Device: "gpu-0", Component: GPU, Text: "before a had it"},
		{Kind: ClaimAllocated, Pod: "a", Claim: "a-gpu", Node: "n", Device: "gpu-0", Component: Scheduler},
		{Kind: PrepareStarted, Claim: "a-gpu", Node: "n", Component: Driver},
		{Kind: PodCreated, Pod: "b", Component: User},
		{Kind: ClaimAllocated, Pod: "b", Claim: "b-gpu", Node: "n", Device: "gpu-1", Component: Scheduler},
		{Kind: Prepared, Claim: "a-gpu", Node: "n", Component: Driver},
		{Kind: GPUEvent, Node: "n", Device: "gpu-0", Component: GPU},
		{Kind: DeviceTainted, Node: "n", Device: "gpu-0", Component: APIServer},
		{Kind: PodDisrupted, Pod: "a", Node: "n", Component: ControllerManager},
		{Kind: Remark, Component: Lab},
	} {
		e.Sequence, e.Time = i+1, at.Add(time.Duration(i)*time.Second)
		events = append(events, e)
	}
	return newTimeline("two", "ns", events, 0)
}

func sequences(events []Event) []int {
	var all []int
	for _, e := range events {
		all = append(all, e.Sequence)
	}
	return all
}

func TestPartOfAPod(t *testing.T) {
	run := twoPods()
	// Given two Pods, when one is asked for, then there are its own events, its
	// claim's, and its GPU's since it had it,
	if got, want := sequences(run.Of("a").Events), []int{1, 2, 4, 5, 8, 9, 10, 11}; !slices.Equal(got, want) {
		t.Errorf("a: %v, want %v", got, want)
	}
	b := run.Of("b")
	if got, want := sequences(b.Events), []int{6, 7}; !slices.Equal(got, want) {
		t.Errorf("b: %v, want %v", got, want)
	}
	// with times since its creation.
	if got := b.Since(b.Events[1]); got != time.Second {
		t.Errorf("b: allocated after %s", got)
	}
	if got := run.Of("c").Events; len(got) != 0 {
		t.Errorf("c: %v", got)
	}
	if got := run.Pods(); !slices.Equal(got, []string{"a", "b"}) {
		t.Errorf("Pods %v", got)
	}
}

func TestRelated(t *testing.T) {
	run := twoPods()
	s := run.Subjects()
	event := func(sequence int) Event { return run.Events[sequence-1] }
	for _, c := range []struct {
		a, b int
		want bool
		why  string
	}{
		{5, 8, true, "the same claim"},
		{7, 8, false, "another claim"},
		{9, 10, true, "the same device"},
		{10, 11, true, "a device and the Pod whose claim has it"},
		{1, 5, true, "a Pod and its claim"},
		{6, 5, false, "a Pod and another's claim"},
		{1, 6, false, "two Pods"},
		{12, 11, false, "a remark is about nothing"},
	} {
		if got := s.Related(event(c.a), event(c.b)); got != c.want {
			t.Errorf("%s: %v", c.why, got)
		}
		if got := s.Related(event(c.b), event(c.a)); got != c.want {
			t.Errorf("%s, the other way round: %v", c.why, got)
		}
	}
}
