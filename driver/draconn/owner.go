package draconn

import (
	"context"
	"time"

	"google.golang.org/grpc/connectivity"
)

// Change is one change of the connection.
type Change struct {
	Time time.Time
	// Connected is true when the plugin serves on a new connection, and false
	// when that connection has ended or an attempt to connect failed for
	// another reason than the one before it.
	Connected bool
	// Connection numbers the connections of the Conn from 1. When Connected is
	// false it is the number of the latest one, 0 if there was none.
	Connection int64
	// Err is why connecting fails, nil if Connected is true, if the plugin
	// ended the connection, or if Close did.
	Err error
}

// State is what is known about a connection at one moment.
type State struct {
	// Connected says that the plugin serves. It does not promise that the next
	// call succeeds.
	Connected bool
	// Connections is how many connections have been made so far: 1 for a
	// plugin that never restarted.
	Connections int64
	// PluginService and HealthService are the versions in use, as registration
	// names them; the newest candidate before the first call, "" if the plugin
	// was said not to offer any.
	PluginService, HealthService string
	// Err is why the latest attempt to connect failed, nil if it did not, or
	// if a peer has accepted the next one and did not answer yet.
	Err error
}

// State returns the state of this moment.
func (c *Conn) State() State {
	s := State{
		Connected:     c.cc.GetState() == connectivity.Ready,
		Connections:   c.dialed.Load(),
		PluginService: c.plugin.service(),
		HealthService: c.health.service(),
	}
	if !s.Connected {
		s.Err = c.failure()
	}
	return s
}

// own is the goroutine that owns the gRPC connection from Open to Close: it
// reconnects, reports and closes. Nothing else calls Connect, so it is never
// called from inside gRPC, where it would wait for a lock that its caller holds
// (kubernetes/kubernetes#133920).
func (c *Conn) own() {
	defer close(c.done)
	var seen report
	for c.stopped.Err() == nil {
		wait, wake := context.WithCancel(c.stopped)
		c.wake.Store(&wake)
		dialed, state := c.observe()
		seen.next(c, dialed, state)
		if state == connectivity.Idle {
			c.cc.Connect()
		}
		c.cc.WaitForStateChange(wait, state)
		wake()
	}
	// A caller may have used a connection that the owner had no time to see.
	dialed, state := c.observe()
	seen.next(c, dialed, state)
	c.closeErr = c.cc.Close()
	seen.next(c, seen.connection, connectivity.Shutdown)
}

// wakeOwner ends the owner's wait. The state alone would not do: a connection
// that ends and is made again while the owner looks elsewhere leaves the state
// as it was.
func (c *Conn) wakeOwner() {
	if wake := c.wake.Load(); wake != nil {
		(*wake)()
	}
}

// observe returns the state together with the number of the connection that it
// belongs to. A dial changes the number before its connection can be ready, so
// the two belong together if the number is the same before and after.
func (c *Conn) observe() (dialed int64, state connectivity.State) {
	for {
		dialed = c.dialed.Load()
		state = c.cc.GetState()
		if c.dialed.Load() == dialed {
			return dialed, state
		}
	}
}

// report remembers what was reported, so that each change is reported once.
type report struct {
	connected  bool
	connection int64
	reason     string
}

func (r *report) next(c *Conn, dialed int64, state connectivity.State) {
	ready := state == connectivity.Ready
	if r.connected && (!ready || dialed != r.connection) {
		r.connected, r.reason = false, ""
		c.tell(Change{Connection: r.connection})
	}
	switch {
	case ready && !r.connected:
		r.connected, r.connection = true, dialed
		c.tell(Change{Connected: true, Connection: dialed})
	case state == connectivity.TransientFailure:
		if why := c.reason(); why.Error() != r.reason {
			r.reason = why.Error()
			c.tell(Change{Connection: r.connection, Err: why})
		}
	}
}

func (c *Conn) tell(change Change) {
	if c.onChange == nil {
		return
	}
	change.Time = time.Now()
	c.onChange(change)
}
