package plugin

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/dra-lab/dra-lab/driver/api"
	"github.com/dra-lab/dra-lab/driver/draconn"
	"github.com/dra-lab/dra-lab/driver/internal/fault"
)

// selfTimeout bounds one look at itself. Nothing leaves the machine.
const selfTimeout = 5 * time.Second

// checkSelf does once what the kubelet is going to do: it connects to the
// driver's socket, prepares nothing and waits for a first report of health.
// When that has worked, and not before, the kubelet may know of the driver. The
// connection is kept for the liveness check.
func (d *Driver) checkSelf(ctx context.Context) {
	conn, err := draconn.Open(ctx, d.socket())
	if err != nil {
		d.stop(fmt.Errorf("reach own socket: %w", err))
		return
	}
	defer func() {
		d.mu.Lock()
		d.self = nil
		d.mu.Unlock()
		if err := conn.Close(); err != nil {
			d.background(ctx, "self", err)
		}
	}()
	start := time.Now()
	for {
		err := d.callSelf(ctx, conn)
		if err == nil {
			break
		}
		if ctx.Err() != nil {
			return
		}
		d.background(ctx, "self", fmt.Errorf("call own socket: %w", err))
		select {
		case <-ctx.Done():
			return
		case <-time.After(100 * time.Millisecond):
		}
	}
	d.mu.Lock()
	d.self = conn
	d.mu.Unlock()
	close(d.serving)
	d.report(api.Report{Step: api.StepReady, Duration: time.Since(start), Detail: "empty prepare and first health report went through " + d.socket()})
	<-ctx.Done()
}

func (d *Driver) callSelf(ctx context.Context, conn *draconn.Conn) error {
	ctx, cancel := context.WithTimeout(ctx, selfTimeout)
	defer cancel()
	if err := conn.WaitServing(ctx); err != nil {
		return err
	}
	stream, err := conn.WatchHealth(ctx)
	if err != nil {
		return err
	}
	defer stream.Close()
	if len(d.inventory().GPUs) == 0 {
		return nil // a node without devices has no health to report
	}
	_, err = stream.Recv()
	return err
}

// Live says whether the driver answers on its own socket now.
func (d *Driver) Live(ctx context.Context) error {
	d.mu.Lock()
	conn := d.self
	d.mu.Unlock()
	if conn == nil {
		return errors.New("own socket was not reached yet")
	}
	ctx, cancel := context.WithTimeout(ctx, selfTimeout)
	defer cancel()
	return conn.Ping(ctx)
}

// Ready says what is missing until Pods can be sent to this node.
func (d *Driver) Ready(ctx context.Context) error {
	var missing []string
	if !d.published.Load() {
		missing = append(missing, "devices are not published yet")
	}
	if !d.registered.Load() {
		missing = append(missing, "the kubelet has not registered the driver yet")
	}
	if err := d.Live(ctx); err != nil {
		missing = append(missing, err.Error())
	}
	if len(missing) > 0 {
		return errors.New(strings.Join(missing, "; "))
	}
	return nil
}

// observe watches for the kubelet's word on the registration.
func (d *Driver) observe(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	if _, ok := req.(*registerapi.InfoRequest); ok {
		if err := d.cfg.Faults.Pass(ctx, fault.Registration); err != nil {
			return nil, err
		}
	}
	resp, err := handler(ctx, req)
	status, ok := req.(*registerapi.RegistrationStatus)
	if !ok {
		return resp, err
	}
	d.registered.Store(status.PluginRegistered)
	if status.PluginRegistered {
		d.report(api.Report{Step: api.StepRegistered})
		signal(d.reconfirm)
	} else {
		d.background(ctx, "registration", fmt.Errorf("the kubelet refused the registration: %s", status.Error))
	}
	return resp, err
}
