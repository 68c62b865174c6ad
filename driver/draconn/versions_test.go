package draconn_test

import (
	"errors"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/testing/protocmp"
	healthv1 "k8s.io/kubelet/pkg/apis/dra-health/v1"
	drav1 "k8s.io/kubelet/pkg/apis/dra/v1"

	"github.com/dra-lab/dra-lab/driver/draconn"
	"github.com/dra-lab/dra-lab/driver/draconn/plugintest"
)

func TestPluginVersions(t *testing.T) {
	for name, c := range map[string]struct {
		serves   []string
		told     []string // by registration; nil: not told
		want     string   // version in use after the first call
		wantErr  error
		prepares int // calls that reached a handler
	}{
		"both, not told":            {serves: []string{"v1.DRAPlugin", "v1beta1.DRAPlugin"}, want: "v1.DRAPlugin", prepares: 2},
		"old only, not told":        {serves: []string{"v1beta1.DRAPlugin"}, want: "v1beta1.DRAPlugin", prepares: 2},
		"old only, told":            {serves: []string{"v1beta1.DRAPlugin"}, told: []string{"v1beta1.DRAPlugin"}, want: "v1beta1.DRAPlugin", prepares: 2},
		"both, old advertised":      {serves: []string{"v1.DRAPlugin", "v1beta1.DRAPlugin"}, told: []string{"v1beta1.DRAPlugin"}, want: "v1beta1.DRAPlugin", prepares: 2},
		"told of more than is true": {serves: []string{"v1beta1.DRAPlugin"}, told: []string{"v1.DRAPlugin", "v1beta1.DRAPlugin"}, want: "v1beta1.DRAPlugin", prepares: 2},
		"told of the unknown only":  {serves: []string{"v1.DRAPlugin"}, told: []string{"v2.DRAPlugin"}, wantErr: draconn.ErrService},
		"none":                      {serves: []string{"v1.DRAResourceHealth"}, want: "v1.DRAPlugin", wantErr: draconn.ErrService},
	} {
		t.Run(name, func(t *testing.T) {
			endpoint := socket(t)
			server := start(t, endpoint, plugintest.Config{Services: c.serves})
			var opts []draconn.Option
			if c.told != nil {
				opts = append(opts, draconn.WithServices(c.told))
			}
			conn := openReady(t, endpoint, opts...)
			resp, err := conn.Prepare(context20s(t), &drav1.NodePrepareResourcesRequest{Claims: []*drav1.Claim{{Uid: "u", Name: "n", Namespace: "ns"}}})
			if !errors.Is(err, c.wantErr) || (err == nil) != (c.wantErr == nil) {
				t.Fatalf("prepare: got %v, want %v", err, c.wantErr)
			}
			if got := conn.State().PluginService; got != c.want {
				t.Errorf("version in use: got %q, want %q", got, c.want)
			}
			if _, err := conn.Unprepare(context20s(t), &drav1.NodeUnprepareResourcesRequest{}); !errors.Is(err, c.wantErr) {
				t.Errorf("unprepare: got %v, want %v", err, c.wantErr)
			}
			if c.wantErr != nil {
				return
			}
			want := &drav1.NodePrepareResourcesResponse{Claims: map[string]*drav1.NodePrepareResourceResponse{
				"u": {Devices: []*drav1.Device{{PoolName: "pool", DeviceName: "gpu-0", CdiDeviceIds: []string{"test/claim=u"}}}},
			}}
			if diff := cmp.Diff(want, resp, protocmp.Transform()); diff != "" {
				t.Errorf("response (-want +got):\n%s", diff)
			}
			if err := conn.Ping(context20s(t)); err != nil {
				t.Error(err)
			}
			if got := server.Prepares(); got != c.prepares {
				t.Errorf("calls served: got %d, want %d", got, c.prepares)
			}
		})
	}
}

func TestRestartWithAnotherVersion(t *testing.T) {
	// Given a connection that has learned one version, when the plugin comes
	// back with only the other, then that is learned in turn.
	endpoint := socket(t)
	seen := make(changes, 100)
	conn := open(t, endpoint, seen.option())
	for _, version := range []string{"v1beta1.DRAPlugin", "v1.DRAPlugin", "v1beta1.DRAPlugin"} {
		server := start(t, endpoint, plugintest.Config{Services: []string{version}})
		if ch := seen.skipFailures(t); !ch.Connected {
			t.Fatalf("got %+v, want a connection", ch)
		}
		if err := conn.Ping(context20s(t)); err != nil {
			t.Fatal(err)
		}
		if got := conn.State().PluginService; got != version {
			t.Errorf("version in use: got %q, want %q", got, version)
		}
		server.Kill()
		if ch := seen.skipFailures(t); ch.Connected {
			t.Fatalf("got %+v, want the end of the connection", ch)
		}
	}
}

