package probe

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
)

// grpc asks the health service once (pkg/probe/grpc). A port that refuses is
// tried again until the time is over. There are no errors, only failures.
func (h Handlers) grpc(ctx context.Context, t Target, action *corev1.GRPCAction) Answer {
	address := net.JoinHostPort(t.PodIP, strconv.Itoa(int(action.Port)))
	service := ""
	if action.Service != nil {
		service = *action.Service
	}
	a := Answer{Handler: fmt.Sprintf("gRPC %s service %q", address, service), Result: Failure}
	creds := insecure.NewCredentials()
	if action.Mode != nil && *action.Mode == corev1.GRPCProbeModeTLS {
		// Behind the gate GRPCContainerProbeTLS, as Protocol in HTTPGetAction.
		creds = credentials.NewTLS(&tls.Config{InsecureSkipVerify: true}) //nolint:gosec // as the kubelet does
	}
	var lastDial atomic.Pointer[error] // gRPC tells only that it had no time left
	conn, err := grpc.NewClient("passthrough:///"+address,
		grpc.WithTransportCredentials(creds),
		grpc.WithUserAgent(t.UserAgent),
		grpc.WithNoProxy(),
		grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
			conn, err := h.dial(ctx, "tcp", address)
			if err != nil {
				lastDial.Store(&err)
			}
			return conn, err
		}))
	if err != nil {
		return broken(a.Handler, err)
	}
	defer func() { _ = conn.Close() }() // it has been closed or not, we are done with it
	conn.Connect()
	for s := conn.GetState(); s != connectivity.Ready; s = conn.GetState() {
		if s == connectivity.Idle {
			conn.Connect() // lost while it was made
		}
		if conn.WaitForStateChange(ctx, s) {
			continue
		}
		a.Output = fmt.Sprintf("timeout: failed to connect service %q within %s", address, t.Timeout)
		if err := lastDial.Load(); err != nil {
			if errors.Is(*err, ErrNoWay) {
				return broken(a.Handler, *err)
			}
			a.Output += ": " + (*err).Error()
		}
		return a
	}
	resp, err := healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{Service: service})
	switch status.Code(err) {
	case codes.OK:
		if resp.GetStatus() == healthpb.HealthCheckResponse_SERVING {
			a.Result, a.Output = Success, "service healthy"
		} else {
			a.Output = fmt.Sprintf("service unhealthy (responded with %q)", resp.GetStatus())
		}
	case codes.Unimplemented:
		a.Output = "error: this server does not implement the grpc health protocol (grpc.health.v1.Health): " + status.Convert(err).Message()
	case codes.DeadlineExceeded:
		a.Output = fmt.Sprintf("timeout: health rpc did not complete within %s", t.Timeout)
	default:
		a.Output = "error: health rpc probe failed: " + err.Error()
	}
	return a
}
