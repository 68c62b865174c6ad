package draconn_test

import (
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	healthv1 "k8s.io/kubelet/pkg/apis/dra-health/v1"

	"github.com/dra-lab/dra-lab/driver/draconn/plugintest"
)

// A health stream that the plugin ends is no end of the connection: the next
// stream goes over the same one.
func TestStreamEndsConnectionStays(t *testing.T) {
	endpoint := socket(t)
	server := start(t, endpoint, plugintest.Config{})
	server.SetHealth(&healthv1.DeviceHealth{Health: healthv1.HealthStatus_HEALTHY})
	conn := openReady(t, endpoint)
	for range 2 {
		stream, err := conn.WatchHealth(context20s(t))
		if err != nil {
			t.Fatal(err)
		}
		defer stream.Close()
		if _, err := stream.Recv(); err != nil {
			t.Fatal(err)
		}
		server.EndStreams()
		if _, err := stream.Recv(); status.Code(err) != codes.Aborted {
			t.Errorf("a stream that the plugin ended: %v, want %v", err, codes.Aborted)
		}
	}
	if got := server.Accepted(); got != 1 {
		t.Errorf("%d connections for two streams, want 1", got)
	}
}
