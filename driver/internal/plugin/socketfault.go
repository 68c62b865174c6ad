package plugin

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"github.com/dra-lab/dra-lab/driver/api"
	"github.com/dra-lab/dra-lab/driver/internal/fault"
)

// lostSuffix ends the name of a service socket that a lab has taken away.
const lostSuffix = ".lost"

// watchSocketFault takes the service socket away while a lab wants that, and
// brings it back. A fault that is there when the driver starts is over for it:
// its socket is a new one.
func (d *Driver) watchSocketFault(ctx context.Context) {
	if d.socketFault == nil {
		return
	}
	before, _ := d.cfg.Faults.Find(api.FaultSocketLost)
	look := time.NewTicker(fault.LookEvery)
	defer look.Stop()
	for lost := false; ; {
		f, there := d.cfg.Faults.Find(api.FaultSocketLost)
		if there && f.ID == before.ID && f.Since.Equal(before.Since) {
			there = false
		}
		if there != lost {
			if err := d.socketFault.set(there); err != nil {
				d.background(ctx, "socket", err)
			}
			lost = there
			if there {
				d.report(api.Report{Step: api.StepFault, Detail: f.Kind})
			}
		}
		select {
		case <-ctx.Done():
			return // whoever closes it brings it back first
		case <-look.C:
		}
	}
}

// losable is a listener on a socket that can be taken away from those who know
// it, and from those who are connected to it.
type losable struct {
	net.Listener
	path string

	mu     sync.Mutex
	lost   bool
	closed bool
	conns  map[net.Conn]struct{}
}

// set takes the socket away, or brings it back.
func (l *losable) set(lost bool) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.lost == lost || l.closed {
		return nil
	}
	from, to := l.path, l.path+lostSuffix
	if !lost {
		from, to = to, from
	}
	if err := os.Rename(from, to); err != nil {
		return fmt.Errorf("move socket: %w", err)
	}
	l.lost = lost
	if !lost {
		return nil
	}
	var errs []error
	for c := range l.conns {
		errs = append(errs, c.Close())
	}
	clear(l.conns)
	return errors.Join(errs...)
}

// Close is net.Listener's. It removes the socket, which has to be under its own
// name for that.
func (l *losable) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	var err error
	if l.lost && !l.closed {
		err = os.Rename(l.path+lostSuffix, l.path)
	}
	l.closed = true
	return errors.Join(err, l.Listener.Close())
}

// Accept is net.Listener's.
func (l *losable) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.lost { // it came just before
		_ = c.Close()
	} else {
		l.conns[c] = struct{}{}
	}
	return &losableConn{Conn: c, of: l}, nil
}

type losableConn struct {
	net.Conn
	of *losable
}

// Close is net.Conn's.
func (c *losableConn) Close() error {
	c.of.mu.Lock()
	delete(c.of.conns, c.Conn)
	c.of.mu.Unlock()
	return c.Conn.Close()
}
