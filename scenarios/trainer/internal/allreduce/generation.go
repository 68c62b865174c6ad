package allreduce

import (
	"context"
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/dra-lab/dra-lab/scenarios/trainer/internal/allreduce/wire"
)

// generation is a group from its first Hello to its end. Its fields are
// guarded by the Group's mutex, except that what a closed channel announces is
// only read.
type generation struct {
	number  int64
	hellos  []*wire.Hello // by rank, nil until the rank is there
	started chan struct{} // closed when all ranks are there
	step    int64         // where it begins; valid when started
	ended   chan struct{} // closed when it broke
	cause   error         // why; valid when ended
	round   *round        // the parts of the step being added
	agreed  bool          // all ranks are done: whoever goes now breaks nothing
}

// round collects one message of each rank.
type round struct {
	step     int64
	parts    []*wire.Part
	hashes   []string
	there    int
	complete chan struct{} // closed when all are there and the result is set
	sum      *wire.Sum
	refusal  error
}

func newGeneration(number int64, world int) *generation {
	return &generation{
		number:  number,
		hellos:  make([]*wire.Hello, world),
		started: make(chan struct{}),
		ended:   make(chan struct{}),
	}
}

func newRound(step int64, world int) *round {
	return &round{
		step:     step,
		parts:    make([]*wire.Part, world),
		hashes:   make([]string, world),
		complete: make(chan struct{}),
	}
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// end breaks the generation, once.
func (gen *generation) end(cause error) {
	if isClosed(gen.ended) {
		return
	}
	gen.cause = cause
	close(gen.ended)
}

// status is how the end of the generation is told to a rank.
func (gen *generation) status() error {
	if code := status.Code(gen.cause); code != codes.Unknown {
		return gen.cause
	}
	return status.Errorf(codes.Aborted, "%v", gen.cause)
}

// wait blocks until the round is complete. A complete round counts even if the
// generation has broken since: a rank that leaves after a step must not take
// that step from the others.
func (gen *generation) wait(ctx context.Context, r *round) error {
	select {
	case <-r.complete:
	case <-gen.ended:
		if !isClosed(r.complete) {
			return gen.status()
		}
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	}
	return r.refusal
}

// common is the newest step for which all ranks have a checkpoint, 0 when there
// is none. That two ranks have different parameters for one step is an error:
// rolling back would not make them equal.
func common(hellos []*wire.Hello) (int64, error) {
	type holder struct {
		weights string
		rank    int
		count   int
	}
	steps := map[int64]*holder{}
	newest := int64(0)
	for rank, hello := range hellos {
		for _, c := range hello.GetCheckpoints() {
			h, ok := steps[c.GetStep()]
			if !ok {
				h = &holder{weights: c.GetWeights(), rank: rank}
				steps[c.GetStep()] = h
			}
			if h.weights != c.GetWeights() {
				return 0, fmt.Errorf("ranks %d and %d have different checkpoints of step %d", h.rank, rank, c.GetStep())
			}
			h.count++
			if h.count == len(hellos) {
				newest = max(newest, c.GetStep())
			}
		}
	}
	return newest, nil
}

// add sums the parts in the order of the ranks.
func add(step int64, parts []*wire.Part) *wire.Sum {
	sum := &wire.Sum{Step: step, Gradient: append([]float64(nil), parts[0].GetGradient()...)}
	for rank, part := range parts {
		sum.Loss += part.GetLoss()
		sum.Checkpoint = sum.Checkpoint || part.GetLeaving()
		if rank == 0 {
			continue
		}
		for i, g := range part.GetGradient() {
			sum.Gradient[i] += g
		}
	}
	return sum
}
