package controller

import (
	"context"
	"errors"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/dra-lab/dra-lab/driver/api"
)

// Times of the election, those that Kubernetes' own components have: the lease
// of a leader that died is free after leaseDuration, that of one that stopped at
// once.
const (
	leaseDuration = 15 * time.Second
	renewDeadline = 10 * time.Second
	retryPeriod   = 2 * time.Second
)

// errLost is how Run ends for an instance that must not go on leading: it cannot
// know that nobody else does.
var errLost = errors.New("lost the lease")

// Run takes part in the election and, once elected, leads until ctx ends. It
// returns nil then, or why only a new process can go on. The lease is given up
// after the last write, so that the next leader begins when this one has ended.
func (c *Controller) Run(ctx context.Context) error {
	electing, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	elected := make(chan context.Context, 1) // which ends with the lease
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: &resourcelock.LeaseLock{
			LeaseMeta:  metav1.ObjectMeta{Namespace: api.Namespace, Name: api.ControllerName},
			Client:     c.cfg.Client.CoordinationV1(),
			LockConfig: resourcelock.ResourceLockConfig{Identity: c.cfg.Identity},
		},
		LeaseDuration: leaseDuration, RenewDeadline: renewDeadline, RetryPeriod: retryPeriod,
		ReleaseOnCancel: true,
		Name:            api.ControllerName,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(lease context.Context) { elected <- lease },
			OnStoppedLeading: func() {},
		},
	})
	if err != nil {
		return fmt.Errorf("take part in the election: %w", err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		elector.Run(electing)
	}()
	defer func() { stop(); <-ended }()
	select {
	case <-ctx.Done():
		return nil
	case lease := <-elected:
		return c.leadWhile(ctx, lease)
	}
}

// leadWhile leads as long as neither ctx nor the lease ends.
func (c *Controller) leadWhile(ctx, lease context.Context) error {
	leading, stop := context.WithCancel(lease)
	defer stop()
	defer context.AfterFunc(ctx, stop)()
	err := c.lead(leading)
	switch {
	case ctx.Err() != nil:
		return nil
	case lease.Err() != nil:
		return errLost
	}
	return err
}
