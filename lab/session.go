package main

import (
	"context"
	"fmt"

	"github.com/dra-lab/dra-lab/lab/cluster"
	"github.com/dra-lab/dra-lab/lab/host"
	"github.com/dra-lab/dra-lab/lab/internal/ui"
)

// open finds the running lab called name. It starts nothing.
func (l *lab) open(ctx context.Context, name string) (*cluster.Cluster, error) {
	c, _, err := l.openOn(ctx, name)
	return c, err
}

// openOn is open, and returns the engine as well.
func (l *lab) openOn(ctx context.Context, name string) (*cluster.Cluster, *host.Engine, error) {
	engine, err := useEngine(ctx)
	if err != nil {
		return nil, nil, err
	}
	c, err := cluster.Open(ctx, name)
	switch {
	case err == nil && c.Running():
		return c, engine, nil
	case err == nil:
		return nil, nil, ui.WithHint(fmt.Errorf("open cluster %q: its control plane does not run", name), "start it again: lab up --name %s", name)
	case ui.Hint(err) == "":
		err = ui.WithHint(err, "lab up --name %s", name)
	}
	return nil, nil, err
}

// useEngine finds the engine and makes it this process's. It starts nothing.
func useEngine(ctx context.Context) (*host.Engine, error) {
	engine, err := host.FindEngine(ctx)
	if err != nil {
		return nil, err
	}
	return engine, engine.Use()
}
