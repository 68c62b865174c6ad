package main

import (
	"context"
	"time"

	healthv1alpha1 "k8s.io/kubelet/pkg/apis/dra-health/v1alpha1"
)

func (m *manager) register(r request) error {
	var timeout *time.Duration
	if r.Within > 0 {
		timeout = &r.Within
	}
	return m.plugins.RegisterPlugin(r.Driver, r.Endpoint, r.Services, timeout)
}

func (m *manager) deregister(r request) { m.plugins.DeRegisterPlugin(r.Driver, r.Endpoint) }

func (h *handler) HandleWatchResourcesStream(_ context.Context, stream healthv1alpha1.DRAResourceHealth_NodeWatchResourcesClient, _ string) error {
	return h.read(func() error {
		_, err := stream.Recv()
		return err
	})
}
