package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"google.golang.org/grpc"

	"github.com/dra-lab/dra-lab/scenarios/trainer/internal/allreduce"
	"github.com/dra-lab/dra-lab/scenarios/trainer/internal/job"
)

// drainTime bounds how long rank 0 serves on after its own training, so that
// its peers get the last answer.
const drainTime = 5 * time.Second

// train is the rank's part of the job; rank 0 also serves the group.
func (t *trainer) train(ctx context.Context, leave <-chan struct{}) (err error) {
	if t.options.Rank == 0 {
		stop, err := t.serve()
		if err != nil {
			return err
		}
		defer stop()
	}
	conn, err := allreduce.Connect(t.options.Address)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	rank := job.Rank{
		Settings: t.settings,
		Pace:     t.pace,
		Rank:     t.options.Rank,
		Run:      t.options.Run,
		Volume:   t.options.Volume,
		Conn:     conn,
		Emit:     t.emit,
	}
	_, err = rank.Train(ctx, leave)
	return err
}

// serve starts the group's server. stop lets calls end, for as long as
// drainTime.
func (t *trainer) serve() (stop func(), err error) {
	group, err := allreduce.NewGroup(t.settings.World)
	if err != nil {
		return nil, err
	}
	listener, err := net.Listen("tcp", t.options.Listen)
	if err != nil {
		return nil, fmt.Errorf("serve the group: %w", err)
	}
	server := grpc.NewServer(allreduce.ServerOptions()...)
	group.Register(server)
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	return func() {
		timer := time.AfterFunc(drainTime, server.Stop)
		defer timer.Stop()
		server.GracefulStop()
		if err := <-served; err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			fmt.Fprintf(t.stderr, "trainer: serve the group: %v\n", err)
		}
	}, nil
}
