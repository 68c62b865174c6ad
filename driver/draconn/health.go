package draconn

import (
	"context"

	"google.golang.org/grpc"
	healthv1 "k8s.io/kubelet/pkg/apis/dra-health/v1"
)

// HealthStream is the stream of a plugin's device health. One goroutine at a
// time may call Recv; Close may be called by any.
type HealthStream struct {
	conn *Conn
	// ctx is kept because the stream may have to be opened again, in another
	// version, when the first answer says so.
	ctx     context.Context
	cancel  context.CancelFunc
	stream  grpc.ServerStreamingClient[healthv1.NodeWatchResourcesResponse]
	version int32 // that stream was opened in first
	heard   bool  // a version has answered
}

// WatchHealth opens the stream of the devices' health. The plugin sends all its
// devices whenever one of them changes, and again before their reports expire.
// The stream ends with ctx, with Close of the stream or of the Conn, and with
// the connection; it is not reopened. A plugin that is not connected is an error
// here, one without the service (see [ErrService]) an error here or of the first
// Recv, because only the first answer tells. The caller has to Close the
// stream.
func (c *Conn) WatchHealth(ctx context.Context) (*HealthStream, error) {
	if len(c.health.clients) == 0 {
		return nil, c.wrap("NodeWatchResources", errNoVersion)
	}
	ctx, cancel := context.WithCancel(ctx)
	version := c.health.inUse.Load()
	stream, err := c.health.clients[version].NodeWatchResources(ctx, &healthv1.NodeWatchResourcesRequest{})
	if err != nil {
		cancel()
		return nil, c.wrap("NodeWatchResources", err)
	}
	return &HealthStream{conn: c, ctx: ctx, cancel: cancel, stream: stream, version: version}, nil
}

// Recv waits for the next message. After an error the stream is over.
func (s *HealthStream) Recv() (*healthv1.NodeWatchResourcesResponse, error) {
	msg, err := s.stream.Recv()
	if isUnimplemented(err) && !s.heard {
		msg, err = learn(&s.conn.health, s.version, err, func(client healthv1.DRAResourceHealthClient) (*healthv1.NodeWatchResourcesResponse, error) {
			stream, err := client.NodeWatchResources(s.ctx, &healthv1.NodeWatchResourcesRequest{})
			if err != nil {
				return nil, err
			}
			s.stream = stream
			return stream.Recv()
		})
	}
	if err != nil {
		s.cancel()
		return nil, s.conn.wrap("NodeWatchResources", err)
	}
	s.heard = true
	return msg, nil
}

// Close ends the stream. A second Close does nothing.
func (s *HealthStream) Close() { s.cancel() }
