package lazymodel

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthv1alpha1 "k8s.io/kubelet/pkg/apis/dra-health/v1alpha1"
	drav1 "k8s.io/kubelet/pkg/apis/dra/v1"
)

// Client is the lazy client of one plugin. Its exported fields are set before
// the first call.
type Client struct {
	// Endpoint is the path of the plugin's Unix socket.
	Endpoint string
	// DialTimeout bounds how long a call waits for a connection.
	DialTimeout time.Duration
	// ForgetBroken makes Break forget the connection without closing it. The
	// article closes it.
	ForgetBroken bool
	// OnDial, if not nil, is told of every connection made.
	OnDial func(*grpc.ClientConn)
	// Between, if not nil, is called between the look at the health client and
	// its assignment, where the scheduler may interrupt a goroutine at any
	// time.
	Between func()

	mu   sync.Mutex
	conn *grpc.ClientConn

	// healthClient is read and written without mu: that is the first failure.
	// It is never set to nil again: that is the second.
	healthClient healthv1alpha1.DRAResourceHealthClient

	dials, healthClients atomic.Int64
}

// Dials is how many connections have been made.
func (c *Client) Dials() int { return int(c.dials.Load()) }

// HealthClients is how many health clients have been made.
func (c *Client) HealthClients() int { return int(c.healthClients.Load()) }

// HealthClientMade says whether there is a health client. It may only be called
// while no other method runs.
func (c *Client) HealthClientMade() bool { return c.healthClient != nil }

// connection returns the connection, after making it if there is none.
func (c *Client) connection() (*grpc.ClientConn, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.conn != nil {
		return c.conn, nil
	}
	conn, err := DialBlocking(c.Endpoint, c.DialTimeout)
	if err != nil {
		return nil, err
	}
	c.dials.Add(1)
	if c.OnDial != nil {
		c.OnDial(conn)
	}
	c.conn = conn
	return conn, nil
}

// DialBlocking is the deprecated way to make a connection: it returns when
// there is one, or after timeout.
func DialBlocking(endpoint string, timeout time.Duration) (*grpc.ClientConn, error) {
	//nolint:staticcheck // the deprecated functions are what is measured here
	conn, err := grpc.Dial("unix:"+endpoint,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithBlock(),
		grpc.WithTimeout(timeout))
	if err != nil {
		return nil, fmt.Errorf("dial %q: %w", endpoint, err)
	}
	return conn, nil
}

// Prepare asks for the connection and makes a client for this one call.
func (c *Client) Prepare(ctx context.Context, req *drav1.NodePrepareResourcesRequest) (*drav1.NodePrepareResourcesResponse, error) {
	conn, err := c.connection()
	if err != nil {
		return nil, err
	}
	return drav1.NewDRAPluginClient(conn).NodePrepareResources(ctx, req)
}

// Health asks for the connection too, and keeps the first client that it makes.
func (c *Client) Health() (healthv1alpha1.DRAResourceHealthClient, error) {
	conn, err := c.connection()
	if err != nil {
		return nil, err
	}
	if c.healthClient == nil {
		if c.Between != nil {
			c.Between()
		}
		c.healthClient = c.newHealthClient(conn)
	}
	return c.healthClient, nil
}

// newHealthClient counts before the assignment that follows. The other way
// round, the counter would order the assignment before later reads, and hide
// the race from the race detector.
func (c *Client) newHealthClient(conn *grpc.ClientConn) healthv1alpha1.DRAResourceHealthClient {
	c.healthClients.Add(1)
	return healthv1alpha1.NewDRAResourceHealthClient(conn)
}

// WatchHealth opens the health stream.
func (c *Client) WatchHealth(ctx context.Context) (healthv1alpha1.DRAResourceHealth_NodeWatchResourcesClient, error) {
	client, err := c.Health()
	if err != nil {
		return nil, err
	}
	return client.NodeWatchResources(ctx, &healthv1alpha1.NodeWatchResourcesRequest{})
}

// Break is what whoever notices a broken connection does: close it and let the
// next call make a new one.
func (c *Client) Break() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	conn := c.conn
	c.conn = nil
	if conn == nil || c.ForgetBroken {
		return nil
	}
	return conn.Close()
}

// Close closes the present connection. Those that Break forgot stay open.
func (c *Client) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.conn == nil {
		return nil
	}
	err := c.conn.Close()
	c.conn = nil
	return err
}
