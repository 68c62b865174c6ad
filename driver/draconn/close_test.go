package draconn_test

import (
	"context"
	"errors"
	"sync"
	"testing"

	"go.uber.org/goleak"
	healthv1 "k8s.io/kubelet/pkg/apis/dra-health/v1"
	drav1 "k8s.io/kubelet/pkg/apis/dra/v1"

	"github.com/dra-lab/dra-lab/driver/draconn"
	"github.com/dra-lab/dra-lab/driver/draconn/plugintest"
)

func TestCloseEndsWhatRuns(t *testing.T) {
	// Given a call that the plugin does not answer, and a stream,
	endpoint := socket(t)
	called := make(chan struct{})
	server := start(t, endpoint, plugintest.Config{Prepare: func(ctx context.Context, _ *drav1.Claim) ([]*drav1.Device, error) {
		close(called)
		<-ctx.Done()
		return nil, ctx.Err()
	}})
	server.SetHealth(&healthv1.DeviceHealth{})
	seen := make(changes, 10)
	conn := openReady(t, endpoint, seen.option())
	stream, err := conn.WatchHealth(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 2)
	go func() {
		_, err := stream.Recv()
		ended <- err
	}()
	go func() {
		_, err := conn.Prepare(context.Background(), &drav1.NodePrepareResourcesRequest{Claims: []*drav1.Claim{{Uid: "1"}}})
		ended <- err
	}()
	<-called
	// when several goroutines close the connection,
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if err := conn.Close(); err != nil {
				t.Errorf("close: %v", err)
			}
		})
	}
	wg.Wait()
	// then both end and say that it was closed, as does everything afterwards,
	for range 2 {
		if err := <-ended; !errors.Is(err, draconn.ErrClosed) {
			t.Errorf("running call: got %v, want ErrClosed", err)
		}
	}
	if err := conn.Ping(context20s(t)); !errors.Is(err, draconn.ErrClosed) {
		t.Errorf("later call: got %v, want ErrClosed", err)
	}
	if _, err := conn.WatchHealth(context20s(t)); !errors.Is(err, draconn.ErrClosed) {
		t.Errorf("later stream: got %v, want ErrClosed", err)
	}
	if err := conn.WaitReady(context20s(t)); !errors.Is(err, draconn.ErrClosed) {
		t.Errorf("later wait: got %v, want ErrClosed", err)
	}
	if conn.State().Connected {
		t.Error("State says connected after Close")
	}
	// and the end was reported once.
	close(seen)
	var got []bool
	for ch := range seen {
		got = append(got, ch.Connected)
	}
	if len(got) != 2 || !got[0] || got[1] {
		t.Errorf("changes: got %v, want connected and disconnected", got)
	}
}

func TestOpenAndCloseInAnyOrder(t *testing.T) {
	// Given a plugin that is there in some rounds, absent in others and goes
	// away in some, when connections are opened, used and closed 1,000 times,
	// at every stage of their life,
	rounds := 1000
	if testing.Short() {
		rounds = 100
	}
	before := goleak.IgnoreCurrent()
	endpoint := socket(t)
	for i := range rounds {
		var server *plugintest.Server
		if i%3 != 0 {
			var err error
			if server, err = plugintest.Start(endpoint, plugintest.Config{}); err != nil {
				t.Fatal(err)
			}
			server.SetHealth(&healthv1.DeviceHealth{})
		}
		conn, err := draconn.Open(context.Background(), endpoint)
		if err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		switch i % 5 {
		case 1: // closed while it connects and is used
			wg.Go(func() { _ = conn.Ping(context.Background()) })
		case 2: // closed with an abandoned stream
			if server != nil {
				if err := conn.WaitReady(context20s(t)); err != nil {
					t.Fatal(err)
				}
				if _, err := conn.WatchHealth(context.Background()); err != nil {
					t.Fatal(err)
				}
			}
		case 3: // closed while the plugin ends
			if server != nil {
				wg.Go(server.Kill)
			}
		case 4: // closed after use
			_ = conn.Attempt(context20s(t))
			_ = conn.Ping(context.Background())
		}
		if err := conn.Close(); err != nil {
			t.Fatalf("round %d: close: %v", i, err)
		}
		wg.Wait()
		if server != nil {
			server.Kill()
		}
	}
	// then nothing is left of them.
	if err := goleak.Find(before); err != nil {
		t.Error(err)
	}
}
