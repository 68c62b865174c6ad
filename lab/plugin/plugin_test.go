package plugin_test

import (
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	healthv1 "k8s.io/kubelet/pkg/apis/dra-health/v1"
	drav1 "k8s.io/kubelet/pkg/apis/dra/v1"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/dra-lab/dra-lab/driver/draconn"
	"github.com/dra-lab/dra-lab/driver/draconn/plugintest"
	"github.com/dra-lab/dra-lab/lab/plugin"
)

// bound is more than anything here takes on a busy machine.
const bound = 30 * time.Second

func testContext(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), bound)
	t.Cleanup(cancel)
	return ctx
}

// node is a directory that stands for a node's file system. Commands run on this
// machine, with the paths that the lab uses in nodes moved into it.
type node struct {
	dir string
}

func newNode(t *testing.T) node {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "node") // short enough for sockets
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	if err := os.MkdirAll(filepath.Join(dir, "registry"), 0o755); err != nil {
		t.Fatal(err)
	}
	return node{dir}
}

func (n node) registry() string { return filepath.Join(n.dir, "registry") }

func (n node) command(ctx context.Context, argv ...string) *exec.Cmd {
	moved := make([]string, len(argv))
	for i, arg := range argv {
		moved[i] = arg
		if strings.HasPrefix(arg, "/var/lib/dra-lab/") {
			moved[i] = n.dir + arg
		}
	}
	// By way of the shell, which has the exit statuses that engines have.
	cmd := exec.CommandContext(ctx, "sh", append([]string{"-c", `exec "$@"`, "sh"}, moved...)...)
	// A relay built with -race would sleep for a second before it exits.
	cmd.Env = append(os.Environ(), "GORACE=atexit_sleep_ms=0")
	return cmd
}

// reaches runs a test with both ways into a node.
func reaches(t *testing.T, test func(t *testing.T, n node, reach plugin.Reach)) {
	t.Run("local", func(t *testing.T) { test(t, newNode(t), plugin.Local{}) })
	t.Run("relay", func(t *testing.T) {
		n := newNode(t)
		relay := plugin.NewRelay(n.command, "")
		t.Cleanup(func() {
			if err := relay.Close(); err != nil {
				t.Error(err)
			}
		})
		test(t, n, relay)
	})
}

// driver starts a DRA driver with both of its sockets.
func (n node) driver(t *testing.T, name string, services []string) *plugintest.Server {
	t.Helper()
	endpoint := filepath.Join(n.dir, name+".sock")
	n.start(t, filepath.Join(n.registry(), name+"-reg.sock"), plugintest.Config{
		Services: []string{},
		Info:     &registration.PluginInfo{Type: registration.DRAPlugin, Name: name, Endpoint: endpoint, SupportedVersions: services},
	})
	return n.start(t, endpoint, plugintest.Config{Services: services})
}

func (n node) start(t *testing.T, socket string, config plugintest.Config) *plugintest.Server {
	t.Helper()
	server, err := plugintest.Start(socket, config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Kill)
	return server
}

