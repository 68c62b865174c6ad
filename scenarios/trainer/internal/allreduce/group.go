package allreduce

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/dra-lab/dra-lab/scenarios/trainer/internal/allreduce/wire"
)

const (
	maxWorld       = 64
	maxCheckpoints = 64
	maxTextBytes   = 4 << 10
)

// Group is rank 0's side: it forms generations of ranks and adds their parts.
// It is safe for concurrent use.
type Group struct {
	wire.UnimplementedAllReduceServer
	world int

	mu      sync.Mutex
	current *generation
}

// NewGroup makes a group for the given number of ranks.
func NewGroup(world int) (*Group, error) {
	if world < 1 || world > maxWorld {
		return nil, fmt.Errorf("make group: %d ranks, want 1 to %d", world, maxWorld)
	}
	return &Group{world: world, current: newGeneration(1, world)}, nil
}

// Register makes server serve the group.
func (g *Group) Register(server grpc.ServiceRegistrar) { wire.RegisterAllReduceServer(server, g) }

// Train serves one rank's stream; see the service's description.
func (g *Group) Train(stream wire.AllReduce_TrainServer) error {
	ctx := stream.Context()
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	hello := first.GetHello()
	if err := g.check(hello); err != nil {
		return status.Error(codes.InvalidArgument, err.Error())
	}
	rank := int(hello.GetRank())
	gen := g.join(hello)
	err = g.serve(ctx, stream, gen, rank)
	g.leave(gen, rank, err)
	return err
}

func (g *Group) serve(ctx context.Context, stream wire.AllReduce_TrainServer, gen *generation, rank int) error {
	select {
	case <-gen.started:
	case <-gen.ended:
		return gen.status()
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	}
	start := &wire.Start{Generation: gen.number, Step: gen.step}
	if err := stream.Send(&wire.ToRank{Kind: &wire.ToRank_Start{Start: start}}); err != nil {
		return err
	}
	for {
		message, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		var answer *wire.ToRank
		switch kind := message.GetKind().(type) {
		case *wire.FromRank_Part:
			sum, err := g.reduce(ctx, gen, rank, kind.Part)
			if err != nil {
				return err
			}
			answer = &wire.ToRank{Kind: &wire.ToRank_Sum{Sum: sum}}
		case *wire.FromRank_Done:
			if err := g.agree(ctx, gen, rank, kind.Done.GetWeights()); err != nil {
				return err
			}
			answer = &wire.ToRank{Kind: &wire.ToRank_Agreed{Agreed: &wire.Agreed{Weights: kind.Done.GetWeights()}}}
		default:
			return status.Errorf(codes.InvalidArgument, "rank %d: unexpected message %T", rank, kind)
		}
		if err := stream.Send(answer); err != nil {
			return err
		}
	}
}

func (g *Group) check(hello *wire.Hello) error {
	switch {
	case hello == nil:
		return errors.New("the first message is no hello")
	case int(hello.GetWorld()) != g.world:
		return fmt.Errorf("rank %d counts %d ranks, the group has %d", hello.GetRank(), hello.GetWorld(), g.world)
	case hello.GetRank() < 0 || int(hello.GetRank()) >= g.world:
		return fmt.Errorf("rank %d of %d", hello.GetRank(), g.world)
	case len(hello.GetCheckpoints()) > maxCheckpoints:
		return fmt.Errorf("rank %d offers %d checkpoints, at most %d allowed", hello.GetRank(), len(hello.GetCheckpoints()), maxCheckpoints)
	case len(hello.GetRun()) > maxTextBytes || len(hello.GetSettings()) > maxTextBytes:
		return fmt.Errorf("rank %d: run or settings over %d bytes", hello.GetRank(), maxTextBytes)
	}
	return nil
}

