package connections

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	drav1 "k8s.io/kubelet/pkg/apis/dra/v1"

	"github.com/dra-lab/dra-lab/driver/draconn"
	"github.com/dra-lab/dra-lab/driver/draconn/plugintest"
	"github.com/dra-lab/dra-lab/scenarios/connections/lazymodel"
)

// Ways compares three ways to make a connection. Times are medians over Rounds
// new connections, but for the plugin that is absent, which is tried once.
type Ways struct {
	Rounds      int
	DialTimeout time.Duration
	// Dial is grpc.Dial with WithBlock and WithTimeout, which are deprecated.
	Dial Way
	// NewClient is grpc.NewClient alone: it connects when the first call comes.
	NewClient Way
	// Eager is draconn.Open and WaitServing.
	Eager Way
	// Warm is a call on a connection that has had many.
	Warm time.Duration
}

// Way is one way to make a connection.
type Way struct {
	// Absent is the time that construction takes when nobody listens, and
	// AbsentError the error that it then returns, if any.
	Absent      time.Duration
	AbsentError string
	// Construct is the same when the plugin is there, Ready the time from then
	// on until the way says that the plugin can be used (0 if it never says
	// so), and First the time of the first call after that.
	Construct time.Duration
	Ready     time.Duration
	First     time.Duration
}

// way makes connections for measurement.
type way struct {
	construct func(context.Context) (opened, error)
	result    *Way
}

// opened is a connection made in one of the ways.
type opened struct {
	ready func(context.Context) error // nil if the way has no such thing
	call  func(context.Context) error
	close func() error
}

func measureWays(ctx context.Context, socket string, o Options, r *Report) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute+o.DialTimeout)
	defer cancel()
	w := &r.Ways
	w.Rounds, w.DialTimeout = o.Rounds, o.DialTimeout
	stub := func(conn *grpc.ClientConn) opened {
		client := drav1.NewDRAPluginClient(conn)
		return opened{close: conn.Close, call: func(ctx context.Context) error {
			_, err := client.NodePrepareResources(ctx, &drav1.NodePrepareResourcesRequest{})
			return err
		}}
	}
	ways := []way{
		{result: &w.Dial, construct: func(context.Context) (opened, error) {
			conn, err := lazymodel.DialBlocking(socket, o.DialTimeout)
			if err != nil {
				return opened{}, err
			}
			return stub(conn), nil
		}},
		{result: &w.NewClient, construct: func(context.Context) (opened, error) {
			conn, err := grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
			if err != nil {
				return opened{}, err
			}
			return stub(conn), nil
		}},
		{result: &w.Eager, construct: func(ctx context.Context) (opened, error) {
			conn, err := draconn.Open(ctx, socket)
			if err != nil {
				return opened{}, err
			}
			return opened{ready: conn.WaitServing, call: conn.Ping, close: conn.Close}, nil
		}},
	}
	for _, way := range ways {
		if err := way.absent(ctx); err != nil {
			return err
		}
	}
	server, err := plugintest.Start(socket, plugintest.Config{})
	if err != nil {
		return err
	}
	defer server.Kill()
	// Round by round rather than way by way, so that whatever else the machine
	// does happens to all of them.
	times := make([]struct{ construct, ready, first []time.Duration }, len(ways))
	var warm []time.Duration
	for range o.Rounds {
		for i, way := range ways {
			m, err := way.present(ctx)
			if err != nil {
				return err
			}
			times[i].construct = append(times[i].construct, m.Construct)
			times[i].ready = append(times[i].ready, m.Ready)
			times[i].first = append(times[i].first, m.First)
			warm = append(warm, m.warm)
		}
	}
	for i, way := range ways {
		way.result.Construct = median(times[i].construct)
		way.result.Ready = median(times[i].ready)
		way.result.First = median(times[i].first)
	}
	w.Warm = median(warm)
	return nil
}

func (w way) absent(ctx context.Context) error {
	begin := time.Now()
	conn, err := w.construct(ctx)
	w.result.Absent = time.Since(begin)
	if err != nil {
		w.result.AbsentError = errors.Unwrap(err).Error()
		return nil
	}
	return conn.close()
}

type present struct {
	Way
	warm time.Duration
}

func (w way) present(ctx context.Context) (present, error) {
	var m present
	clock := time.Now()
	lap := func() time.Duration {
		now := time.Now()
		took := now.Sub(clock)
		clock = now
		return took
	}
	conn, err := w.construct(ctx)
	if err != nil {
		return present{}, err
	}
	m.Construct = lap()
	if conn.ready != nil {
		if err := conn.ready(ctx); err != nil {
			return present{}, errors.Join(err, conn.close())
		}
		m.Ready = lap()
	}
	if err := conn.call(ctx); err != nil {
		return present{}, errors.Join(err, conn.close())
	}
	m.First = lap()
	const calls = 5
	for range calls {
		if err := conn.call(ctx); err != nil {
			return present{}, errors.Join(err, conn.close())
		}
		m.warm = lap() // the last one counts
	}
	if err := conn.close(); err != nil {
		return present{}, fmt.Errorf("close: %w", err)
	}
	return m, nil
}

func median(of []time.Duration) time.Duration {
	if len(of) == 0 {
		return 0
	}
	slices.Sort(of)
	return of[len(of)/2]
}
