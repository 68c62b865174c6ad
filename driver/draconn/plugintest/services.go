package plugintest

import (
	"context"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	healthv1 "k8s.io/kubelet/pkg/apis/dra-health/v1"
	drav1 "k8s.io/kubelet/pkg/apis/dra/v1"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

type pluginServer struct {
	drav1.UnimplementedDRAPluginServer
	server *Server
}

func (p pluginServer) NodePrepareResources(ctx context.Context, req *drav1.NodePrepareResourcesRequest) (*drav1.NodePrepareResourcesResponse, error) {
	p.server.prepares.Add(1)
	resp := &drav1.NodePrepareResourcesResponse{Claims: make(map[string]*drav1.NodePrepareResourceResponse, len(req.Claims))}
	for _, claim := range req.Claims {
		devices := []*drav1.Device{{PoolName: "pool", DeviceName: "gpu-0", CdiDeviceIds: []string{"test/claim=" + claim.Uid}}}
		var err error
		if p.server.config.Prepare != nil {
			devices, err = p.server.config.Prepare(ctx, claim)
		}
		one := &drav1.NodePrepareResourceResponse{Devices: devices}
		if err != nil {
			one = &drav1.NodePrepareResourceResponse{Error: err.Error()}
		}
		resp.Claims[claim.Uid] = one
	}
	return resp, nil
}

func (p pluginServer) NodeUnprepareResources(ctx context.Context, req *drav1.NodeUnprepareResourcesRequest) (*drav1.NodeUnprepareResourcesResponse, error) {
	resp := &drav1.NodeUnprepareResourcesResponse{Claims: make(map[string]*drav1.NodeUnprepareResourceResponse, len(req.Claims))}
	for _, claim := range req.Claims {
		one := &drav1.NodeUnprepareResourceResponse{}
		if p.server.config.Unprepare != nil {
			if err := p.server.config.Unprepare(ctx, claim); err != nil {
				one.Error = err.Error()
			}
		}
		resp.Claims[claim.Uid] = one
	}
	return resp, nil
}

type healthServer struct {
	healthv1.UnimplementedDRAResourceHealthServer
	server *Server
}

// NodeWatchResources sends the health as often as it changes.
func (h healthServer) NodeWatchResources(_ *healthv1.NodeWatchResourcesRequest, stream healthv1.DRAResourceHealth_NodeWatchResourcesServer) error {
	h.server.streams.Add(1)
	defer h.server.streams.Add(-1)
	ended := h.server.streamsEnd()
	for {
		devices, changed := h.server.currentHealth()
		if devices != nil {
			if err := stream.Send(&healthv1.NodeWatchResourcesResponse{Devices: devices}); err != nil {
				return err
			}
		}
		select {
		case <-changed:
		case <-ended:
			return status.Error(codes.Aborted, "the stream was ended")
		case <-stream.Context().Done():
			return stream.Context().Err()
		case <-h.server.stopping.Done():
			return status.Error(codes.Unavailable, "the plugin is stopping")
		}
	}
}

type registrationServer struct {
	registration.UnimplementedRegistrationServer
	config Config
}

func (r registrationServer) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	return r.config.Info, nil
}

func (r registrationServer) NotifyRegistrationStatus(_ context.Context, s *registration.RegistrationStatus) (*registration.RegistrationStatusResponse, error) {
	if r.config.Notified != nil {
		r.config.Notified(s)
	}
	return &registration.RegistrationStatusResponse{}, nil
}
