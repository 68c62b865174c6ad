package plugin

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"os"
	"sync"
)

// listenPlugin makes the socket for the kubelet's calls and counts who comes.
func (d *Driver) listenPlugin(_ context.Context, path string) (net.Listener, error) {
	l, err := listen(path)
	if err != nil {
		return nil, err
	}
	if d.cfg.Faults != nil {
		d.socketFault = &losable{Listener: l, path: path, conns: map[net.Conn]struct{}{}}
		l = d.socketFault
	}
	return &countingListener{Listener: l, accepted: d.metrics.Accepted.Inc}, nil
}

// listenRegistrar promises the registration socket. It is made when the driver
// serves: the kubelet registers whatever appears there, and sends Pods to it.
func (d *Driver) listenRegistrar(_ context.Context, path string) (net.Listener, error) {
	if err := removeSocket(path); err != nil {
		return nil, err
	}
	return &gatedListener{path: path, gate: d.serving, closed: make(chan struct{})}, nil
}

// listen replaces whatever a dead instance left at path.
func listen(path string) (net.Listener, error) {
	if err := removeSocket(path); err != nil {
		return nil, err
	}
	return net.Listen("unix", path)
}

func removeSocket(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

type countingListener struct {
	net.Listener
	accepted func()
}

func (l *countingListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err == nil {
		l.accepted()
	}
	return c, err
}

// gatedListener makes its socket at the first Accept after gate is closed.
type gatedListener struct {
	path   string
	gate   <-chan struct{}
	closed chan struct{}

	mu    sync.Mutex
	inner net.Listener
	done  bool
}

// Accept waits for the gate, and then as usual.
func (l *gatedListener) Accept() (net.Conn, error) {
	select {
	case <-l.closed:
		return nil, net.ErrClosed
	case <-l.gate:
	}
	inner, err := l.open()
	if err != nil {
		return nil, err
	}
	return inner.Accept()
}

func (l *gatedListener) open() (net.Listener, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.done {
		return nil, net.ErrClosed
	}
	if l.inner == nil {
		inner, err := listen(l.path)
		if err != nil {
			return nil, err
		}
		l.inner = inner
	}
	return l.inner, nil
}

// Close removes the socket if there is one.
func (l *gatedListener) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.done {
		return nil
	}
	l.done = true
	close(l.closed)
	if l.inner == nil {
		return nil
	}
	return l.inner.Close()
}

// Addr is where the socket is or will be.
func (l *gatedListener) Addr() net.Addr { return &net.UnixAddr{Name: l.path, Net: "unix"} }
