package draconn_test

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	healthv1 "k8s.io/kubelet/pkg/apis/dra-health/v1"
	drav1 "k8s.io/kubelet/pkg/apis/dra/v1"

	"github.com/dra-lab/dra-lab/driver/draconn"
	"github.com/dra-lab/dra-lab/driver/draconn/plugintest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// bound is more than anything here takes on a busy machine; reaching it is a
// failure.
const bound = 20 * time.Second

func context20s(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), bound)
	t.Cleanup(cancel)
	return ctx
}

// socket is a path for a socket. t.TempDir is too long a path for one when the
// test's name is.
func socket(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "dra")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return filepath.Join(dir, "dra.sock")
}

func start(t testing.TB, endpoint string, config plugintest.Config) *plugintest.Server {
	t.Helper()
	s, err := plugintest.Start(endpoint, config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Kill)
	return s
}

func open(t testing.TB, endpoint string, opts ...draconn.Option) *draconn.Conn {
	t.Helper()
	c, err := draconn.Open(context.Background(), endpoint, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return c
}

func openReady(t testing.TB, endpoint string, opts ...draconn.Option) *draconn.Conn {
	t.Helper()
	c := open(t, endpoint, opts...)
	if err := c.WaitReady(context20s(t)); err != nil {
		t.Fatal(err)
	}
	return c
}

// changes collects the changes of a connection, without their times.
type changes chan draconn.Change

func (c changes) option() draconn.Option {
	return draconn.OnChange(func(ch draconn.Change) { c <- ch })
}

func (c changes) next(t *testing.T) draconn.Change {
	t.Helper()
	select {
	case ch := <-c:
		if ch.Time.IsZero() {
			t.Error("a change without a time")
		}
		ch.Time = time.Time{}
		return ch
	case <-time.After(bound):
		t.Fatal("no change of the connection")
		return draconn.Change{}
	}
}

// skipFailures returns the next change that is not a failed attempt: how many
// attempts fail while a plugin is away is a matter of timing.
func (c changes) skipFailures(t *testing.T) draconn.Change {
	t.Helper()
	for {
		if ch := c.next(t); ch.Err == nil {
			return ch
		}
	}
}

func TestOneConnectionServesEverything(t *testing.T) {
	// Given a plugin, when many goroutines call all its services at once,
	endpoint := socket(t)
	server := start(t, endpoint, plugintest.Config{})
	server.SetHealth(&healthv1.DeviceHealth{Health: healthv1.HealthStatus_HEALTHY})
	conn := openReady(t, endpoint)
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			if _, err := conn.Prepare(context20s(t), &drav1.NodePrepareResourcesRequest{}); err != nil {
				t.Error(err)
			}
		})
		wg.Go(func() {
			if _, err := conn.Unprepare(context20s(t), &drav1.NodeUnprepareResourcesRequest{}); err != nil {
				t.Error(err)
			}
		})
		wg.Go(func() {
			stream, err := conn.WatchHealth(context20s(t))
			if err != nil {
				t.Error(err)
				return
			}
			defer stream.Close()
			if _, err := stream.Recv(); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	// then the plugin has accepted one connection.
	if got := server.Accepted(); got != 1 {
		t.Errorf("accepted connections: got %d, want 1", got)
	}
	if got := conn.State().Connections; got != 1 {
		t.Errorf("State.Connections: got %d, want 1", got)
	}
}

func TestPluginStartsAfterOpen(t *testing.T) {
	// Given a connection to a plugin that is not there,
	endpoint := socket(t)
	seen := make(changes, 100)
	conn := open(t, endpoint, seen.option())
	if err := conn.Attempt(context20s(t)); !errors.Is(err, draconn.ErrAbsent) {
		t.Fatalf("attempt: got %v, want ErrAbsent", err)
	}
	if ch := seen.next(t); ch.Connected || !errors.Is(ch.Err, draconn.ErrAbsent) {
		t.Errorf("first change: got %+v, want a failure with ErrAbsent", ch)
	}
	// when the plugin starts,
	start(t, endpoint, plugintest.Config{})
	// then it is found without a call being made.
	if err := conn.WaitReady(context20s(t)); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(draconn.Change{Connected: true, Connection: 1}, seen.skipFailures(t)); diff != "" {
		t.Errorf("change (-want +got):\n%s", diff)
	}
	if err := conn.Ping(context20s(t)); err != nil {
		t.Error(err)
	}
}

func TestPluginRestarts(t *testing.T) {
	for _, end := range []string{"killed", "stopped"} {
		t.Run(end, func(t *testing.T) {
			// Given a connected plugin with an open health stream,
			endpoint := socket(t)
			seen := make(changes, 100)
			first := start(t, endpoint, plugintest.Config{})
			first.SetHealth(&healthv1.DeviceHealth{})
			conn := openReady(t, endpoint, seen.option())
			stream, err := conn.WatchHealth(context20s(t))
			if err != nil {
				t.Fatal(err)
			}
			defer stream.Close()
			if _, err := stream.Recv(); err != nil {
				t.Fatal(err)
			}
			// when its process ends,
			want := draconn.ErrStale
			if end == "killed" {
				first.Kill() // leaves the file
			} else if err := first.Stop(); err != nil {
				t.Fatal(err)
			} else {
				want = draconn.ErrAbsent
			}
			// then the stream ends, and calls fail at once and say why,
			if _, err := stream.Recv(); status.Code(err) != codes.Unavailable {
				t.Errorf("stream: got %v, want code Unavailable", err)
			}
			for _, step := range []draconn.Change{{Connected: true, Connection: 1}, {Connection: 1}} {
				if diff := cmp.Diff(step, seen.next(t)); diff != "" {
					t.Errorf("change (-want +got):\n%s", diff)
				}
			}
			if ch := seen.next(t); !errors.Is(ch.Err, want) {
				t.Errorf("change: got %+v, want a failure with %q", ch, want)
			}
			if err := conn.Ping(context20s(t)); status.Code(err) != codes.Unavailable || !errors.Is(err, want) {
				t.Errorf("call: got %v, want code Unavailable and %q", err, want)
			}
			// and when another process takes its place, the same Conn serves.
			second := start(t, endpoint, plugintest.Config{})
			if err := conn.WaitReady(context20s(t)); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(draconn.Change{Connected: true, Connection: 2}, seen.skipFailures(t)); diff != "" {
				t.Errorf("change (-want +got):\n%s", diff)
			}
			if err := conn.Ping(context20s(t)); err != nil {
				t.Error(err)
			}
			if got := second.Accepted(); got != 1 {
				t.Errorf("connections to the new process: got %d, want 1", got)
			}
		})
	}
}

func TestSocketIsReplacedWhileConnected(t *testing.T) {
	// Given a connected plugin, when another one puts its socket in the place
	// of the first one's,
	endpoint := socket(t)
	seen := make(changes, 100)
	first := start(t, endpoint, plugintest.Config{})
	conn := openReady(t, endpoint, seen.option())
	second := start(t, endpoint, plugintest.Config{})
	// then the connection stays with the first as long as that lives,
	if err := conn.Ping(context20s(t)); err != nil {
		t.Fatal(err)
	}
	if got := second.Accepted(); got != 0 {
		t.Errorf("connections to the new plugin: got %d, want 0", got)
	}
	// and goes to the second when it ends.
	first.Kill()
	for _, step := range []draconn.Change{{Connected: true, Connection: 1}, {Connection: 1}, {Connected: true, Connection: 2}} {
		if diff := cmp.Diff(step, seen.skipFailures(t)); diff != "" {
			t.Errorf("change (-want +got):\n%s", diff)
		}
	}
	if err := conn.Ping(context20s(t)); err != nil {
		t.Error(err)
	}
	if got := second.Accepted(); got != 1 {
		t.Errorf("connections to the new plugin: got %d, want 1", got)
	}
}

func TestEveryRestartIsReported(t *testing.T) {
	// Given a plugin that restarts again and again, and an owner that is slow
	// to look, then connections and disconnections alternate and no number is
	// reported twice.
	rounds := 30
	if testing.Short() {
		rounds = 8
	}
	endpoint := socket(t)
	server := start(t, endpoint, plugintest.Config{})
	seen := make(chan draconn.Change)
	conn := open(t, endpoint, draconn.OnChange(func(c draconn.Change) {
		if c.Err == nil {
			seen <- c
		}
	}))
	defer func() {
		go func() {
			for range seen {
			}
		}()
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
		close(seen)
	}()
	var last draconn.Change
	for range rounds {
		if err := conn.WaitReady(context20s(t)); err != nil {
			t.Fatal(err)
		}
		up := <-seen
		if !up.Connected || up.Connection <= last.Connection {
			t.Fatalf("after %+v: got %+v, want a connection with a higher number", last, up)
		}
		server.Kill()
		server = start(t, endpoint, plugintest.Config{})
		last = <-seen
		if last.Connected || last.Connection != up.Connection {
			t.Fatalf("after %+v: got %+v, want its end", up, last)
		}
	}
}

func TestOpenRefuses(t *testing.T) {
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	for name, c := range map[string]struct {
		ctx      context.Context
		endpoint string
		want     string
	}{
		"no endpoint":     {context.Background(), "", "empty endpoint"},
		"a path too long": {context.Background(), "/" + strings.Repeat("x", 107), "path has 108 bytes, a Unix socket's address holds at most 107"},
		"an ended ctx":    {ended, "/run/x.sock", "context canceled"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := draconn.Open(c.ctx, c.endpoint)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q in it", err, c.want)
			}
		})
	}
}

