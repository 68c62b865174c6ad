package connections

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"time"
	"weak"

	"google.golang.org/grpc"
	drav1 "k8s.io/kubelet/pkg/apis/dra/v1"

	"github.com/dra-lab/dra-lab/driver/draconn"
	"github.com/dra-lab/dra-lab/driver/draconn/plugintest"
	"github.com/dra-lab/dra-lab/scenarios/connections/lazymodel"
)

// Growth is what many reconnects leave behind.
type Growth struct {
	Reconnects int
	// Lazy closes the broken connection, as the article's code does.
	Lazy Grown
	// Forgetful is the lazy client that forgets to.
	Forgetful Grown
	Eager     Grown
}

// Grown is the difference between the first connection and the last one, in the
// process that has both the client and the plugin.
type Grown struct {
	// Memory is heap and stacks in bytes, after garbage collection. Memory and
	// goroutines may shrink a little.
	Memory     int64
	Goroutines int
	// Objects is how many gRPC connections are in memory at the end, the one
	// in use included. An eager client has one for its whole life.
	Objects int
	// Open is how many connections the plugin has open at the end.
	Open int
	Took time.Duration
}

func measureGrowth(ctx context.Context, socket string, o Options, r *Report) error {
	r.Growth.Reconnects = o.Reconnects
	for _, side := range []struct {
		grown   *Grown
		measure func(context.Context, string, int) (Grown, error)
	}{
		{&r.Growth.Eager, growEager},
		{&r.Growth.Lazy, func(ctx context.Context, socket string, n int) (Grown, error) {
			return growLazy(ctx, socket, n, false)
		}},
		{&r.Growth.Forgetful, func(ctx context.Context, socket string, n int) (Grown, error) {
			return growLazy(ctx, socket, n, true)
		}},
	} {
		var err error
		if *side.grown, err = side.measure(ctx, socket, o.Reconnects); err != nil {
			return err
		}
	}
	return nil
}

// use is one use of a client after another: what the article's loop does.
func use(ctx context.Context, client *lazymodel.Client) error {
	if _, err := client.Health(); err != nil {
		return err
	}
	_, err := client.Prepare(ctx, &drav1.NodePrepareResourcesRequest{})
	return err
}

func growLazy(ctx context.Context, socket string, reconnects int, forget bool) (grown Grown, err error) {
	server, err := plugintest.Start(socket, plugintest.Config{})
	if err != nil {
		return Grown{}, err
	}
	defer server.Kill()
	var inMemory atomic.Int64
	var all []weak.Pointer[grpc.ClientConn]
	client := &lazymodel.Client{Endpoint: socket, DialTimeout: 10 * time.Second, ForgetBroken: forget,
		OnDial: func(conn *grpc.ClientConn) {
			inMemory.Add(1)
			runtime.AddCleanup(conn, func(n *atomic.Int64) { n.Add(-1) }, &inMemory)
			if forget { // to end what the client would leave behind
				all = append(all, weak.Make(conn))
			}
		},
	}
	defer func() {
		err = errors.Join(err, client.Close())
		for _, pointer := range all {
			if conn := pointer.Value(); conn != nil {
				_ = conn.Close() // it reports only that it is closed already
			}
		}
	}()
	if err := use(ctx, client); err != nil {
		return Grown{}, err
	}
	before, begin := settle(ctx), time.Now()
	for i := range reconnects {
		server.Disconnect()
		if err := client.Break(); err != nil {
			return Grown{}, err
		}
		if err := use(ctx, client); err != nil {
			return Grown{}, fmt.Errorf("reconnect %d: %w", i, err)
		}
	}
	took := time.Since(begin)
	grown = settle(ctx).since(before)
	grown.Took, grown.Open, grown.Objects = took, server.Open(), int(inMemory.Load())
	runtime.KeepAlive(client)
	return grown, nil
}

func growEager(ctx context.Context, socket string, reconnects int) (grown Grown, err error) {
	server, err := plugintest.Start(socket, plugintest.Config{})
	if err != nil {
		return Grown{}, err
	}
	defer server.Kill()
	connected := make(chan struct{}, 1)
	conn, err := draconn.Open(ctx, socket, draconn.OnChange(func(c draconn.Change) {
		if c.Connected {
			select {
			case connected <- struct{}{}:
			default: // one is enough to know that it connected again
			}
		}
	}))
	if err != nil {
		return Grown{}, err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	again := func() error {
		select {
		case <-connected:
			return conn.Ping(ctx)
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(time.Minute):
			return errors.New("no connection within a minute")
		}
	}
	if err := again(); err != nil {
		return Grown{}, err
	}
	before, begin := settle(ctx), time.Now()
	for i := range reconnects {
		server.Disconnect()
		if err := again(); err != nil {
			return Grown{}, fmt.Errorf("reconnect %d: %w", i, err)
		}
	}
	took := time.Since(begin)
	grown = settle(ctx).since(before)
	grown.Took, grown.Open, grown.Objects = took, server.Open(), 1
	return grown, nil
}

// size is what a process has at one moment.
type size struct {
	memory     uint64
	goroutines int
}

func (s size) since(before size) Grown {
	return Grown{Memory: int64(s.memory) - int64(before.memory), Goroutines: s.goroutines - before.goroutines}
}

// settle returns the size of the process once it has stopped shrinking: the
// goroutines of connections that have ended take a moment to end too.
func settle(ctx context.Context) size {
	const pause, steady, most = 20 * time.Millisecond, 3, 100
	tick := time.NewTicker(pause)
	defer tick.Stop()
	last, same := -1, 0
	for i := 0; i < most && same < steady && ctx.Err() == nil; i++ {
		<-tick.C
		if n := runtime.NumGoroutine(); n == last {
			same++
		} else {
			last, same = n, 0
		}
	}
	// Twice, because what a cleanup or a sync.Pool holds outlives the first.
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return size{memory: m.HeapAlloc + m.StackInuse, goroutines: runtime.NumGoroutine()}
}
