package reach

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/transport/spdy"
	"k8s.io/streaming/pkg/httpstream"

	"github.com/dra-lab/dra-lab/lab/probe"
)

// Difference is where answers through PortForward and the kubelet's differ, for
// people.
const Difference = "through the API server's port-forward, which connects to localhost within the Pod and not to its IP: " +
	"what listens on localhost only is reached here and not by the kubelet, what listens on the Pod's IP only or is kept off by a " +
	"network policy the reverse; a tcpSocket probe succeeds unless the connection is refused within a moment; the time of a command " +
	"includes what the API server needs to begin"

// PortForward returns the Prober that connects to a Pod, and runs commands in it,
// through the API server. A probe that asks for another host than the Pod has an
// error.
func PortForward(config *rest.Config) (probe.Prober, error) {
	run, err := throughAPI(config)
	if err != nil {
		return nil, err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("connect to the cluster: %w", err)
	}
	transport, upgrader, err := spdy.RoundTripperFor(config)
	if err != nil {
		return nil, fmt.Errorf("connect to the cluster: %w", err)
	}
	return prober(func(ctx context.Context, t probe.Target) probe.Answer {
		location := podURL(client, t, "portforward", nil)
		websocket, err := portforward.NewSPDYOverWebsocketDialerForStreaming(location, config)
		if err != nil {
			return probe.Answer{Handler: "port-forward", Result: probe.Unknown, Err: err}
		}
		plain := spdy.NewDialerForStreaming(upgrader, &http.Client{Transport: transport}, http.MethodPost, location)
		dialer := portforward.NewFallbackDialerForStreaming(websocket, plain, noWebSocket)
		return probe.Handlers{Exec: run, Dial: func(ctx context.Context, _, address string) (net.Conn, error) {
			host, port, err := net.SplitHostPort(address)
			if err != nil {
				return nil, err
			}
			if host != t.PodIP {
				return nil, fmt.Errorf("connect to %s: a port-forward reaches only the Pod: %w", address, probe.ErrNoWay)
			}
			return forward(ctx, dialer, port)
		}}.Probe(ctx, t)
	}), nil
}

type prober func(context.Context, probe.Target) probe.Answer

func (p prober) Probe(ctx context.Context, t probe.Target) probe.Answer { return p(ctx, t) }

// forward makes one connection through a port-forward of its own: an error ends
// all connections of one.
func forward(ctx context.Context, dialer httpstream.Dialer, port string) (net.Conn, error) {
	type dialed struct {
		conn httpstream.Connection
		err  error
	}
	made := make(chan dialed, 1)
	go func() {
		conn, protocol, err := dialer.Dial(portforward.PortForwardProtocolV1Name)
		if err == nil && protocol != portforward.PortForwardProtocolV1Name {
			err = errors.Join(fmt.Errorf("the API server speaks %q, want %q", protocol, portforward.PortForwardProtocolV1Name), conn.Close())
		}
		made <- dialed{conn, err}
	}()
	select {
	case d := <-made:
		if d.err != nil {
			return nil, fmt.Errorf("forward port %s: %w: %w", port, probe.ErrNoWay, d.err)
		}
		conn, err := newForwarded(d.conn, port)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("forward port %s: %w: %w", port, probe.ErrNoWay, err), d.conn.Close())
		}
		return conn, nil
	case <-ctx.Done():
		// There is no way to stop it before it has a connection.
		go func() {
			if d := <-made; d.err == nil {
				_ = d.conn.Close()
			}
		}()
		return nil, context.Cause(ctx)
	}
}

// forwarded is a connection through a port-forward. A pipe gives it deadlines,
// which streams lack.
type forwarded struct {
	net.Conn // the end of the pipe that is ours

	link    httpstream.Connection
	closing sync.Once
	first   chan struct{} // closed at the first byte
	failed  chan struct{} // closed when the other side has ended; err is written before
	err     error
}

func newForwarded(link httpstream.Connection, port string) (*forwarded, error) {
	headers := http.Header{}
	headers.Set(corev1.PortHeader, port)
	headers.Set(corev1.PortForwardRequestIDHeader, strconv.Itoa(0))
	headers.Set(corev1.StreamType, corev1.StreamTypeError)
	trouble, err := link.CreateStream(headers)
	if err != nil {
		return nil, err
	}
	_ = trouble.Close() // nothing is written to it
	headers.Set(corev1.StreamType, corev1.StreamTypeData)
	data, err := link.CreateStream(headers)
	if err != nil {
		return nil, err
	}
	ours, theirs := net.Pipe()
	f := &forwarded{Conn: ours, link: link, first: make(chan struct{}), failed: make(chan struct{})}
	go func() {
		_, _ = io.Copy(data, theirs) // ends when ours or the link is closed
		_ = data.Close()
	}()
	received := make(chan struct{})
	go func() {
		defer close(received)
		_, _ = io.Copy(theirs, io.TeeReader(data, &once{f.first}))
	}()
	go func() {
		// Nothing, when all went well, or what went wrong. The stream may be longer
		// than anybody wants to read.
		said, _ := io.ReadAll(io.LimitReader(trouble, 1<<10))
		if len(said) > 0 {
			f.err = fmt.Errorf("forward port %s: %s", port, said)
			close(f.failed)
		} else {
			<-received
			close(f.failed)
		}
		_ = theirs.Close()
	}()
	return f, nil
}

// once closes a channel at the first byte.
type once struct{ ch chan struct{} }

func (o *once) Write(p []byte) (int, error) {
	if o.ch != nil && len(p) > 0 {
		close(o.ch)
		o.ch = nil
	}
	return len(p), nil
}

// Read says at the end what went wrong.
func (f *forwarded) Read(p []byte) (int, error) {
	n, err := f.Conn.Read(p)
	if errors.Is(err, io.EOF) {
		err = f.because(err)
	}
	return n, err
}

// Write says what went wrong when nobody takes it any more.
func (f *forwarded) Write(p []byte) (int, error) {
	n, err := f.Conn.Write(p)
	if errors.Is(err, io.ErrClosedPipe) {
		err = f.because(err)
	}
	return n, err
}

// because is why the other side has ended, or err if it has not said so.
func (f *forwarded) because(err error) error {
	select {
	case <-f.failed:
		if f.err != nil {
			return f.err
		}
	default:
	}
	return err
}

// moment is how long a refusal takes to get here at most, as far as Confirm is
// concerned.
const moment = 300 * time.Millisecond

// Confirm waits for a sign that the program in the Pod has taken the connection,
// and returns an error if it has not. No sign for a moment is a sign.
func (f *forwarded) Confirm(ctx context.Context) error {
	timer := time.NewTimer(moment)
	defer timer.Stop()
	select {
	case <-f.first:
	case <-timer.C:
	case <-f.failed:
		return f.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return nil
}

func (f *forwarded) Close() error {
	f.closing.Do(func() {
		_ = f.Conn.Close() // a pipe has nothing to flush
		_ = f.link.Close()
	})
	return nil
}