func TestPathThatLooksLikeAURL(t *testing.T) {
	endpoint := filepath.Join(filepath.Dir(socket(t)), "a%zz?b#c.sock")
	start(t, endpoint, plugintest.Config{})
	if err := openReady(t, endpoint).Ping(context20s(t)); err != nil {
		t.Error(err)
	}
}

func TestEndpointThatIsNoPlugin(t *testing.T) {
	t.Run("a regular file is stale", func(t *testing.T) {
		endpoint := socket(t)
		if err := os.WriteFile(endpoint, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := open(t, endpoint).Attempt(context20s(t)); !errors.Is(err, draconn.ErrStale) {
			t.Errorf("got %v, want ErrStale", err)
		}
	})
	t.Run("a server that hangs up is not serving", func(t *testing.T) {
		endpoint := socket(t)
		listener, err := net.Listen("unix", endpoint)
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			for {
				conn, err := listener.Accept()
				if err != nil {
					return
				}
				_ = conn.Close()
			}
		}()
		conn := open(t, endpoint)
		if err := conn.Attempt(context20s(t)); !errors.Is(err, draconn.ErrNotServing) {
			t.Errorf("got %v, want ErrNotServing", err)
		}
		// Between two attempts calls say so too, and so does State.
		for deadline := time.Now().Add(bound); ; time.Sleep(time.Millisecond) {
			state, err := conn.State().Err, conn.Ping(context20s(t))
			if errors.Is(state, draconn.ErrNotServing) && errors.Is(err, draconn.ErrNotServing) {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("state %v, call %v, want ErrNotServing", state, err)
			}
		}
		if err := listener.Close(); err != nil {
			t.Error(err)
		}
		<-done
	})
	t.Run("waiting names the last reason", func(t *testing.T) {
		conn := open(t, socket(t))
		if err := conn.Attempt(context20s(t)); err == nil {
			t.Fatal("an absent plugin is ready")
		}
		ctx, cancel := context.WithCancelCause(context.Background())
		cause := errors.New("the test has seen enough")
		cancel(cause)
		if err := conn.WaitReady(ctx); !errors.Is(err, cause) || !errors.Is(err, draconn.ErrAbsent) {
			t.Errorf("got %v, want the cause and ErrAbsent", err)
		}
	})
}