// join takes the rank's place in a generation that has not begun. A rank that
// comes while its place is taken is its own replacement, seen before its
// predecessor's connection broke: that generation is over.
func (g *Group) join(hello *wire.Hello) *generation {
	g.mu.Lock()
	defer g.mu.Unlock()
	rank := int(hello.GetRank())
	gen := g.current
	if !isClosed(gen.ended) && (isClosed(gen.started) || gen.hellos[rank] != nil) {
		gen.end(fmt.Errorf("rank %d has joined anew", rank))
	}
	if isClosed(gen.ended) {
		gen = newGeneration(gen.number+1, g.world)
		g.current = gen
	}
	gen.hellos[rank] = hello
	for other, there := range gen.hellos {
		if there == nil {
			return gen
		}
		if there.GetRun() != hello.GetRun() || there.GetSettings() != hello.GetSettings() {
			gen.end(status.Errorf(codes.FailedPrecondition, "ranks %d and %d differ in run or settings", other, rank))
			return gen
		}
	}
	step, err := common(gen.hellos)
	if err != nil {
		gen.end(status.Error(codes.FailedPrecondition, err.Error()))
		return gen
	}
	gen.step, gen.round = step, newRound(step, g.world)
	close(gen.started)
	return gen
}

// leave gives the rank's place back, or ends the generation if it had begun.
func (g *Group) leave(gen *generation, rank int, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case gen.agreed || isClosed(gen.ended):
	case !isClosed(gen.started):
		gen.hellos[rank] = nil
	case err == nil:
		gen.end(fmt.Errorf("rank %d left before step %d", rank, gen.round.step+1))
	default:
		gen.end(fmt.Errorf("rank %d is gone: %s", rank, status.Convert(err).Message()))
	}
}

// reduce adds the rank's part to the round and waits for the sum.
func (g *Group) reduce(ctx context.Context, gen *generation, rank int, part *wire.Part) (*wire.Sum, error) {
	r, err := g.contribute(gen, rank, part)
	if err != nil {
		return nil, err
	}
	if err := gen.wait(ctx, r); err != nil {
		return nil, err
	}
	return r.sum, nil
}

func (g *Group) contribute(gen *generation, rank int, part *wire.Part) (*round, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if isClosed(gen.ended) {
		return nil, gen.status()
	}
	r := gen.round
	if part.GetStep() != r.step || r.parts[rank] != nil || r.hashes[rank] != "" {
		return nil, status.Errorf(codes.InvalidArgument, "rank %d sends step %d, the group is at step %d", rank, part.GetStep(), r.step)
	}
	for other, p := range r.parts {
		if p != nil && len(p.GetGradient()) != len(part.GetGradient()) || r.hashes[other] != "" {
			return nil, status.Errorf(codes.InvalidArgument, "rank %d sends %d values at step %d, rank %d does not", rank, len(part.GetGradient()), r.step, other)
		}
	}
	r.parts[rank] = part
	r.there++
	if r.there == g.world {
		r.sum = add(r.step, r.parts)
		gen.round = newRound(r.step+1, g.world)
		close(r.complete)
	}
	return r, nil
}

// agree waits until all ranks are done and compares what they have got.
func (g *Group) agree(ctx context.Context, gen *generation, rank int, weights string) error {
	r, err := g.vote(gen, rank, weights)
	if err != nil {
		return err
	}
	return gen.wait(ctx, r)
}

func (g *Group) vote(gen *generation, rank int, weights string) (*round, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if isClosed(gen.ended) {
		return nil, gen.status()
	}
	r := gen.round
	if weights == "" || r.parts[rank] != nil || r.hashes[rank] != "" {
		return nil, status.Errorf(codes.InvalidArgument, "rank %d is done twice, or with no weights", rank)
	}
	r.hashes[rank] = weights
	r.there++
	if r.there < g.world {
		return r, nil
	}
	for other, hash := range r.hashes {
		if hash != weights {
			r.refusal = status.Errorf(codes.FailedPrecondition, "ranks %d and %d have different weights", other, rank)
		}
	}
	gen.agreed = r.refusal == nil
	close(r.complete)
	return r, nil
}