func TestList(t *testing.T) {
	reaches(t, func(t *testing.T, n node, reach plugin.Reach) {
		// Given a node with a driver, a plugin of another kind, a plugin that
		// was killed, one whose socket serves something else, one that is no
		// gRPC at all, and files that are no sockets,
		services := plugintest.Services()
		n.driver(t, "gpu.example", services)
		n.start(t, filepath.Join(n.registry(), "csi.sock"), plugintest.Config{
			Services: []string{},
			Info:     &registration.PluginInfo{Type: registration.CSIPlugin, Name: "disk.example", SupportedVersions: []string{"1.0.0"}},
		})
		n.start(t, filepath.Join(n.registry(), "killed.sock"), plugintest.Config{}).Kill()
		n.start(t, filepath.Join(n.registry(), "other.sock"), plugintest.Config{})
		hangUp(t, filepath.Join(n.registry(), "sub", "mute.sock"))
		for _, name := range []string{"file.sock", ".hidden"} {
			if err := os.WriteFile(filepath.Join(n.registry(), name), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		made := time.Now().Add(-time.Hour) // apart by more than the clock of the file system
		for _, name := range []string{"gpu.example-reg.sock", "csi.sock", "killed.sock", "other.sock", "sub/mute.sock"} {
			made = made.Add(time.Second)
			if err := os.Chtimes(filepath.Join(n.registry(), name), made, made); err != nil {
				t.Fatal(err)
			}
		}
		// when its plugins are listed,
		plugins, err := plugin.List(testContext(t), reach, n.registry())
		if err != nil {
			t.Fatal(err)
		}
		// then all sockets are there in the order in which they were made, with
		// what their plugins say or why they say nothing.
		var got []plugin.Plugin
		var problems []error
		for _, p := range plugins {
			problems = append(problems, p.Err)
			p.Socket.Modified, p.Err, p.Error = time.Time{}, nil, ""
			p.Socket.Path = filepath.Base(p.Socket.Path)
			got = append(got, p)
		}
		want := []plugin.Plugin{
			{Socket: plugin.Socket{Path: "gpu.example-reg.sock"}, Type: "DRAPlugin", Name: "gpu.example", Endpoint: filepath.Join(n.dir, "gpu.example.sock"), Services: services},
			{Socket: plugin.Socket{Path: "csi.sock"}, Type: "CSIPlugin", Name: "disk.example", Endpoint: filepath.Join(n.registry(), "csi.sock"), Services: []string{"1.0.0"}},
			{Socket: plugin.Socket{Path: "killed.sock"}},
			{Socket: plugin.Socket{Path: "other.sock"}},
			{Socket: plugin.Socket{Path: "mute.sock"}},
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("plugins (-want +got):\n%s", diff)
		}
		wantProblems := []error{nil, nil, draconn.ErrStale, draconn.ErrService, draconn.ErrNotServing}
		if diff := cmp.Diff(wantProblems, problems, cmpopts.EquateErrors()); diff != "" {
			t.Errorf("problems (-want +got):\n%s", diff)
		}
	})
}

// hangUp accepts connections at socket and closes them.
func hangUp(t *testing.T, socket string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(socket), 0o755); err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			_ = conn.Close()
		}
	}()
	t.Cleanup(func() {
		_ = listener.Close()
		<-done
	})
}

func TestListOfNothing(t *testing.T) {
	reaches(t, func(t *testing.T, n node, reach plugin.Reach) {
		plugins, err := plugin.List(testContext(t), reach, filepath.Join(n.dir, "absent"))
		if err != nil || len(plugins) != 0 {
			t.Errorf("got %v, %v, want no plugins and no error", plugins, err)
		}
	})
}

func TestFind(t *testing.T) {
	dra := func(name, socket string) plugin.Plugin {
		return plugin.Plugin{Type: registration.DRAPlugin, Name: name, Socket: plugin.Socket{Path: socket}}
	}
	csi := plugin.Plugin{Type: registration.CSIPlugin, Name: "a"}
	silent := plugin.Plugin{Err: draconn.ErrStale}
	for name, c := range map[string]struct {
		plugins []plugin.Plugin
		driver  string
		socket  string
		err     error
		also    error
		text    string
	}{
		"by name":                     {plugins: []plugin.Plugin{dra("a", "1"), dra("b", "2")}, driver: "a", socket: "1"},
		"the newest instance":         {plugins: []plugin.Plugin{dra("a", "1"), dra("a", "2"), silent}, driver: "a", socket: "2"},
		"the only one":                {plugins: []plugin.Plugin{csi, dra("b", "2"), silent}, socket: "2"},
		"one driver twice":            {plugins: []plugin.Plugin{dra("b", "1"), dra("b", "2")}, socket: "2"},
		"several":                     {plugins: []plugin.Plugin{dra("b", "1"), dra("a", "2")}, err: plugin.ErrAmbiguous, text: "a, b"},
		"none":                        {plugins: []plugin.Plugin{csi}, err: plugin.ErrNotRegistered},
		"another":                     {plugins: []plugin.Plugin{dra("b", "1")}, driver: "a", err: plugin.ErrNotRegistered, text: "there is b"},
		"of another kind":             {plugins: []plugin.Plugin{csi}, driver: "a", err: plugin.ErrNotRegistered},
		"perhaps one that is silent":  {plugins: []plugin.Plugin{silent}, driver: "a", err: plugin.ErrNotRegistered, also: draconn.ErrStale},
		"no plugins, no name":         {err: plugin.ErrNotRegistered},
		"no plugins, but a name":      {driver: "a", err: plugin.ErrNotRegistered, text: `find driver "a"`},
		"the silent do not hide it":   {plugins: []plugin.Plugin{silent, dra("a", "1")}, driver: "a", socket: "1"},
		"the silent are not a second": {plugins: []plugin.Plugin{dra("a", "1"), silent}, socket: "1"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := plugin.Find(c.plugins, c.driver)
			if !errors.Is(err, c.err) || (c.err == nil) != (err == nil) {
				t.Fatalf("got %v, want %v", err, c.err)
			}
			if c.also != nil && !errors.Is(err, c.also) {
				t.Errorf("got %v, want %v in it too", err, c.also)
			}
			if err != nil && !strings.Contains(err.Error(), c.text) {
				t.Errorf("got %q, want %q in it", err, c.text)
			}
			if got.Socket.Path != c.socket {
				t.Errorf("got %q, want %q", got.Socket.Path, c.socket)
			}
		})
	}
}

