package main

import (
	"context"

	"github.com/dra-lab/dra-lab/lab/cluster"
	"github.com/dra-lab/dra-lab/lab/host"
	"github.com/dra-lab/dra-lab/lab/internal/ui"
)

// open finds the running lab called name. It starts nothing.
func (l *lab) open(ctx context.Context, name string) (*cluster.Cluster, error) {
	engine, err := host.FindEngine(ctx)
	if err != nil {
		return nil, err
	}
	if err := engine.Use(); err != nil {
		return nil, err
	}
	c, err := cluster.Open(ctx, name)
	if err != nil && ui.Hint(err) == "" {
		return nil, ui.WithHint(err, "lab up --name %s", name)
	}
	return c, err
}
