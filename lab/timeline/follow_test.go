package timeline

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// logServer serves the log of one container as an API server does: each answer
// is one stream, which then breaks.
type logServer struct {
	mu      sync.Mutex
	answers []func(http.ResponseWriter)
	asked   chan struct{}
}

func (s *logServer) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	answer := s.answers[0]
	if len(s.answers) > 1 {
		s.answers = s.answers[1:]
	}
	answer(w)
	s.asked <- struct{}{}
}

func lines(text string) func(http.ResponseWriter) {
	return func(w http.ResponseWriter) { fmt.Fprint(w, text) }
}

func notFound(w http.ResponseWriter) { w.WriteHeader(http.StatusNotFound) }

func TestFollowerReadsOnWhenTheStreamBreaksAndEndsWithThePod(t *testing.T) {
	// Given a container whose log is not found while the kubelet restarts, and
	// whose stream breaks,
	server := &logServer{asked: make(chan struct{}, 100), answers: []func(http.ResponseWriter){
		lines("2026-01-02T03:04:05.1Z a\n"),
		notFound,
		lines("2026-01-02T03:04:05.1Z a\n2026-01-02T03:04:05.2Z b\n"),
		lines("2026-01-02T03:04:05.2Z b\n2026-01-02T03:04:05.3Z c\n"),
		lines(""),
	}}
	api := httptest.NewServer(server)
	defer api.Close()
	client, err := kubernetes.NewForConfig(&rest.Config{Host: api.URL})
	if err != nil {
		t.Fatal(err)
	}
	tasks, ctx := errgroup.WithContext(t.Context())
	f := &follower{client: client, run: tasks, since: now().Add(-time.Hour)}
	var got []string
	add := func(line []byte) { got = append(got, string(line)) }

	// when it is followed, twice told of it, until its Pod is gone,
	f.follow(ctx, pod(running), false, add)
	f.follow(ctx, pod(running), false, add)
	for range 5 {
		<-server.asked
	}
	f.follow(ctx, pod(running), true, add)
	if err := tasks.Wait(); err != nil {
		t.Fatal(err)
	}
	// then each line came once.
	if diff := cmp.Diff([]string{"a", "b", "c"}, got); diff != "" {
		t.Errorf("lines (-want +got):\n%s", diff)
	}
}

func TestFollowerStartsWhenTheContainerDoes(t *testing.T) {
	tasks, ctx := errgroup.WithContext(context.Background())
	f := &follower{run: tasks}
	f.follow(ctx, pod(waiting("ContainerCreating")), false, func([]byte) {})
	f.follow(ctx, pod(running), true, func([]byte) {})
	if len(f.runs) != 0 {
		t.Errorf("%d logs followed of a Pod that has no container yet, or is gone", len(f.runs))
	}
}

func TestFollowerHasRoomAgainWhenARunHasEnded(t *testing.T) {
	// Given as many streams as may be open, one of which ends,
	server := httptest.NewServer(&logServer{asked: make(chan struct{}, 100), answers: []func(http.ResponseWriter){lines("")}})
	defer server.Close()
	client, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	tasks, ctx := errgroup.WithContext(t.Context())
	f := &follower{client: client, run: tasks, open: maxFollowed}
	f.follow(ctx, pod(running), false, func([]byte) {})
	if len(f.runs) != 0 {
		t.Fatalf("followed, although %d streams are open", maxFollowed)
	}
	// when the Pod changes once more, then its run is followed.
	f.open--
	f.follow(ctx, pod(running), false, func([]byte) {})
	if len(f.runs) != 1 || f.open != maxFollowed {
		t.Fatalf("%d runs followed, %d open", len(f.runs), f.open)
	}
	f.follow(ctx, pod(running), true, func([]byte) {})
	if err := tasks.Wait(); err != nil {
		t.Fatal(err)
	}
	if f.open != maxFollowed-1 {
		t.Errorf("%d streams open after the run has ended", f.open)
	}
}
