package draconn

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/local"
)

// maxSocketPath is what sockaddr_un holds on Linux, without the final zero.
const maxSocketPath = 107

// Reconnecting costs a system call on the same machine, so it may be frequent;
// whoever waits for a plugin's return waits at most maxBackoff and its jitter
// longer than necessary.
const (
	baseBackoff = 20 * time.Millisecond
	maxBackoff  = 500 * time.Millisecond
	// handshakeTimeout is how long a peer that has accepted may take to answer
	// as gRPC, before the attempt counts as failed.
	handshakeTimeout = 5 * time.Second
)

// Conn is an open connection to one plugin endpoint. All methods may be called
// by any number of goroutines at any time, also after Close.
type Conn struct {
	endpoint string
	cc       *grpc.ClientConn
	clients

	dialPeer func(context.Context) (net.Conn, error)
	dialed   atomic.Int64 // successful dials so far
	lastErr  atomic.Pointer[error]
	wake     atomic.Pointer[context.CancelFunc] // ends the owner's wait early

	onChange func(Change)
	stop     context.CancelFunc
	stopped  context.Context
	done     chan struct{} // closed when the owner has closed cc and returned
	closeErr error         // written before done is closed
}

// Open connects to the plugin that listens, or is going to listen, on the Unix
// socket at endpoint. It does not wait: an absent plugin is no error here, and
// [Conn.WaitReady] or [Conn.Attempt] tell when it serves. A path that no Unix
// socket can have is an error, and so is a ctx that is done already; the end of
// ctx later has no effect. The caller has to Close the Conn.
func Open(ctx context.Context, endpoint string, opts ...Option) (*Conn, error) {
	if err := context.Cause(ctx); err != nil {
		return nil, fmt.Errorf("open %q: %w", endpoint, err)
	}
	o := options{maxBackoff: maxBackoff}
	for _, opt := range opts {
		opt(&o)
	}
	switch {
	case endpoint == "":
		return nil, errors.New("open plugin connection: empty endpoint")
	case o.dial == nil && len(endpoint) > maxSocketPath:
		return nil, fmt.Errorf("open %q: path has %d bytes, a Unix socket's address holds at most %d", endpoint, len(endpoint), maxSocketPath)
	}
	c := &Conn{
		endpoint: endpoint,
		dialPeer: o.dial,
		onChange: o.onChange,
		done:     make(chan struct{}),
	}
	if c.dialPeer == nil {
		var d net.Dialer
		c.dialPeer = func(ctx context.Context) (net.Conn, error) {
			return d.DialContext(ctx, "unix", endpoint)
		}
	}
	cc, err := grpc.NewClient(
		// The dialer knows where to go. A constant target spares the path from
		// being read as a URL, in which "%" and "?" mean something.
		"passthrough:///plugin",
		grpc.WithAuthority("localhost"), // what the kubelet sends
		grpc.WithContextDialer(c.dial),
		grpc.WithTransportCredentials(local.NewCredentials()),
		// Never idle. In idle mode gRPC drops the connection, and would not
		// notice the plugin's restart until the next call.
		grpc.WithIdleTimeout(0),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: baseBackoff, Multiplier: 1.6, Jitter: 0.2, MaxDelay: max(baseBackoff, o.maxBackoff)},
			MinConnectTimeout: handshakeTimeout,
		}),
		// No keepalive: the kernel reports the death of a local peer at once,
		// and gRPC servers hang up on clients that ping more often than they
		// allow. No stats handler: it would cost every call, to count
		// connections, which dial does for nothing.
	)
	if err != nil {
		return nil, fmt.Errorf("open %q: %w", endpoint, err)
	}
	c.cc = cc
	c.clients = newClients(cc, o.services, o.haveService)
	c.stopped, c.stop = context.WithCancel(context.WithoutCancel(ctx))
	go c.own() //nolint:contextcheck // the connection outlives the call that opened it
	return c, nil
}

