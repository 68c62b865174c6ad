package connections

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc/status"
	healthv1 "k8s.io/kubelet/pkg/apis/dra-health/v1"
	drav1 "k8s.io/kubelet/pkg/apis/dra/v1"

	"github.com/dra-lab/dra-lab/driver/draconn"
	"github.com/dra-lab/dra-lab/driver/draconn/plugintest"
	"github.com/dra-lab/dra-lab/scenarios/connections/lazymodel"
)

// Stale is what health calls do after the plugin has restarted and the
// connection has been made again.
type Stale struct {
	// Calls is how many health calls were made then, on either side.
	Calls int
	// LazyPrepares says that preparing works again, over a new connection.
	LazyPrepares bool
	// LazyFailed and EagerFailed are how many of the health calls failed.
	LazyFailed  int
	LazyError   string
	EagerFailed int
	// EagerBack is the time from the plugin's start to its first health
	// message on the eager side.
	EagerBack time.Duration
}

func measureStale(ctx context.Context, socket string, o Options, r *Report) (err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	stale := &r.Stale
	stale.Calls = 10
	server, err := startHealthy(socket)
	if err != nil {
		return err
	}
	defer func() { server.Kill() }()

	// Given a lazy and an eager client, both of which have seen health,
	lazy := &lazymodel.Client{Endpoint: socket, DialTimeout: o.DialTimeout}
	defer func() { err = errors.Join(err, lazy.Close()) }()
	if err := lazyHealth(ctx, lazy); err != nil {
		return fmt.Errorf("first lazy health call: %w", err)
	}
	eager, err := draconn.Open(ctx, socket)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, eager.Close()) }()
	if err := eager.WaitReady(ctx); err != nil {
		return err
	}
	if err := eagerHealth(ctx, eager); err != nil {
		return fmt.Errorf("first eager health call: %w", err)
	}

	// when the plugin ends, which a failing call notices,
	server.Kill()
	if _, err := lazy.Prepare(ctx, &drav1.NodePrepareResourcesRequest{}); err == nil {
		return errors.New("a call to a plugin that was killed succeeded")
	}
	if _, err := eager.Prepare(ctx, &drav1.NodePrepareResourcesRequest{}); err == nil {
		return errors.New("a call to a plugin that was killed succeeded")
	}
	if err := lazy.Break(); err != nil {
		return err
	}
	// and starts again,
	if server, err = startHealthy(socket); err != nil {
		return err
	}
	started := time.Now()
	if err := eager.WaitReady(ctx); err != nil {
		return err
	}
	// then these calls show which connection each of them uses.
	for i := range stale.Calls {
		if err := eagerHealth(ctx, eager); err != nil {
			stale.EagerFailed++
		}
		if i == 0 {
			stale.EagerBack = time.Since(started)
		}
	}
	_, err = lazy.Prepare(ctx, &drav1.NodePrepareResourcesRequest{})
	stale.LazyPrepares = err == nil
	for range stale.Calls {
		if err := lazyHealth(ctx, lazy); err != nil {
			stale.LazyFailed++
			stale.LazyError = fmt.Sprintf("%s: %s", status.Code(err), status.Convert(err).Message())
		}
	}
	return nil
}

// startHealthy starts a plugin with one healthy device.
func startHealthy(socket string) (*plugintest.Server, error) {
	server, err := plugintest.Start(socket, plugintest.Config{})
	if err != nil {
		return nil, err
	}
	server.SetHealth(&healthv1.DeviceHealth{
		Device: &healthv1.DeviceIdentifier{PoolName: "pool", DeviceName: "gpu-0"},
		Health: healthv1.HealthStatus_HEALTHY,
	})
	return server, nil
}

// lazyHealth opens a health stream and waits for its first message.
func lazyHealth(ctx context.Context, client *lazymodel.Client) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := client.WatchHealth(ctx)
	if err != nil {
		return err
	}
	_, err = stream.Recv()
	return err
}

func eagerHealth(ctx context.Context, conn *draconn.Conn) error {
	stream, err := conn.WatchHealth(ctx)
	if err != nil {
		return err
	}
	defer stream.Close()
	_, err = stream.Recv()
	return err
}
