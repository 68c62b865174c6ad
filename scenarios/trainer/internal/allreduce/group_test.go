package allreduce

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestSumIsTheSameForAllAndAddedInTheOrderOfRanks(t *testing.T) {
	// Given three ranks and numbers whose sum depends on the order:
	// (1e16 + 1) + -1e16 is 0, (1e16 + -1e16) + 1 is 1.
	values := []float64{1e16, 1, -1e16}
	members := joinAll(t, serve(t, 3), hellos(3)...)

	// when they reduce in whatever order they come,
	sums := make([]Sum, len(members))
	var group errgroup.Group
	for rank, m := range members {
		group.Go(func() (err error) {
			sums[rank], err = m.Reduce(0, float64(rank), []float64{values[rank], float64(rank)}, rank == 1)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}

	// then all have the sum in the order of ranks, and know that one leaves.
	want := Sum{Loss: 3, Gradient: []float64{0, 3}, Checkpoint: true}
	for rank, got := range sums {
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("rank %d (-want +got):\n%s", rank, diff)
		}
	}
}

func TestGroupBeginsAtTheNewestCommonCheckpoint(t *testing.T) {
	for name, c := range map[string]struct {
		checkpoints []map[int64]string
		want        int64
	}{
		"none":           {[]map[int64]string{nil, nil}, 0},
		"one is new":     {[]map[int64]string{{50: "a"}, nil}, 0},
		"all":            {[]map[int64]string{{50: "a", 100: "b"}, {50: "a", 100: "b"}}, 100},
		"one is behind":  {[]map[int64]string{{50: "a", 100: "b"}, {50: "a"}}, 50},
		"gap":            {[]map[int64]string{{50: "a", 100: "b"}, {100: "b", 150: "c"}}, 100},
		"nothing common": {[]map[int64]string{{50: "a"}, {100: "b"}}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			greetings := hellos(2)
			for rank := range greetings {
				greetings[rank].Checkpoints = c.checkpoints[rank]
			}
			for _, m := range joinAll(t, serve(t, 2), greetings...) {
				if m.Step != c.want {
					t.Errorf("group begins at %d, want %d", m.Step, c.want)
				}
			}
		})
	}
}

func TestWhoDoesNotFitIsRefused(t *testing.T) {
	for name, change := range map[string]func(*Hello){
		"other run":         func(h *Hello) { h.Run = "other" },
		"other settings":    func(h *Hello) { h.Settings = "other" },
		"other checkpoint":  func(h *Hello) { h.Checkpoints = map[int64]string{50: "b"} },
		"other world":       func(h *Hello) { h.World = 3 },
		"rank out of range": func(h *Hello) { h.Rank = 2 },
	} {
		t.Run(name, func(t *testing.T) {
			conn := serve(t, 2)
			greetings := hellos(2)
			greetings[0].Checkpoints = map[int64]string{50: "a"}
			change(&greetings[1])

			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			var group errgroup.Group
			group.Go(func() error {
				// Rank 0 may wait for a rank that fits for as long as it
				// likes.
				m, err := Join(ctx, conn, greetings[0])
				if err == nil {
					m.Close()
				}
				return nil
			})
			_, err := Join(ctx, conn, greetings[1])
			cancel()
			if err := group.Wait(); err != nil {
				t.Error(err)
			}
			if !errors.Is(err, ErrRefused) {
				t.Errorf("Join = %v, want %v", err, ErrRefused)
			}
		})
	}
}

func TestWhenARankGoesTheOthersLearnWhichAndMeetItsReplacement(t *testing.T) {
	// Given a group in its first step, in which rank 0 waits for rank 1,
	conn := serve(t, 2)
	members := joinAll(t, conn, hellos(2)...)
	var group errgroup.Group
	var interrupted error
	group.Go(func() error {
		_, interrupted = members[0].Reduce(0, 1, []float64{1}, false)
		return nil
	})

	// when rank 1 is gone,
	members[1].cancel()
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}

	// then rank 0 knows,
	if !errors.Is(interrupted, ErrInterrupted) || !strings.Contains(interrupted.Error(), "rank 1") {
		t.Fatalf("Reduce = %v, want %v that names rank 1", interrupted, ErrInterrupted)
	}
	// and both meet again in the next generation.
	for _, m := range joinAll(t, conn, hellos(2)...) {
		if m.Generation != 2 {
			t.Errorf("generation %d, want 2", m.Generation)
		}
	}
}

func TestAReplacementThatComesBeforeItsPredecessorIsMissedEndsTheGeneration(t *testing.T) {
	// Given a group whose rank 1 hangs, its connection still open,
	conn := serve(t, 2)
	old := joinAll(t, conn, hellos(2)...)

	// when its replacement joins and rank 0 takes its next step,
	var replacement *Member
	var group errgroup.Group
	group.Go(func() (err error) {
		replacement, err = Join(t.Context(), conn, hellos(2)[1])
		return err
	})
	_, err := old[0].Reduce(0, 1, []float64{1}, false)
	if !errors.Is(err, ErrInterrupted) {
		t.Fatalf("Reduce = %v, want %v", err, ErrInterrupted)
	}
	// then rank 0 meets the replacement.
	m, err := Join(t.Context(), conn, hellos(2)[0])
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	defer replacement.Close()
	if m.Generation != replacement.Generation {
		t.Errorf("generations %d and %d, want the same", m.Generation, replacement.Generation)
	}
}