func TestPrepareAndUnprepare(t *testing.T) {
	reaches(t, func(t *testing.T, n node, reach plugin.Reach) {
		ctx := testContext(t)
		n.driver(t, "gpu.example", []string{"v1beta1.DRAPlugin"})
		plugins, err := plugin.List(ctx, reach, n.registry())
		if err != nil {
			t.Fatal(err)
		}
		p, err := plugin.Find(plugins, "")
		if err != nil {
			t.Fatal(err)
		}
		conn, err := plugin.Connect(ctx, reach, p)
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := conn.Close(); err != nil {
				t.Error(err)
			}
		}()
		devices, err := plugin.Prepare(ctx, conn, plugin.Claim{Namespace: "default", Name: "claim", UID: "u-1"})
		if err != nil {
			t.Fatal(err)
		}
		want := []plugin.Device{{Pool: "pool", Device: "gpu-0", CDI: []string{"test/claim=u-1"}}}
		if diff := cmp.Diff(want, devices, cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("devices (-want +got):\n%s", diff)
		}
		if err := plugin.Unprepare(ctx, conn, plugin.Claim{UID: "u-1"}); err != nil {
			t.Error(err)
		}
	})
}

func TestDriverRefuses(t *testing.T) {
	n := newNode(t)
	endpoint := filepath.Join(n.dir, "x.sock")
	n.start(t, endpoint, plugintest.Config{
		Prepare:   func(context.Context, *drav1.Claim) ([]*drav1.Device, error) { return nil, errors.New("out of GPUs") },
		Unprepare: func(context.Context, *drav1.Claim) error { return errors.New("GPU is busy") },
	})
	conn, err := plugin.Connect(testContext(t), plugin.Local{}, plugin.Plugin{Endpoint: endpoint, Services: plugintest.Services()})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
	}()
	claim := plugin.Claim{Name: "c", UID: "u"}
	if _, err := plugin.Prepare(testContext(t), conn, claim); err == nil || err.Error() != `prepare claim "c": the driver says: out of GPUs` {
		t.Errorf("prepare: got %v", err)
	}
	if err := plugin.Unprepare(testContext(t), conn, claim); err == nil || err.Error() != `unprepare claim "c": the driver says: GPU is busy` {
		t.Errorf("unprepare: got %v", err)
	}
}

func TestConnectErrors(t *testing.T) {
	reaches(t, func(t *testing.T, n node, reach plugin.Reach) {
		stale := filepath.Join(n.dir, "stale.sock")
		n.start(t, stale, plugintest.Config{}).Kill()
		for name, c := range map[string]struct {
			plugin plugin.Plugin
			want   error
		}{
			"absent":         {plugin.Plugin{Endpoint: filepath.Join(n.dir, "absent.sock"), Services: plugintest.Services()}, draconn.ErrAbsent},
			"stale":          {plugin.Plugin{Endpoint: stale, Services: plugintest.Services()}, draconn.ErrStale},
			"other versions": {plugin.Plugin{Endpoint: stale, Services: []string{"v2.DRAPlugin"}}, draconn.ErrService},
		} {
			t.Run(name, func(t *testing.T) {
				conn, err := plugin.Connect(testContext(t), reach, c.plugin)
				if !errors.Is(err, c.want) {
					t.Errorf("got %v, want %v", err, c.want)
				}
				if conn != nil {
					t.Error("got a connection beside the error")
				}
			})
		}
	})
}

