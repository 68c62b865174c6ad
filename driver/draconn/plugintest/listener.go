package plugintest

import (
	"net"
	"sync"
	"sync/atomic"
)

// trackingListener counts the connections that it accepts and knows those that
// are still open.
type trackingListener struct {
	net.Listener
	accepted atomic.Int64

	mu   sync.Mutex
	open map[*trackedConn]struct{}
}

func (l *trackingListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	l.accepted.Add(1)
	tracked := &trackedConn{Conn: conn, listener: l}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open == nil {
		l.open = make(map[*trackedConn]struct{})
	}
	l.open[tracked] = struct{}{}
	return tracked, nil
}

func (l *trackingListener) openConns() []*trackedConn {
	l.mu.Lock()
	defer l.mu.Unlock()
	conns := make([]*trackedConn, 0, len(l.open))
	for conn := range l.open {
		conns = append(conns, conn)
	}
	return conns
}

type trackedConn struct {
	net.Conn
	listener *trackingListener
}

func (c *trackedConn) Close() error {
	c.listener.mu.Lock()
	delete(c.listener.open, c)
	c.listener.mu.Unlock()
	return c.Conn.Close()
}
