package timeline

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestWaitFindsEventsOfThePastAndOfTheFuture(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLog(10)
		l.add(Event{Kind: PodCreated}, Event{Kind: PodScheduled})
		if _, err := l.wait(t.Context(), "past", is(PodCreated)); err != nil {
			t.Error(err)
		}
		found := make(chan Event)
		go func() {
			e, err := l.wait(t.Context(), "future", is(PodReady))
			if err != nil {
				t.Error(err)
			}
			found <- e
		}()
		synctest.Wait()
		l.add(Event{Kind: PodHealth}, Event{Kind: PodReady})
		if e := <-found; e.Sequence != 4 {
			t.Errorf("found event %d, want 4", e.Sequence)
		}
	})
}

func TestWaitSaysWhatItSawInsteadOfTheEvent(t *testing.T) {
	l := newLog(10)
	l.add(Event{Text: "Pod a created"}, Event{Text: "Pod a bound"})
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("too late"))
	_, err := l.wait(ctx, "Pod a to be Ready", is(PodReady))
	for _, want := range []string{"Pod a to be Ready", "too late", "Pod a created; Pod a bound"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v does not say %q", err, want)
		}
	}
}

func TestWaitEndsWithTheRecording(t *testing.T) {
	l := newLog(10)
	l.close()
	if _, err := l.wait(t.Context(), "anything", is(PodReady)); !errors.Is(err, errStopped) {
		t.Errorf("wait = %v, want %v", err, errStopped)
	}
}

func TestAFullLogCountsWhatItDrops(t *testing.T) {
	l := newLog(2)
	l.add(Event{}, Event{}, Event{})
	l.add(Event{})
	events, _, _ := l.since(0)
	if got := newTimeline("title", "ns", events, l.lost()); len(got.Events) != 2 || got.Dropped != 2 {
		t.Errorf("%d events kept, %d dropped, want 2 and 2", len(got.Events), got.Dropped)
	}
}

func TestTimelineIsInTheOrderOfTimesAndCountsFromTheFirstPod(t *testing.T) {
	// Given events whose reports came late,
	at := func(ms int) time.Time { return now().Add(time.Duration(ms) * time.Millisecond) }
	line := newTimeline("training", "ns", []Event{
		{Sequence: 1, Time: at(0), Component: User, Kind: JobCreated, Text: "Job created"},
		{Sequence: 2, Time: at(20), Component: ControllerManager, Kind: PodCreated, Text: "Pod created"},
		{Sequence: 3, Time: at(900), Component: Kubelet, Kind: PodReady, Node: "dra-lab-worker", Text: "Pod Ready"},
		{Sequence: 4, Time: at(400), Component: Driver, Kind: Prepared, Node: "dra-lab-worker", Text: "claim prepared"},
	}, 0)
	// when they are written,
	var out bytes.Buffer
	if err := line.WriteText(&out); err != nil {
		t.Fatal(err)
	}
	// then they read as they happened.
	want := `training, 2026-01-02T03:04:05Z, times since the creation of the first Pod
   -0.020s  user                -                     Job created
   +0.000s  controller-manager  -                     Pod created
   +0.380s  driver              dra-lab-worker        claim prepared
   +0.880s  kubelet             dra-lab-worker        Pod Ready
`
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("text (-want +got):\n%s", diff)
	}

	// And a saved timeline is the same after loading.
	path := filepath.Join(t.TempDir(), "timelines", "training.json")
	if err := line.Save(path); err != nil {
		t.Fatal(err)
	}
	got, err := Load(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(line, got); diff != "" {
		t.Errorf("loaded (-want +got):\n%s", diff)
	}
}

func TestLoadRefusesWhatIsNoTimeline(t *testing.T) {
	for name, content := range map[string]string{"empty": "", "text": "hello", "another version": `{"version": 99}`} {
		path := filepath.Join(t.TempDir(), "file.json")
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := Load(path); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: Load = %v, want an error that names the file", name, err)
		}
	}
}

func TestLiveLinesComeInTheOrderOfTimesAndSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLog(10)
		var out bytes.Buffer
		done := make(chan error)
		go func() { done <- show(l, &out) }()

		// Nothing is written before the first Pod is there,
		l.add(Event{Time: time.Now(), Kind: JobCreated, Text: "job"})
		time.Sleep(time.Second)
		synctest.Wait()
		if out.Len() > 0 {
			t.Errorf("written before the first Pod: %q", out.String())
		}
		// a report that is overtaken by a watch still comes first,
		l.add(Event{Time: time.Now(), Kind: PodCreated, Text: "pod"})
		time.Sleep(300 * time.Millisecond)
		l.add(Event{Time: time.Now(), Kind: PodReady, Text: "ready"})
		l.add(Event{Time: time.Now().Add(-100 * time.Millisecond), Kind: Prepared, Text: "prepared"})
		// and all is there soon after it happened.
		time.Sleep(2 * settle)
		synctest.Wait()
		want := `   -1.000s                      -                     job
   +0.000s                      -                     pod
   +0.200s                      -                     prepared
   +0.300s                      -                     ready
`
		if diff := cmp.Diff(want, out.String()); diff != "" {
			t.Errorf("lines (-want +got):\n%s", diff)
		}
		// What is held back is written at the end.
		l.add(Event{Time: time.Now(), Text: "last"})
		l.close()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if !strings.HasSuffix(out.String(), "last\n") {
			t.Errorf("the last line is missing: %q", out.String())
		}
	})
}

func is(kind Kind) func(Event) bool { return func(e Event) bool { return e.Kind == kind } }