func TestWatch(t *testing.T) {
	reaches(t, func(t *testing.T, n node, reach plugin.Reach) {
		ctx, cancel := context.WithCancel(testContext(t))
		endpoint := filepath.Join(n.dir, "x.sock")
		unhealthy := &healthv1.DeviceHealth{
			Device:          &healthv1.DeviceIdentifier{PoolName: "p", DeviceName: "gpu-0"},
			Health:          healthv1.HealthStatus_UNHEALTHY,
			LastUpdatedTime: 1, HealthCheckTimeoutSeconds: 5, Message: "XID 79",
		}
		start := func() *plugintest.Server {
			server := n.start(t, endpoint, plugintest.Config{Services: []string{"v1.DRAPlugin", "v1alpha1.DRAResourceHealth"}})
			server.SetHealth(unhealthy, &healthv1.DeviceHealth{Health: 99})
			return server
		}
		// Given a driver whose health is watched,
		server := start()
		conn, err := plugin.Connect(ctx, reach, plugin.Plugin{Endpoint: endpoint, Services: plugintest.Services()})
		if err != nil {
			t.Fatal(err)
		}
		events := make(chan plugin.Event, 100)
		done := make(chan error, 1)
		go func() { done <- plugin.Watch(ctx, conn, func(e plugin.Event) { events <- e }) }()
		// the first message may be that of the version that is tried first
		next := func(stream string) plugin.Event {
			t.Helper()
			for {
				select {
				case e := <-events:
					if e.Stream == stream {
						return e
					}
				case err := <-done:
					t.Fatalf("watch ended: %v", err)
				case <-ctx.Done():
					t.Fatalf("no event %q", stream)
				}
			}
		}
		next(plugin.StreamOpen)
		want := plugin.Event{Stream: plugin.StreamHealth, Service: "v1alpha1.DRAResourceHealth", Devices: []plugin.DeviceHealth{
			{Pool: "p", Device: "gpu-0", Health: "Unhealthy", Message: "XID 79", Updated: time.Unix(1, 0).UTC(), Timeout: 5 * time.Second},
			{Health: "Unknown", Timeout: 30 * time.Second},
		}}
		got := next(plugin.StreamHealth)
		if diff := cmp.Diff(want, got, cmpopts.IgnoreFields(plugin.Event{}, "Time")); diff != "" {
			t.Errorf("event (-want +got):\n%s", diff)
		}
		// when the driver is killed and starts again,
		server.Kill()
		if e := next(plugin.StreamEnded); e.Error == "" {
			t.Error("the stream ended without a reason")
		}
		start()
		// then its health is watched again.
		if diff := cmp.Diff(want, next(plugin.StreamHealth), cmpopts.IgnoreFields(plugin.Event{}, "Time")); diff != "" {
			t.Errorf("event (-want +got):\n%s", diff)
		}
		cancel()
		if err := <-done; err != nil {
			t.Errorf("watch: got %v, want no error when it was asked to end", err)
		}
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
	})
}

func TestWatchWithoutHealth(t *testing.T) {
	n := newNode(t)
	endpoint := filepath.Join(n.dir, "x.sock")
	n.start(t, endpoint, plugintest.Config{Services: []string{"v1.DRAPlugin"}})
	for name, services := range map[string][]string{
		"as registered":        {"v1.DRAPlugin"},
		"against registration": plugintest.Services(),
	} {
		t.Run(name, func(t *testing.T) {
			conn, err := plugin.Connect(testContext(t), plugin.Local{}, plugin.Plugin{Endpoint: endpoint, Services: services})
			if err != nil {
				t.Fatal(err)
			}
			err = plugin.Watch(testContext(t), conn, func(plugin.Event) {})
			if !errors.Is(err, draconn.ErrService) {
				t.Errorf("got %v, want ErrService", err)
			}
			if err := conn.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}
