// Package job is one rank of a training job, from its first peer to the result.
//
// Steps are numbered from 0; the step of a checkpoint is the number of steps
// that its parameters have seen. A rank trains in the group's generations: when
// a peer goes, the generation ends, the rank waits for the replacement, and all
// go on from the newest checkpoint that all have. Because a step's batch and
// the order of additions follow from the settings alone, steps that are made
// twice come out the same.
package job

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc"

	"github.com/dra-lab/dra-lab/lab/timeline/workload"
	"github.com/dra-lab/dra-lab/scenarios/trainer/internal/checkpoint"
)

// ErrLeft says that the rank was asked to leave and did, in good order.
var ErrLeft = errors.New("asked to leave")

// Rank is one rank of a job. All fields must be set before Train.
type Rank struct {
	Settings Settings
	Pace     Pace
	Rank     int
	Run      string // unique per job
	Volume   string // where the checkpoints are
	Conn     grpc.ClientConnInterface

	// Emit gets each event, complete. It is called from Train's goroutine.
	Emit func(workload.Line)
}

// running is a Rank while it runs.
type running struct {
	Rank
	model     *model
	store     *checkpoint.Store
	firstLoss float64
	at        int64 // steps that the parameters have seen
	made      int64 // steps that this process has made, those made twice included
}

// Train trains until the result is on the volume. When leave is closed it
// finishes the step it is in, writes a checkpoint and returns ErrLeft; when ctx
// ends it stops at once.
func (r Rank) Train(ctx context.Context, leave <-chan struct{}) (Result, error) {
	if err := r.Pace.check(); err != nil {
		return Result{}, err
	}
	m, err := newModel(r.Settings)
	if err != nil {
		return Result{}, err
	}
	store, err := checkpoint.Open(r.Volume, checkpoint.Identity{Run: r.Run, Settings: r.Settings.String(), Rank: r.Rank})
	if err != nil {
		return Result{}, err
	}
	first, _, err := m.evaluate()
	if err != nil {
		return Result{}, err
	}
	t := &running{Rank: r, model: m, store: store, firstLoss: first}

	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		if wait(ctx, leave, 0) && wait(ctx, nil, r.Pace.Grace) {
			cancel(ErrLeft)
		}
	}()
	result, err := t.generations(ctx, leave)
	if err != nil && errors.Is(context.Cause(ctx), ErrLeft) {
		return Result{}, fmt.Errorf("%w, but the step did not end within %s", ErrLeft, r.Pace.Grace)
	}
	return result, err
}

func (t *running) emit(line workload.Line) {
	line.Time, line.Rank, line.World = time.Now(), t.Rank.Rank, t.Settings.World
	t.Emit(line)
}

// wait waits until c is closed or, if d is positive, for d. It is false when
// ctx ended first.
func wait(ctx context.Context, c <-chan struct{}, d time.Duration) bool {
	var after <-chan time.Time
	if d > 0 {
		timer := time.NewTimer(d)
		defer timer.Stop()
		after = timer.C
	} else if c == nil {
		return ctx.Err() == nil
	}
	select {
	case <-c:
	case <-after:
	case <-ctx.Done():
		return false
	}
	return true
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
