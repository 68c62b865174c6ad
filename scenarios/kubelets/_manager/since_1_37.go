package main

import (
	"context"
	"time"

	healthv1 "k8s.io/kubelet/pkg/apis/dra-health/v1"
)

func (m *manager) register(r request) error {
	var timeout *time.Duration
	if r.Within > 0 {
		timeout = &r.Within
	}
	return m.plugins.RegisterPlugin(context.Background(), r.Driver, r.Endpoint, r.Services, timeout)
}

func (m *manager) deregister(r request) {
	m.plugins.DeRegisterPlugin(context.Background(), r.Driver, r.Endpoint)
}

func (h *handler) HandleWatchResourcesStream(_ context.Context, stream healthv1.DRAResourceHealth_NodeWatchResourcesClient, _ string) error {
	return h.read(func() error {
		_, err := stream.Recv()
		return err
	})
}
