package allreduce

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	"github.com/dra-lab/dra-lab/scenarios/trainer/internal/allreduce/wire"
)

var (
	// ErrInterrupted says that the group broke: a rank, or rank 0's server,
	// is gone. Joining again is right.
	ErrInterrupted = errors.New("group interrupted")
	// ErrRefused says that the group does not take this rank.
	ErrRefused = errors.New("group refused the rank")
)

// Connections that are silently dead, as after a node's loss, are noticed
// within keepaliveTime plus keepaliveTimeout; gRPC allows no shorter time from
// a client.
const (
	keepaliveTime    = 10 * time.Second
	keepaliveTimeout = 3 * time.Second

	maxMessageBytes = 64 << 20
)

// ServerOptions are what a server that serves a Group needs.
func ServerOptions() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.MaxRecvMsgSize(maxMessageBytes),
		grpc.MaxConcurrentStreams(maxWorld),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: keepaliveTimeout, Timeout: keepaliveTimeout}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: keepaliveTime / 2, PermitWithoutStream: true}),
	}
}

// Connect starts to connect to rank 0 at address, "host:port". The name is
// resolved anew at each attempt: a replaced Pod has another address. It does
// not wait; Close the connection after use.
func Connect(address string) (*grpc.ClientConn, error) {
	conn, err := grpc.NewClient("passthrough:///"+address,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 500 * time.Millisecond},
			MinConnectTimeout: 2 * time.Second,
		}),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: keepaliveTime, Timeout: keepaliveTimeout}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessageBytes)),
	)
	if err != nil {
		return nil, fmt.Errorf("connect to rank 0 at %q: %w", address, err)
	}
	conn.Connect()
	return conn, nil
}

// Hello is how a rank introduces itself.
type Hello struct {
	Rank, World int
	Run         string
	Settings    string
	Checkpoints map[int64]string // step to hash of the parameters
}

// Member is a rank's place in one generation. It is not safe for concurrent
// use.
type Member struct {
	stream wire.AllReduce_TrainClient
	cancel context.CancelFunc

	// Generation counts how often the group has formed, from 1.
	Generation int64
	// Step is where all ranks begin: the newest checkpoint that all have, or
	// 0.
	Step int64
}

// Join waits until all ranks are there, for as long as ctx allows. That rank 0
// cannot be reached is ErrInterrupted with the reason: try again. Close the
// member in any case, unless there is an error.
func Join(ctx context.Context, conn grpc.ClientConnInterface, hello Hello) (*Member, error) {
	ctx, cancel := context.WithCancel(ctx)
	m, err := join(ctx, conn, hello)
	if err != nil {
		cancel()
		return nil, fmt.Errorf("join group: %w", err)
	}
	m.cancel = cancel
	return m, nil
}

func join(ctx context.Context, conn grpc.ClientConnInterface, hello Hello) (*Member, error) {
	stream, err := wire.NewAllReduceClient(conn).Train(ctx)
	if err != nil {
		return nil, classify(err)
	}
	message := &wire.Hello{Rank: int32(hello.Rank), World: int32(hello.World), Run: hello.Run, Settings: hello.Settings}
	for step, weights := range hello.Checkpoints {
		message.Checkpoints = append(message.Checkpoints, &wire.Checkpoint{Step: step, Weights: weights})
	}
	m := &Member{stream: stream}
	answer, err := m.call(&wire.FromRank{Kind: &wire.FromRank_Hello{Hello: message}})
	if err != nil {
		return nil, err
	}
	start := answer.GetStart()
	if start == nil {
		return nil, fmt.Errorf("unexpected answer %T to hello", answer.GetKind())
	}
	m.Generation, m.Step = start.GetGeneration(), start.GetStep()
	return m, nil
}

// Sum is what all ranks' parts of a step add up to.
type Sum struct {
	Loss     float64
	Gradient []float64
	// Checkpoint says that a rank leaves after this step: write one now.
	Checkpoint bool
}

// Reduce gives the rank's part of step and waits for the sum. leaving says that
// the rank goes after this step. gradient is not kept.
func (m *Member) Reduce(step int64, loss float64, gradient []float64, leaving bool) (Sum, error) {
	answer, err := m.call(&wire.FromRank{Kind: &wire.FromRank_Part{
		Part: &wire.Part{Step: step, Loss: loss, Gradient: gradient, Leaving: leaving},
	}})
	if err != nil {
		return Sum{}, fmt.Errorf("add gradients of step %d: %w", step, err)
	}
	sum := answer.GetSum()
	if sum.GetStep() != step || len(sum.GetGradient()) != len(gradient) {
		return Sum{}, fmt.Errorf("add gradients of step %d: unexpected answer %T", step, answer.GetKind())
	}
	return Sum{Loss: sum.GetLoss(), Gradient: sum.GetGradient(), Checkpoint: sum.GetCheckpoint()}, nil
}

// Done says that the rank has made all steps, and waits until all ranks say so,
// with the same weights.
func (m *Member) Done(weights string) error {
	answer, err := m.call(&wire.FromRank{Kind: &wire.FromRank_Done{Done: &wire.Done{Weights: weights}}})
	if err != nil {
		return fmt.Errorf("agree on the weights: %w", err)
	}
	if got := answer.GetAgreed().GetWeights(); got != weights {
		return fmt.Errorf("agree on the weights: %w: they have %q, this rank %q", ErrRefused, got, weights)
	}
	return nil
}

// Close leaves the group and waits until the stream is over, so that rank 0
// knows. It must be called once.
func (m *Member) Close() {
	defer m.cancel()
	if m.stream.CloseSend() != nil {
		return
	}
	for {
		if _, err := m.stream.Recv(); err != nil {
			return
		}
	}
}

func (m *Member) call(message *wire.FromRank) (*wire.ToRank, error) {
	// The reason why sending fails comes with the next Recv.
	if err := m.stream.Send(message); err != nil && !errors.Is(err, io.EOF) {
		return nil, classify(err)
	}
	answer, err := m.stream.Recv()
	if err != nil {
		return nil, classify(err)
	}
	return answer, nil
}

// classify tells what joining again can mend from what it cannot.
func classify(err error) error {
	s := status.Convert(err)
	switch s.Code() {
	case codes.InvalidArgument, codes.FailedPrecondition, codes.Unimplemented, codes.ResourceExhausted:
		return fmt.Errorf("%w: %s", ErrRefused, s.Message())
	case codes.Canceled:
		return context.Canceled
	case codes.DeadlineExceeded:
		return context.DeadlineExceeded
	}
	return interruption{s.Message()}
}

// interruption is an ErrInterrupted with its reason.
type interruption struct{ reason string }

func (i interruption) Error() string { return ErrInterrupted.Error() + ": " + i.reason }

func (i interruption) Is(target error) bool { return target == ErrInterrupted }

// Reason is why an ErrInterrupted came, without the steps that led there; of
// another error it is the error's text.
func Reason(err error) string {
	if i := (interruption{}); errors.As(err, &i) {
		return i.reason
	}
	return err.Error()
}
