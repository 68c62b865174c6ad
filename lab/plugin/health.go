package plugin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	healthv1 "k8s.io/kubelet/pkg/apis/dra-health/v1"

	"github.com/dra-lab/dra-lab/driver/draconn"
)

// Event is one thing that happened to a driver's health stream.
type Event struct {
	Time time.Time `json:"time"`
	// Stream is "open", "health" or "ended".
	Stream string `json:"stream"`
	// Service is the version that the stream is spoken in, once it is known.
	Service string `json:"service,omitempty"`
	// Devices are all devices of the driver, if Stream is "health".
	Devices []DeviceHealth `json:"devices,omitempty"`
	// Error is why the stream ended.
	Error string `json:"error,omitempty"`
}

// What [Event.Stream] may be.
const (
	StreamOpen   = "open"
	StreamHealth = "health"
	StreamEnded  = "ended"
)

// DeviceHealth is the health of one device.
type DeviceHealth struct {
	Pool    string `json:"pool"`
	Device  string `json:"device"`
	Health  string `json:"health"` // as in Pods: Healthy, Unhealthy, Unknown
	Message string `json:"message,omitempty"`
	// Updated is when the driver looked, zero if it does not say.
	Updated time.Time `json:"updated,omitzero"`
	// Timeout is after which time without news the kubelet takes the health to
	// be unknown: 30 s unless the driver says otherwise.
	Timeout time.Duration `json:"timeoutNs"`
}

// defaultHealthTimeout is the kubelet's.
const defaultHealthTimeout = 30 * time.Second

// reopenAfter is the time from the end of a stream to the attempt to open it
// again. The kubelet takes 5 s.
const reopenAfter = time.Second

// Watch reports a driver's health to f until ctx ends, which is no error. A
// stream that ends is opened again when the driver is there. A driver without
// health is an error in which errors.Is finds draconn.ErrService.
func Watch(ctx context.Context, conn *draconn.Conn, f func(Event)) error {
	for {
		err := watchOnce(ctx, conn, f)
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, draconn.ErrService), errors.Is(err, draconn.ErrClosed):
			return err
		}
		f(Event{Time: time.Now(), Stream: StreamEnded, Error: words(err)})
		select {
		case <-time.After(reopenAfter):
		case <-ctx.Done():
			return nil
		}
		if err := conn.WaitReady(ctx); err != nil && ctx.Err() == nil {
			return err
		}
	}
}

func watchOnce(ctx context.Context, conn *draconn.Conn, f func(Event)) error {
	stream, err := conn.WatchHealth(ctx)
	if err != nil {
		return fmt.Errorf("watch health: %w", err)
	}
	defer stream.Close()
	f(Event{Time: time.Now(), Stream: StreamOpen})
	for {
		msg, err := stream.Recv()
		if err != nil {
			return fmt.Errorf("watch health: %w", err)
		}
		f(Event{Time: time.Now(), Stream: StreamHealth, Service: conn.State().HealthService, Devices: devices(msg)})
	}
}

func words(err error) string {
	if errors.Is(err, io.EOF) {
		return "the driver ended the stream"
	}
	return err.Error()
}

func devices(msg *healthv1.NodeWatchResourcesResponse) []DeviceHealth {
	all := make([]DeviceHealth, 0, len(msg.Devices))
	for _, d := range msg.Devices {
		one := DeviceHealth{
			Pool:    d.GetDevice().GetPoolName(),
			Device:  d.GetDevice().GetDeviceName(),
			Health:  health(d.GetHealth()),
			Message: d.GetMessage(),
			Timeout: defaultHealthTimeout,
		}
		if s := d.GetLastUpdatedTime(); s > 0 {
			one.Updated = time.Unix(s, 0).UTC()
		}
		if s := d.GetHealthCheckTimeoutSeconds(); s > 0 {
			one.Timeout = time.Duration(s) * time.Second
		}
		all = append(all, one)
	}
	return all
}

// health uses the words that a Pod's status has. A value that is not known here
// is what the kubelet makes of it.
func health(h healthv1.HealthStatus) string {
	switch h {
	case healthv1.HealthStatus_HEALTHY:
		return "Healthy"
	case healthv1.HealthStatus_UNHEALTHY:
		return "Unhealthy"
	default:
		return "Unknown"
	}
}
