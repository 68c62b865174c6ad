package connections

import (
	"context"
	"errors"
	"fmt"
	"time"

	drav1 "k8s.io/kubelet/pkg/apis/dra/v1"

	"github.com/dra-lab/dra-lab/driver/draconn"
	"github.com/dra-lab/dra-lab/scenarios/connections/lazymodel"
)

// Uncertain is what a health call does that comes before the plugin, and what
// remains of that when the plugin is there.
type Uncertain struct {
	// DialTimeout is the lazy client's.
	DialTimeout time.Duration
	// LazyFirst and LazySecond are how long two calls took to fail that came
	// together, one for health and one to prepare: the second waits for the
	// lock that the first holds while it dials, and then dials itself.
	LazyFirst  time.Duration
	LazySecond time.Duration
	// LazyNil says that there was no health client after that, LazyNilServing
	// that there still was none when the plugin was there and prepared claims,
	// and LazyRecovers that the next health call made one after all. The
	// article says that it can stay away for good.
	LazyNil        bool
	LazyNilServing bool
	LazyRecovers   bool
	// EagerFailsAfter is how long the first health call took to fail.
	EagerFailsAfter time.Duration
	EagerError      string
	// EagerReady is the time from the plugin's start to a connection, made
	// without any call, and EagerServes says that health calls work then.
	EagerReady  time.Duration
	EagerServes bool
}

func measureUncertain(ctx context.Context, socket string, o Options, r *Report) (err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute+2*o.DialTimeout)
	defer cancel()
	u := &r.Uncertain
	u.DialTimeout = o.DialTimeout

	// Given an eager and a lazy client of a plugin that is not there yet,
	eager, err := draconn.Open(ctx, socket)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, eager.Close()) }()
	if eager.Attempt(ctx) == nil {
		return errors.New("a plugin that is absent accepts connections")
	}
	lazy := &lazymodel.Client{Endpoint: socket, DialTimeout: o.DialTimeout}
	defer func() { err = errors.Join(err, lazy.Close()) }()

	// when health is asked for first,
	begin := time.Now()
	_, err = eager.WatchHealth(ctx)
	u.EagerFailsAfter = time.Since(begin)
	if !errors.Is(err, draconn.ErrAbsent) {
		return fmt.Errorf("eager health call to an absent plugin: got %w, want %w", err, draconn.ErrAbsent)
	}
	u.EagerError = draconn.ErrAbsent.Error()
	if err := lazyFailsFirst(ctx, lazy, u); err != nil {
		return err
	}
	u.LazyNil = !lazy.HealthClientMade()

	// and the plugin comes afterwards,
	server, err := startHealthy(socket)
	if err != nil {
		return err
	}
	defer server.Kill()
	begin = time.Now()
	if err := eager.WaitReady(ctx); err != nil {
		return err
	}
	u.EagerReady = time.Since(begin)

	// then preparing works on both sides; health needs another call on the lazy
	// one.
	if _, err := lazy.Prepare(ctx, &drav1.NodePrepareResourcesRequest{}); err != nil {
		return fmt.Errorf("lazy prepare: %w", err)
	}
	u.LazyNilServing = !lazy.HealthClientMade()
	u.LazyRecovers = lazyHealth(ctx, lazy) == nil && lazy.HealthClientMade()
	if err := eager.Ping(ctx); err != nil {
		return err
	}
	u.EagerServes = eagerHealth(ctx, eager) == nil
	return nil
}

// lazyFailsFirst makes the first health call and a prepare call together.
func lazyFailsFirst(ctx context.Context, lazy *lazymodel.Client, u *Uncertain) error {
	begin := time.Now()
	type result struct {
		took time.Duration
		err  error
	}
	health := make(chan result, 1)
	go func() {
		_, err := lazy.WatchHealth(ctx)
		health <- result{time.Since(begin), err}
	}()
	_, err := lazy.Prepare(ctx, &drav1.NodePrepareResourcesRequest{})
	prepare := result{time.Since(begin), err}
	h := <-health
	if h.err == nil || prepare.err == nil {
		return errors.New("a lazy call to a plugin that is absent succeeded")
	}
	u.LazyFirst, u.LazySecond = min(h.took, prepare.took), max(h.took, prepare.took)
	return nil
}
