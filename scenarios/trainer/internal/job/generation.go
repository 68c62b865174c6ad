package job

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/dra-lab/dra-lab/lab/timeline/workload"
	"github.com/dra-lab/dra-lab/scenarios/trainer/internal/allreduce"
	"github.com/dra-lab/dra-lab/scenarios/trainer/internal/checkpoint"
	"github.com/dra-lab/dra-lab/scenarios/trainer/internal/net"
)

// retryDelay spaces attempts to join; it bounds the work of a rank whose group
// breaks at once each time.
const retryDelay = 100 * time.Millisecond

// saySpacing is how often a rank that waits says why, at most.
const saySpacing = 5 * time.Second

// generations trains in one generation of the group after the other until the
// job is done. A rank gives up when no step was made for as long as its
// patience.
func (t *running) generations(ctx context.Context, leave <-chan struct{}) (Result, error) {
	deadline := time.Now().Add(t.Pace.Patience)
	t.emit(workload.Line{Event: workload.EventWaiting, Detail: "for all ranks to be there"})
	said := time.Now()
	for {
		result, done, err := t.finished()
		if done || err != nil {
			return result, err
		}
		before := t.made
		result, err = t.generation(ctx, leave, deadline)
		switch {
		case err == nil:
			return result, nil
		case !errors.Is(err, allreduce.ErrInterrupted):
			return Result{}, err
		case t.made > before:
			deadline = time.Now().Add(t.Pace.Patience)
			t.emit(workload.Line{Event: workload.EventInterrupted, Step: t.at, Detail: allreduce.Reason(err)})
		case time.Since(said) > saySpacing:
			said = time.Now()
			t.emit(workload.Line{Event: workload.EventWaiting, Detail: "still: " + allreduce.Reason(err)})
		}
		if !wait(ctx, nil, retryDelay) {
			return Result{}, fmt.Errorf("wait for other ranks: %w (last: %w)", context.Cause(ctx), err)
		}
	}
}

// generation joins the group and trains until it breaks or the job is done.
func (t *running) generation(ctx context.Context, leave <-chan struct{}, deadline time.Time) (Result, error) {
	member, err := t.join(ctx, leave, deadline)
	if err != nil {
		return Result{}, err
	}
	defer member.Close()
	if err := t.restore(member.Step); err != nil {
		return Result{}, err
	}
	for t.at < t.Settings.Steps {
		if err := t.step(ctx, leave, member); err != nil {
			return Result{}, err
		}
	}
	weights := net.Hash(t.model.network.Params())
	if err := member.Done(weights); err != nil {
		return Result{}, err
	}
	return t.finish()
}

// join waits for the other ranks until the deadline, or until the rank is asked
// to leave.
func (t *running) join(ctx context.Context, leave <-chan struct{}, deadline time.Time) (*allreduce.Member, error) {
	own, err := t.checkpoints()
	if err != nil {
		return nil, err
	}
	// The member outlives this function: only waiting for the others ends
	// with leave and the deadline.
	joining, cancel := context.WithCancelCause(ctx)
	joined, settled := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(settled)
		timer := time.NewTimer(time.Until(deadline))
		defer timer.Stop()
		select {
		case <-leave:
			cancel(ErrLeft)
		case <-timer.C:
			cancel(fmt.Errorf("other ranks did not come within %s", t.Pace.Patience))
		case <-joined:
		}
	}()
	member, err := allreduce.Join(joining, t.Conn, allreduce.Hello{
		Rank: t.Rank.Rank, World: t.Settings.World, Run: t.Run, Settings: t.Settings.String(), Checkpoints: own,
	})
	close(joined)
	<-settled
	if cause := context.Cause(joining); cause != nil {
		if member != nil {
			member.Close()
		}
		return nil, fmt.Errorf("join group: %w", cause)
	}
	return member, err
}