// Endpoint is the path that Open was given.
func (c *Conn) Endpoint() string { return c.endpoint }

// Close ends all calls and streams, and closes the connection for good. It
// returns when nothing of the Conn runs any more; a second Close, also at the
// same time, waits for the first and returns the same. Calls that were
// interrupted return an error in which errors.Is finds [ErrClosed].
func (c *Conn) Close() error {
	c.stop()
	<-c.done
	return c.closeErr
}

// WaitReady waits until the plugin serves. It fails when ctx ends, with the
// reason for which the latest attempt to connect failed, or when the Conn is
// closed.
func (c *Conn) WaitReady(ctx context.Context) error {
	return c.wait(ctx, false)
}

// WaitServing waits as WaitReady does and then for the answer to a [Conn.Ping]:
// afterwards the plugin is known to handle calls, in a version that is known
// too, and the next call costs what every later call costs. (The first one on a
// new connection takes about twice as long, while both sides grow stacks, set up
// the stream and fill header tables.) The plugin may break off between
// the two; that is an error, not a reason to wait again.
func (c *Conn) WaitServing(ctx context.Context) error {
	if err := c.WaitReady(ctx); err != nil {
		return err
	}
	return c.Ping(ctx)
}

// Attempt waits until the plugin serves or one attempt to connect has failed,
// whichever comes first, and returns the reason for the failure. If the latest
// attempt has failed already it does not wait for another.
func (c *Conn) Attempt(ctx context.Context) error {
	return c.wait(ctx, true)
}

func (c *Conn) wait(ctx context.Context, once bool) error {
	for {
		state := c.cc.GetState()
		switch {
		case state == connectivity.Ready:
			return nil
		case state == connectivity.Shutdown:
			return fmt.Errorf("connect to %q: %w", c.endpoint, ErrClosed)
		case state == connectivity.TransientFailure && once:
			return fmt.Errorf("connect to %q: %w", c.endpoint, c.reason())
		}
		if !c.cc.WaitForStateChange(ctx, state) {
			return fmt.Errorf("connect to %q: %w (last: %w)", c.endpoint, context.Cause(ctx), c.reason())
		}
	}
}

// failure is why the latest attempt to connect failed, nil if it did not as far
// as is known.
func (c *Conn) failure() error {
	if err := c.lastErr.Load(); err != nil {
		return *err
	}
	if c.cc.GetState() == connectivity.TransientFailure {
		return ErrNotServing // somebody accepted, or dial had left an error
	}
	return nil
}

// reason says why there is no connection, as far as is known.
func (c *Conn) reason() error {
	if err := c.lastErr.Load(); err != nil {
		return *err
	}
	if c.dialed.Load() > 0 {
		return ErrNotServing
	}
	return errors.New("no attempt has ended yet")
}

// dial is called by gRPC for every attempt to connect.
func (c *Conn) dial(ctx context.Context, _ string) (net.Conn, error) {
	conn, err := c.dialPeer(ctx)
	if err != nil {
		err = classify(err)
		if c.stopped.Err() == nil {
			c.lastErr.Store(&err)
		}
		return nil, err
	}
	c.lastErr.Store(nil)
	c.dialed.Add(1)
	c.wakeOwner()
	return conn, nil
}

// wrap completes the error of a call: where it went, and why it did not get
// there, which gRPC's status says in words only.
func (c *Conn) wrap(call string, err error) error {
	if c.stopped.Err() != nil {
		return fmt.Errorf("%s at %q: %w: %w", call, c.endpoint, ErrClosed, err)
	}
	if isUnavailable(err) {
		why := c.failure()
		for _, known := range []error{ErrAbsent, ErrStale, ErrNotServing} {
			if errors.Is(why, known) {
				return fmt.Errorf("%s at %q: %w: %w", call, c.endpoint, known, err)
			}
		}
	}
	return fmt.Errorf("%s at %q: %w", call, c.endpoint, err)
}
