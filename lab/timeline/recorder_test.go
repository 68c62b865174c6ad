package timeline

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestRecorderRecordsChangesButNotItsBackground(t *testing.T) {
	// Given a cluster in which there is a Pod already,
	client := fake.NewClientset(pod(onNode, func(p *corev1.Pod) { p.Name = "old" }))
	var live bytes.Buffer
	r, err := start(t.Context(), client, Config{Title: "test", Namespace: "ns", Live: &live})
	if err != nil {
		t.Fatal(err)
	}

	// when things happen, some of them in another namespace,
	create := metav1.CreateOptions{}
	pods := client.CoreV1().Pods("ns")
	other := pod(func(p *corev1.Pod) { p.Name, p.Namespace = "other", "elsewhere" })
	_, err1 := client.CoreV1().Pods("elsewhere").Create(t.Context(), other, create)
	_, err2 := pods.Create(t.Context(), pod(), create)
	_, err3 := pods.Update(t.Context(), pod(onNode), metav1.UpdateOptions{})
	_, err4 := client.ResourceV1().ResourceClaims("ns").Create(t.Context(), claim(ofPod), create)
	err5 := pods.Delete(t.Context(), "train-0-x", metav1.DeleteOptions{})
	if err := errors.Join(err1, err2, err3, err4, err5); err != nil {
		t.Fatal(err)
	}
	r.Note(Event{Component: Lab, Kind: Measured, Text: "a figure"})
	for _, kind := range []Kind{PodGone, ClaimCreated, Measured} {
		if _, err := r.Wait(t.Context(), string(kind), is(kind)); err != nil {
			t.Fatal(err)
		}
	}

	// then the timeline has them, and so has the live output.
	line, err := r.Stop()
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []Kind{PodCreated, PodScheduled, PodGone, ClaimCreated, Measured} {
		if _, ok := line.First(is(want)); !ok {
			t.Errorf("the timeline has no %s", want)
		}
	}
	for _, e := range line.Events {
		if e.Pod == "old" || e.Pod == "other" {
			t.Errorf("unexpected event %+v", e)
		}
	}
	if got := strings.Count(live.String(), "\n"); got != len(line.Events) {
		t.Errorf("%d lines written live, want %d:\n%s", got, len(line.Events), live.String())
	}
}

func TestTheContextOfStartBoundsTheStartOnly(t *testing.T) {
	// Given a recorder whose start was bounded,
	client := fake.NewClientset()
	ctx, cancel := context.WithCancel(t.Context())
	r, err := start(ctx, client, Config{Namespace: "ns"})
	if err != nil {
		t.Fatal(err)
	}
	// when that bound is over, then it still records,
	cancel()
	if _, err := client.CoreV1().Pods("ns").Create(t.Context(), pod(), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	waiting, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if _, err := r.Wait(waiting, "the Pod", is(PodCreated)); err != nil {
		t.Error(err)
	}
	if _, err := r.Stop(); err != nil {
		t.Error(err)
	}

	// and a start that takes longer than its bound ends with it.
	late, end := context.WithCancelCause(t.Context())
	tooLate := errors.New("too late")
	end(tooLate)
	if _, err := start(late, client, Config{Namespace: "ns"}); !errors.Is(err, tooLate) {
		t.Errorf("start = %v, want %v", err, tooLate)
	}
}

func TestStopCanBeCalledTwice(t *testing.T) {
	r, err := start(t.Context(), fake.NewClientset(), Config{Namespace: "ns"})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := r.Stop(); err != nil {
			t.Error(err)
		}
	}
}