// checkpoints are the steps that the rank can go on from, with the hashes of
// their parameters.
func (t *running) checkpoints() (map[int64]string, error) {
	steps, skipped, err := t.store.Steps()
	if err != nil {
		return nil, err
	}
	for _, reason := range skipped {
		t.emit(workload.Line{Event: workload.EventWaiting, Detail: "passed over: " + reason.Error()})
	}
	hashes := make(map[int64]string, len(steps))
	for _, step := range steps {
		params, err := t.store.Load(step)
		if err != nil {
			return nil, err
		}
		hashes[step] = net.Hash(params)
	}
	return hashes, nil
}

// restore puts the network where the group begins.
func (t *running) restore(step int64) error {
	if step == 0 {
		fresh, err := newModel(t.Settings)
		if err != nil {
			return err
		}
		t.model, t.at = fresh, 0
		t.emit(workload.Line{Event: workload.EventJoined, Detail: "all ranks are there"})
		return nil
	}
	params, err := t.store.Load(step)
	if err != nil {
		return err
	}
	if err := t.model.network.SetParams(params); err != nil {
		return err
	}
	t.at = step
	t.emit(workload.Line{Event: workload.EventResumed, Step: step, Detail: "from the newest checkpoint that all ranks have"})
	return nil
}

// step makes one step. It returns ErrLeft when the rank leaves after it.
func (t *running) step(ctx context.Context, leave <-chan struct{}, member *allreduce.Member) error {
	end := time.Now().Add(t.Pace.Step)
	loss, gradient, err := t.model.part(t.at, t.Rank.Rank)
	if err != nil {
		return err
	}
	leaving := isClosed(leave)
	sum, err := member.Reduce(t.at, loss, gradient, leaving)
	if err != nil {
		return err
	}
	if err := t.model.apply(sum.Gradient); err != nil {
		return err
	}
	t.at++
	t.made++
	line := workload.Line{Event: workload.EventStep, Step: t.at, Loss: sum.Loss / float64(t.Settings.Batch)}
	write := sum.Checkpoint || t.at%t.Pace.Checkpoint == 0 || t.at == t.Settings.Steps
	if write {
		if err := t.store.Save(t.at, t.model.network.Params()); err != nil {
			return err
		}
		line.Event = workload.EventCheckpoint
	}
	if leaving && t.at < t.Settings.Steps {
		line.Event, line.Detail = workload.EventLeaving, "the step is done and its checkpoint written"
		t.emit(line)
		return ErrLeft
	}
	if write || t.at%t.Pace.Report == 0 {
		t.emit(line)
	}
	if rest := time.Until(end); rest > 0 && !wait(ctx, leave, rest) {
		return context.Cause(ctx)
	}
	return nil
}

// finish evaluates the network that all ranks agreed on and writes the result.
func (t *running) finish() (Result, error) {
	loss, accuracy, err := t.model.evaluate()
	if err != nil {
		return Result{}, err
	}
	result := Result{FirstLoss: t.firstLoss, Loss: loss, Accuracy: accuracy, Weights: net.Hash(t.model.network.Params())}
	err = t.store.SaveResult(checkpoint.Result{
		Step: t.at, FirstLoss: result.FirstLoss, Loss: loss, Accuracy: accuracy, Weights: result.Weights,
	})
	if err != nil {
		return Result{}, err
	}
	t.emit(workload.Line{
		Event: workload.EventDone, Step: t.at, Loss: loss, FirstLoss: t.firstLoss, Accuracy: accuracy, Weights: result.Weights,
	})
	return result, nil
}

// finished looks whether the job was done before this rank came: whoever agreed
// last may have gone before its peer could read the agreement.
func (t *running) finished() (Result, bool, error) {
	found, ok, err := t.store.AnyResult(t.Settings.World)
	if err != nil || !ok {
		return Result{}, false, err
	}
	own, err := t.store.Load(t.Settings.Steps)
	if err != nil {
		return Result{}, false, fmt.Errorf("rank %d says that the job is done: %w", found.Rank, err)
	}
	if got := net.Hash(own); got != found.Weights {
		return Result{}, false, fmt.Errorf("rank %d is done with weights %s, this rank has %s", found.Rank, found.Weights, got)
	}
	if err := t.model.network.SetParams(own); err != nil {
		return Result{}, false, err
	}
	t.at = t.Settings.Steps
	result, err := t.finish()
	return result, err == nil, err
}
