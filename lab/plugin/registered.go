package plugin

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	drav1 "k8s.io/kubelet/pkg/apis/dra/v1"
	drav1beta1 "k8s.io/kubelet/pkg/apis/dra/v1beta1"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/dra-lab/dra-lab/driver/draconn"
)

// RegistryDir is where the kubelet looks for registration sockets.
const RegistryDir = "/var/lib/kubelet/plugins_registry"

// askTimeout bounds one question to one plugin. It is the time that the kubelet
// gives a registration socket to be dialled.
const askTimeout = 10 * time.Second

// Plugin is a registration socket, and what the plugin behind it says that it
// is.
type Plugin struct {
	Socket Socket `json:"socket"`
	// Type is "DRAPlugin", "CSIPlugin" or "DevicePlugin".
	Type string `json:"type,omitempty"`
	// Name is the driver's.
	Name string `json:"name,omitempty"`
	// Endpoint is the socket on which the plugin does its work.
	Endpoint string `json:"endpoint,omitempty"`
	// Services are, for a DRA driver, the gRPC services at Endpoint, such as
	// "v1.DRAPlugin".
	Services []string `json:"services,omitempty"`
	// Err is why the plugin did not say what it is. Then nothing but Socket is
	// known.
	Err error `json:"-"`
	// Error is Err in words.
	Error string `json:"error,omitempty"`
}

// IsDRA says that the plugin is a DRA driver.
func (p Plugin) IsDRA() bool { return p.Type == registration.DRAPlugin }

// Reasons for which a driver is not found; errors.Is finds them.
var (
	// ErrNotRegistered: no plugin says that it is the driver.
	ErrNotRegistered = errors.New("no such DRA driver on the node")
	// ErrAmbiguous: there are several drivers, and none was named.
	ErrAmbiguous = errors.New("the node has several DRA drivers")
)

// List returns the plugins in a registry directory of the node ("" means
// [RegistryDir]), in the order in which their sockets were made. A plugin that
// does not answer is in the list, with its error.
func List(ctx context.Context, reach Reach, dir string) ([]Plugin, error) {
	if dir == "" {
		dir = RegistryDir
	}
	sockets, err := reach.Sockets(ctx, dir)
	if err != nil {
		return nil, fmt.Errorf("list plugins in %q: %w", dir, err)
	}
	plugins := make([]Plugin, len(sockets))
	const atOnce = 4
	slots := make(chan struct{}, atOnce)
	var wg sync.WaitGroup
	for i, socket := range sockets {
		wg.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			plugins[i] = Info(ctx, reach, socket)
		})
	}
	wg.Wait()
	if ctx.Err() != nil {
		return nil, fmt.Errorf("list plugins in %q: %w", dir, context.Cause(ctx))
	}
	return plugins, nil
}

// Info asks the plugin behind a registration socket what it is.
func Info(ctx context.Context, reach Reach, socket Socket) Plugin {
	p := Plugin{Socket: socket}
	info, err := ask(ctx, reach, socket.Path)
	if err != nil {
		p.Err = explain(err)
		p.Error = p.Err.Error()
		return p
	}
	p.Type, p.Name, p.Endpoint, p.Services = info.Type, info.Name, info.Endpoint, info.SupportedVersions
	if p.Endpoint == "" {
		p.Endpoint = socket.Path // as the kubelet reads it
	}
	return p
}

func ask(ctx context.Context, reach Reach, socket string) (info *registration.PluginInfo, err error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	conn, err := draconn.Open(ctx, socket, dialer(reach, socket))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	if err := conn.Attempt(ctx); err != nil {
		return nil, err
	}
	return conn.Info(ctx)
}

func dialer(reach Reach, socket string) draconn.Option {
	return draconn.WithDialer(func(ctx context.Context) (net.Conn, error) { return reach.Dial(ctx, socket) })
}

// explain adds to an error of draconn what it means on a node.
func explain(err error) error {
	switch {
	case errors.Is(err, draconn.ErrAbsent):
		return fmt.Errorf("%w (the plugin has ended, or has not started yet)", err)
	case errors.Is(err, draconn.ErrStale):
		return fmt.Errorf("%w (its plugin was killed and has not started again; the kubelet cannot register it either)", err)
	default:
		return err
	}
}

// Find returns the plugin of a DRA driver among those that List returned. If a
// driver has several, as in a rolling update, it is the newest that answers.
// With driver "" it is the only driver there is.
func Find(plugins []Plugin, driver string) (Plugin, error) {
	var names []string
	var silent []error
	found := -1
	for i, p := range plugins {
		switch {
		case p.Err != nil:
			silent = append(silent, p.Err)
		case !p.IsDRA():
		default:
			if !slices.Contains(names, p.Name) {
				names = append(names, p.Name)
			}
			if driver == "" || p.Name == driver {
				found = i
			}
		}
	}
	slices.Sort(names)
	switch {
	case driver == "" && len(names) > 1:
		return Plugin{}, fmt.Errorf("%w: %s", ErrAmbiguous, strings.Join(names, ", "))
	case found >= 0:
		return plugins[found], nil
	}
	err := ErrNotRegistered
	if driver != "" {
		err = fmt.Errorf("find driver %q: %w", driver, err)
	}
	if len(names) > 0 {
		err = fmt.Errorf("%w (there is %s)", err, strings.Join(names, ", "))
	}
	// One of those that did not answer may be the one.
	return Plugin{}, errors.Join(append([]error{err}, silent...)...)
}

// Connect opens the connection to a DRA driver's endpoint and waits for it. A
// driver that offers no version of DRAPlugin that the lab speaks is an error in
// which errors.Is finds draconn.ErrService, as the kubelet refuses to register
// it. The caller has to Close the connection.
func Connect(ctx context.Context, reach Reach, p Plugin, opts ...draconn.Option) (*draconn.Conn, error) {
	spoken := []string{drav1.DRAPluginService, drav1beta1.DRAPluginService}
	if !slices.ContainsFunc(spoken, func(s string) bool { return slices.Contains(p.Services, s) }) {
		return nil, fmt.Errorf("connect to driver %q: %w in a version known here: it offers %q, want one of %q", p.Name, draconn.ErrService, p.Services, spoken)
	}
	opts = append([]draconn.Option{
		dialer(reach, p.Endpoint),
		draconn.WithServices(p.Services),
		draconn.WithBackoff(2 * time.Second), // an attempt may be a process in the node
	}, opts...)
	conn, err := draconn.Open(ctx, p.Endpoint, opts...)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	if err := conn.Attempt(ctx); err != nil {
		return nil, errors.Join(explain(err), conn.Close())
	}
	return conn, nil
}