func TestHealthVersionsLookTheSame(t *testing.T) {
	for name, c := range map[string]struct {
		serves []string
		told   []string
		want   string
	}{
		"both":               {serves: []string{"v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth"}, want: "v1.DRAResourceHealth"},
		"v1":                 {serves: []string{"v1.DRAResourceHealth"}, want: "v1.DRAResourceHealth"},
		"v1alpha1, not told": {serves: []string{"v1alpha1.DRAResourceHealth"}, want: "v1alpha1.DRAResourceHealth"},
		"v1alpha1, told":     {serves: []string{"v1alpha1.DRAResourceHealth"}, told: []string{"v1alpha1.DRAResourceHealth"}, want: "v1alpha1.DRAResourceHealth"},
	} {
		t.Run(name, func(t *testing.T) {
			endpoint := socket(t)
			server := start(t, endpoint, plugintest.Config{Services: c.serves})
			device := func(health healthv1.HealthStatus) *healthv1.DeviceHealth {
				return &healthv1.DeviceHealth{
					Device:                    &healthv1.DeviceIdentifier{PoolName: "pool", DeviceName: "gpu-0"},
					Health:                    health,
					LastUpdatedTime:           1,
					HealthCheckTimeoutSeconds: 2,
					Message:                   "m",
				}
			}
			server.SetHealth(device(healthv1.HealthStatus_HEALTHY))
			var opts []draconn.Option
			if c.told != nil {
				opts = append(opts, draconn.WithServices(c.told))
			}
			conn := openReady(t, endpoint, opts...)
			stream, err := conn.WatchHealth(context20s(t))
			if err != nil {
				t.Fatal(err)
			}
			defer stream.Close()
			for _, health := range []healthv1.HealthStatus{healthv1.HealthStatus_HEALTHY, healthv1.HealthStatus_UNHEALTHY, healthv1.HealthStatus_UNKNOWN} {
				server.SetHealth(device(health))
				for {
					got, err := stream.Recv()
					if err != nil {
						t.Fatal(err)
					}
					if got.Devices[0].Health != health {
						continue // what was sent before SetHealth
					}
					want := &healthv1.NodeWatchResourcesResponse{Devices: []*healthv1.DeviceHealth{device(health)}}
					if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
						t.Errorf("message (-want +got):\n%s", diff)
					}
					break
				}
			}
			if got := conn.State().HealthService; got != c.want {
				t.Errorf("version in use: got %q, want %q", got, c.want)
			}
			if got := server.Streams(); got != 1 {
				t.Errorf("streams at the server: got %d, want 1", got)
			}
		})
	}
}

func TestPluginWithoutHealth(t *testing.T) {
	endpoint := socket(t)
	start(t, endpoint, plugintest.Config{Services: []string{"v1.DRAPlugin"}})
	t.Run("told, it is not asked", func(t *testing.T) {
		conn := openReady(t, endpoint, draconn.WithServices([]string{"v1.DRAPlugin"}))
		if _, err := conn.WatchHealth(context20s(t)); !errors.Is(err, draconn.ErrService) {
			t.Errorf("got %v, want ErrService", err)
		}
	})
	t.Run("not told, its answer says so", func(t *testing.T) {
		conn := openReady(t, endpoint)
		stream, err := conn.WatchHealth(context20s(t))
		if err != nil {
			t.Fatal(err)
		}
		defer stream.Close()
		if _, err := stream.Recv(); !errors.Is(err, draconn.ErrService) || status.Code(err) != codes.Unimplemented {
			t.Errorf("got %v, want ErrService and code Unimplemented", err)
		}
	})
}

func TestFirstCallsAtTheSameTimeLearnOneVersion(t *testing.T) {
	// Given a plugin that has the older versions only, when the very first
	// calls come at once, then each finds them, whoever is the first to know.
	endpoint := socket(t)
	server := start(t, endpoint, plugintest.Config{Services: []string{"v1beta1.DRAPlugin", "v1alpha1.DRAResourceHealth"}})
	server.SetHealth(&healthv1.DeviceHealth{})
	for range 20 {
		conn := openReady(t, endpoint)
		var wg sync.WaitGroup
		for range 16 {
			wg.Go(func() {
				if err := conn.Ping(context20s(t)); err != nil {
					t.Error(err)
				}
			})
			wg.Go(func() {
				stream, err := conn.WatchHealth(context20s(t))
				if err != nil {
					t.Error(err)
					return
				}
				defer stream.Close()
				if _, err := stream.Recv(); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
	}
}
