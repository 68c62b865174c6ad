// Package plugintest is the server side of a DRA plugin without a driver behind
// it: real gRPC on a real Unix socket, in this process. Tests and the connection
// laboratory use it to count connections, to choose which versions are served,
// and to end the plugin in an orderly or a disorderly way.
package plugintest

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc"
	healthv1 "k8s.io/kubelet/pkg/apis/dra-health/v1"
	healthv1alpha1 "k8s.io/kubelet/pkg/apis/dra-health/v1alpha1"
	drav1 "k8s.io/kubelet/pkg/apis/dra/v1"
	drav1beta1 "k8s.io/kubelet/pkg/apis/dra/v1beta1"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// Config says what a server serves. The zero value serves all versions of
// DRAPlugin and DRAResourceHealth, prepares every claim with one device, and
// has no registration service.
type Config struct {
	// Services are the services served, as registration names them; nil means
	// all.
	Services []string
	// Info, if not nil, is served by a registration service on the same
	// socket.
	Info *registration.PluginInfo
	// Notified, if not nil, is told what the registering side says about it.
	Notified func(*registration.RegistrationStatus)
	// Prepare and Unprepare answer for one claim; nil means success. An error
	// is the answer for that claim only.
	Prepare   func(context.Context, *drav1.Claim) ([]*drav1.Device, error)
	Unprepare func(context.Context, *drav1.Claim) error
}

// Services lists all services of a plugin, as registration names them.
func Services() []string {
	return []string{
		drav1.DRAPluginService, drav1beta1.DRAPluginService,
		healthv1.DRAResourceHealthService, healthv1alpha1.DRAResourceHealthService,
	}
}

// Server is a running plugin. Its methods may be called by any goroutine.
type Server struct {
	endpoint string
	config   Config
	grpc     *grpc.Server
	listener *trackingListener
	served   chan struct{}
	stopping context.Context
	stop     context.CancelFunc
	prepares atomic.Int64
	streams  atomic.Int64

	mu      sync.Mutex
	health  []*healthv1.DeviceHealth
	changed chan struct{} // closed when health changes
	ended   chan struct{} // closed when open streams are to end
}

// Start serves on a Unix socket at endpoint, in place of whatever file is
// there. The caller has to Stop or Kill the server.
func Start(endpoint string, config Config) (*Server, error) {
	if err := os.Remove(endpoint); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("remove stale socket: %w", err)
	}
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: endpoint, Net: "unix"})
	if err != nil {
		return nil, err
	}
	listener.SetUnlinkOnClose(false)
	s := &Server{
		endpoint: endpoint,
		config:   config,
		grpc:     grpc.NewServer(),
		listener: &trackingListener{Listener: listener},
		served:   make(chan struct{}),
		changed:  make(chan struct{}),
		ended:    make(chan struct{}),
	}
	s.stopping, s.stop = context.WithCancel(context.Background())
	serves := func(service string) bool {
		return config.Services == nil || slices.Contains(config.Services, service)
	}
	plugin := pluginServer{server: s}
	if serves(drav1.DRAPluginService) {
		drav1.RegisterDRAPluginServer(s.grpc, plugin)
	}
	if serves(drav1beta1.DRAPluginService) {
		drav1beta1.RegisterDRAPluginServer(s.grpc, drav1beta1.V1ServerWrapper{DRAPluginServer: plugin})
	}
	health := healthServer{server: s}
	if serves(healthv1.DRAResourceHealthService) {
		healthv1.RegisterDRAResourceHealthServer(s.grpc, health)
	}
	if serves(healthv1alpha1.DRAResourceHealthService) {
		healthv1alpha1.RegisterDRAResourceHealthServer(s.grpc, healthv1.V1ServerWrapper{Server: health})
	}
	if config.Info != nil {
		registration.RegisterRegistrationServer(s.grpc, registrationServer{config: config})
	}
	go func() {
		defer close(s.served)
		// Stop and Kill are the only ways in which Serve ends, and they make
		// it return nil or the listener's error, which says nothing new.
		_ = s.grpc.Serve(s.listener)
	}()
	return s, nil
}

// Stop ends the plugin in order: no new connections, the socket is removed,
// health streams end, running calls are finished.
func (s *Server) Stop() error {
	err := os.Remove(s.endpoint)
	s.stop()
	s.grpc.GracefulStop()
	<-s.served
	return err
}

// Kill ends the plugin as SIGKILL would: connections break, the file of the
// socket stays.
func (s *Server) Kill() {
	s.stop()
	s.grpc.Stop()
	<-s.served
}

// Accepted is how many connections have been accepted so far.
func (s *Server) Accepted() int { return int(s.listener.accepted.Load()) }

// Open is how many accepted connections are open now.
func (s *Server) Open() int { return len(s.listener.openConns()) }

// Disconnect breaks all open connections, as a plugin does that ends, and goes
// on serving new ones.
func (s *Server) Disconnect() {
	for _, conn := range s.listener.openConns() {
		_ = conn.Close() // breaking it is the purpose, and closing twice is harmless
	}
}

// Prepares is how many calls of NodePrepareResources have been served.
func (s *Server) Prepares() int { return int(s.prepares.Load()) }

// Streams is how many health streams are open now.
func (s *Server) Streams() int { return int(s.streams.Load()) }

// EndStreams ends the health streams that are open now, with an error. The
// connections stay, and new streams are served.
func (s *Server) EndStreams() {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.ended)
	s.ended = make(chan struct{})
}

func (s *Server) streamsEnd() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ended
}

// SetHealth makes devices the health that open streams are sent now and new
// streams at their start. No devices are sent before the first call.
func (s *Server) SetHealth(devices ...*healthv1.DeviceHealth) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.health = devices
	close(s.changed)
	s.changed = make(chan struct{})
}

func (s *Server) currentHealth() ([]*healthv1.DeviceHealth, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.health, s.changed
}