func TestAStepThatAllHaveGivenIsNotTakenBackWhenOneLeaves(t *testing.T) {
	// The rank that leaves closes at once after its last step; the other must
	// still get the sum of that step. Repeated, because it is a race.
	conn := serve(t, 2)
	for range 50 {
		members := joinAll(t, conn, hellos(2)...)
		var group errgroup.Group
		group.Go(func() error {
			defer members[1].Close()
			_, err := members[1].Reduce(0, 1, []float64{1}, true)
			return err
		})
		sum, err := members[0].Reduce(0, 1, []float64{1}, false)
		if err != nil || !sum.Checkpoint {
			t.Fatalf("Reduce = %+v, %v, want the sum with a checkpoint", sum, err)
		}
		if err := group.Wait(); err != nil {
			t.Fatal(err)
		}
		members[0].Close()
	}
}

func TestDoneNeedsEqualWeights(t *testing.T) {
	for name, c := range map[string]struct {
		weights []string
		want    error
	}{
		"equal":     {[]string{"a", "a"}, nil},
		"different": {[]string{"a", "b"}, ErrRefused},
	} {
		t.Run(name, func(t *testing.T) {
			members := joinAll(t, serve(t, 2), hellos(2)...)
			errs := make([]error, 2)
			var group errgroup.Group
			for rank, m := range members {
				group.Go(func() error { errs[rank] = m.Done(c.weights[rank]); return nil })
			}
			if err := group.Wait(); err != nil {
				t.Fatal(err)
			}
			for rank, err := range errs {
				if !errors.Is(err, c.want) {
					t.Errorf("rank %d: Done = %v, want %v", rank, err, c.want)
				}
			}
		})
	}
}

func TestARankThatIsOutOfStepIsRefused(t *testing.T) {
	members := joinAll(t, serve(t, 2), hellos(2)...)
	if _, err := members[0].Reduce(4, 1, []float64{1}, false); !errors.Is(err, ErrRefused) {
		t.Errorf("Reduce of step 4 at step 0 = %v, want %v", err, ErrRefused)
	}
}

func TestJoinSaysWhyRankZeroIsNotReachedAndReachesItLater(t *testing.T) {
	// Given an address at which nobody serves yet, Join says so;
	listener := listen(t, "127.0.0.1:0")
	address := listener.Addr().String()
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	conn := connect(t, address)
	_, err := Join(t.Context(), conn, hellos(1)[0])
	if !errors.Is(err, ErrInterrupted) || !strings.Contains(err.Error(), "refused") {
		t.Errorf("Join = %v, want %v with the reason", err, ErrInterrupted)
	}
	// when the server comes, then the rank joins over the same connection.
	serveOn(t, 1, listen(t, address))
	for {
		member, err := Join(t.Context(), conn, hellos(1)[0])
		if err == nil {
			member.Close()
			return
		}
		if !errors.Is(err, ErrInterrupted) {
			t.Fatal(err)
		}
	}
}

func TestJoinEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := Join(ctx, serve(t, 2), hellos(2)[0]); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Join = %v, want %v", err, context.DeadlineExceeded)
	}
}

func hellos(world int) []Hello {
	greetings := make([]Hello, world)
	for rank := range greetings {
		greetings[rank] = Hello{Rank: rank, World: world, Run: "run", Settings: "settings"}
	}
	return greetings
}

func joinAll(t *testing.T, conn grpc.ClientConnInterface, greetings ...Hello) []*Member {
	t.Helper()
	members := make([]*Member, len(greetings))
	var group errgroup.Group
	for i, hello := range greetings {
		group.Go(func() (err error) {
			members[i], err = Join(t.Context(), conn, hello)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, m := range members {
			m.cancel()
		}
	})
	return members
}

func serve(t *testing.T, world int) *grpc.ClientConn {
	t.Helper()
	listener := listen(t, "127.0.0.1:0")
	serveOn(t, world, listener)
	return connect(t, listener.Addr().String())
}

func serveOn(t *testing.T, world int, listener net.Listener) {
	t.Helper()
	group, err := NewGroup(world)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(ServerOptions()...)
	group.Register(server)
	var serving errgroup.Group
	serving.Go(func() error { return server.Serve(listener) })
	t.Cleanup(func() {
		server.Stop()
		if err := serving.Wait(); err != nil {
			t.Errorf("serve: %v", err)
		}
	})
}

func listen(t *testing.T, address string) net.Listener {
	t.Helper()
	listener, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	return listener
}

func connect(t *testing.T, address string) *grpc.ClientConn {
	t.Helper()
	conn, err := Connect(address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := conn.Close(); err != nil {
			t.Errorf("close connection: %v", err)
		}
	})
	return conn
}
