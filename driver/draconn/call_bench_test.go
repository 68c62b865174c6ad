package draconn

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	drav1 "k8s.io/kubelet/pkg/apis/dra/v1"

	"github.com/dra-lab/dra-lab/driver/draconn/plugintest"
)

// nowhere answers every call at once, so that what remains to be measured is
// what lies above gRPC.
type nowhere struct{}

func (nowhere) Invoke(context.Context, string, any, any, ...grpc.CallOption) error { return nil }

func (nowhere) NewStream(context.Context, *grpc.StreamDesc, string, ...grpc.CallOption) (grpc.ClientStream, error) {
	panic("no streams here")
}

var goroutines = []int{1, 4, 16, 64}

// spread runs b.N calls over n goroutines.
func spread(b *testing.B, n int, call func()) {
	b.ReportAllocs()
	b.ResetTimer()
	var wg sync.WaitGroup
	for i := range n {
		calls := b.N / n
		if i < b.N%n {
			calls++
		}
		wg.Go(func() {
			for range calls {
				call()
			}
		})
	}
	wg.Wait()
}

// BenchmarkCall compares the eager path with the bare generated stub, without a
// network: the difference is what draconn costs. TestCallOverhead keeps it.
func BenchmarkCall(b *testing.B) {
	ctx := context.Background()
	req := &drav1.NodePrepareResourcesRequest{}
	stub := drav1.NewDRAPluginClient(nowhere{})
	conn := &Conn{clients: newClients(nowhere{}, nil, false)}
	for _, n := range goroutines {
		b.Run(fmt.Sprintf("stub/goroutines=%d", n), func(b *testing.B) {
			spread(b, n, func() { _, _ = stub.NodePrepareResources(ctx, req) })
		})
		b.Run(fmt.Sprintf("eager/goroutines=%d", n), func(b *testing.B) {
			spread(b, n, func() { _, _ = conn.Prepare(ctx, req) })
		})
	}
}

// BenchmarkSocket is the same over a real socket to a real server.
func BenchmarkSocket(b *testing.B) {
	endpoint := filepath.Join(b.TempDir(), "s")
	server, err := plugintest.Start(endpoint, plugintest.Config{})
	if err != nil {
		b.Fatal(err)
	}
	defer server.Kill()
	ctx := context.Background()
	conn, err := Open(ctx, endpoint)
	if err != nil {
		b.Fatal(err)
	}
	defer func() {
		if err := conn.Close(); err != nil {
			b.Error(err)
		}
	}()
	if err := conn.WaitReady(ctx); err != nil {
		b.Fatal(err)
	}
	req := &drav1.NodePrepareResourcesRequest{}
	stub := drav1.NewDRAPluginClient(conn.cc)
	for _, n := range goroutines {
		b.Run(fmt.Sprintf("stub/goroutines=%d", n), func(b *testing.B) {
			spread(b, n, func() {
				if _, err := stub.NodePrepareResources(ctx, req); err != nil {
					b.Error(err)
				}
			})
		})
		b.Run(fmt.Sprintf("eager/goroutines=%d", n), func(b *testing.B) {
			spread(b, n, func() {
				if _, err := conn.Prepare(ctx, req); err != nil {
					b.Error(err)
				}
			})
		})
	}
}

func TestCallAllocatesNothing(t *testing.T) {
	ctx := context.Background()
	req := &drav1.NodePrepareResourcesRequest{}
	stub := drav1.NewDRAPluginClient(nowhere{})
	conn := &Conn{clients: newClients(nowhere{}, nil, false)}
	bare := testing.AllocsPerRun(1000, func() { _, _ = stub.NodePrepareResources(ctx, req) })
	eager := testing.AllocsPerRun(1000, func() { _, _ = conn.Prepare(ctx, req) })
	if eager != bare {
		t.Errorf("allocations per call: got %v, want the stub's %v", eager, bare)
	}
}

// TestFirstCallIsWarm: once a plugin serves, the first call takes no longer than
// later ones. Medians over many connections are compared, and the bound is wide
// because both are some ten microseconds on a machine that does other things.
func TestFirstCallIsWarm(t *testing.T) {
	if raceDetector {
		t.Skip("the race detector is on")
	}
	const connections, later = 60, 5
	endpoint := filepath.Join(t.TempDir(), "s")
	server, err := plugintest.Start(endpoint, plugintest.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer server.Kill()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	var first, warm []time.Duration
	timed := func(conn *Conn) time.Duration {
		begin := time.Now()
		if err := conn.Ping(ctx); err != nil {
			t.Fatal(err)
		}
		return time.Since(begin)
	}
	for range connections {
		conn, err := Open(ctx, endpoint)
		if err != nil {
			t.Fatal(err)
		}
		if err := conn.WaitServing(ctx); err != nil {
			t.Fatal(err)
		}
		first = append(first, timed(conn))
		for range later {
			warm = append(warm, timed(conn))
		}
		if err := conn.Close(); err != nil {
			t.Fatal(err)
		}
	}
	slices.Sort(first)
	slices.Sort(warm)
	a, b := first[len(first)/2], warm[len(warm)/2]
	t.Logf("median of the first call %v, of later calls %v", a, b)
	if a > 2*b {
		t.Errorf("first call: median %v, want about that of later calls, %v", a, b)
	}
}
