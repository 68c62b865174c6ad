package job

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"

	"github.com/dra-lab/dra-lab/lab/timeline/workload"
	"github.com/dra-lab/dra-lab/scenarios/trainer/internal/allreduce"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// small is a job of a second or less.
func small() Settings {
	return Settings{World: 2, Seed: 4, Points: 300, Hidden: 16, Batch: 64, Steps: 120, Rate: 0.3}
}

func brisk() Pace {
	return Pace{Checkpoint: 10, Report: 1, Patience: time.Minute, Grace: 10 * time.Second}
}

func TestAllRanksEndAsTheReference(t *testing.T) {
	for _, world := range []int{1, 2, 3} {
		t.Run(fmt.Sprintf("%d ranks", world), func(t *testing.T) {
			settings := small()
			settings.World = world
			cluster := newCluster(t, settings, brisk())
			for rank := range world {
				cluster.start(rank)
			}
			cluster.checkDone()
		})
	}
}

func TestTrainingLearns(t *testing.T) {
	result, err := Reference(Settings{World: 2, Seed: 1, Points: 1000, Hidden: 32, Batch: 128, Steps: 500, Rate: 0.4})
	if err != nil {
		t.Fatal(err)
	}
	if result.Loss > 0.1*result.FirstLoss || result.Accuracy < 0.9 {
		t.Errorf("loss from %g to %g, accuracy %g: want a tenth of the loss and 0.9", result.FirstLoss, result.Loss, result.Accuracy)
	}
}

func TestAKilledRankChangesNothingInTheResult(t *testing.T) {
	for _, c := range []struct {
		rank int
		step int64
	}{{1, 3}, {1, 35}, {1, 40}, {1, 119}, {0, 3}, {0, 55}, {0, 119}} {
		t.Run(fmt.Sprintf("rank %d at step %d", c.rank, c.step), func(t *testing.T) {
			// Given a job of two ranks,
			cluster := newCluster(t, small(), brisk())
			cluster.start(0)
			cluster.start(1)
			// when one is killed in the middle and replaced,
			cluster.waitFor(c.rank, func(l workload.Line) bool { return l.Step >= c.step })
			cluster.kill(c.rank)
			cluster.start(c.rank)
			// then both end with the reference's weights.
			cluster.checkDone()
		})
	}
}

func TestRanksKilledOneAfterTheOtherChangeNothingInTheResult(t *testing.T) {
	cluster := newCluster(t, small(), brisk())
	cluster.start(0)
	cluster.start(1)
	for i, step := range []int64{15, 30, 45, 60, 75} {
		rank := i % 2
		cluster.waitFor(rank, func(l workload.Line) bool { return l.Step >= step })
		cluster.kill(rank)
		cluster.start(rank)
	}
	cluster.checkDone()
}

func TestStepsThatAreMadeAgainAreProgress(t *testing.T) {
	// Given a job without checkpoints, which begins anew when a rank is killed,
	pace := brisk()
	pace.Checkpoint, pace.Step = 1000, 5*time.Millisecond
	cluster := newCluster(t, small(), pace)
	cluster.start(0)
	// when rank 1 is killed late, and its replacement early,
	for _, step := range []int64{100, 20} {
		cluster.start(1)
		cluster.waitFor(1, func(l workload.Line) bool { return l.Step >= step })
		cluster.kill(1)
	}
	// then rank 0 takes that for progress too: else its patience would end
	// although the job goes on.
	cluster.waitFor(0, func(l workload.Line) bool { return l.Event == workload.EventInterrupted && l.Step < 90 })
	cluster.start(1)
	cluster.checkDone()
}

func TestALeavingRankLosesNoStep(t *testing.T) {
	// Given a job whose checkpoints are further apart than its end,
	pace := brisk()
	pace.Checkpoint = 1000
	cluster := newCluster(t, small(), pace)
	cluster.start(0)
	cluster.start(1)

	// when rank 1 is asked to leave,
	cluster.waitFor(1, func(l workload.Line) bool { return l.Step >= 30 })
	cluster.leave(1)
	if err := cluster.wait(1); !errors.Is(err, ErrLeft) {
		t.Fatalf("rank 1 ended with %v, want %v", err, ErrLeft)
	}
	left := cluster.waitFor(1, func(l workload.Line) bool { return l.Event == workload.EventLeaving })

	// then its replacement resumes exactly there.
	cluster.start(1)
	resumed := cluster.waitFor(1, func(l workload.Line) bool { return l.Event == workload.EventResumed })
	if resumed.Step != left.Step {
		t.Errorf("left at step %d, resumed at %d", left.Step, resumed.Step)
	}
	cluster.checkDone()
}

func TestARankThatWaitsForPeersLeavesAtOnce(t *testing.T) {
	cluster := newCluster(t, small(), brisk())
	cluster.start(0)
	cluster.waitFor(0, func(l workload.Line) bool { return l.Event == workload.EventWaiting })
	cluster.leave(0)
	if err := cluster.wait(0); !errors.Is(err, ErrLeft) {
		t.Errorf("rank 0 ended with %v, want %v", err, ErrLeft)
	}
}

func TestARankGivesUpWhenItsPeersDoNotCome(t *testing.T) {
	pace := brisk()
	pace.Patience = 50 * time.Millisecond
	cluster := newCluster(t, small(), pace)
	cluster.start(0)
	if err := cluster.wait(0); err == nil || errors.Is(err, ErrLeft) {
		t.Errorf("rank 0 ended with %v, want an error about its peers", err)
	}
}

func TestAReplacementThatComesAfterTheEndTakesTheResult(t *testing.T) {
	// Given a job that is done,
	cluster := newCluster(t, small(), brisk())
	cluster.start(0)
	cluster.start(1)
	cluster.checkDone()
	// when rank 1 runs again, with nobody there any more,
	cluster.start(1)
	// then it is done at once.
	cluster.checkDone()
}

func TestCheckpointsOfAnotherJobAreNotUsed(t *testing.T) {
	cluster := newCluster(t, small(), brisk())
	cluster.start(0)
	cluster.start(1)
	cluster.checkDone()

	cluster.settings.Seed++
	cluster.run = "later"
	cluster.start(0)
	cluster.start(1)
	cluster.checkDone()
}

// cluster runs ranks as goroutines that talk over loopback; rank 0's server
// lives and dies with it, at one address, as behind a Service.
type cluster struct {
	t        *testing.T
	settings Settings
	pace     Pace
	run      string
	volume   string
	address  string

	mu      sync.Mutex
	changed chan struct{} // closed and replaced at each line
	lines   map[int][]workload.Line
	ranks   map[int]*process
}

type process struct {
	kill   context.CancelFunc
	leave  chan struct{}
	ended  chan struct{}
	result Result
	err    error
}

func newCluster(t *testing.T, settings Settings, pace Pace) *cluster {
	t.Helper()
	listener := listen(t, "127.0.0.1:0")
	c := &cluster{
		t: t, settings: settings, pace: pace, run: "run", volume: t.TempDir(), address: listener.Addr().String(),
		changed: make(chan struct{}), lines: map[int][]workload.Line{}, ranks: map[int]*process{},
	}
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for rank := range c.ranks {
			c.kill(rank)
		}
	})
	return c
}

// start runs a rank anew; its lines so far are forgotten.
func (c *cluster) start(rank int) {
	c.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	p := &process{kill: cancel, leave: make(chan struct{}), ended: make(chan struct{})}
	c.mu.Lock()
	c.ranks[rank] = p
	c.lines[rank] = nil
	c.mu.Unlock()
	var server *grpc.Server
	served := make(chan error, 1)
	if rank == 0 {
		group, err := allreduce.NewGroup(c.settings.World)
		if err != nil {
			c.t.Fatal(err)
		}
		server = grpc.NewServer(allreduce.ServerOptions()...)
		group.Register(server)
		listener := listen(c.t, c.address)
		go func() { served <- server.Serve(listener) }()
	}
	conn, err := allreduce.Connect(c.address)
	if err != nil {
		c.t.Fatal(err)
	}
	go func() {
		defer close(p.ended)
		r := Rank{Settings: c.settings, Pace: c.pace, Rank: rank, Run: c.run, Volume: c.volume, Conn: conn, Emit: func(l workload.Line) { c.add(rank, l) }}
		p.result, p.err = r.Train(ctx, p.leave)
		if server != nil {
			if ctx.Err() != nil {
				server.Stop()
			}
			server.GracefulStop()
			p.err = errors.Join(p.err, <-served)
		}
		p.err = errors.Join(p.err, conn.Close())
		c.add(rank, workload.Line{Event: "ended"})
	}()
}

func (c *cluster) add(rank int, line workload.Line) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lines[rank] = append(c.lines[rank], line)
	close(c.changed)
	c.changed = make(chan struct{})
}

// kill ends a rank at once, whatever it does, as SIGKILL would.
func (c *cluster) kill(rank int) {
	c.ranks[rank].kill()
	<-c.ranks[rank].ended
}

func (c *cluster) leave(rank int) { close(c.ranks[rank].leave) }

func (c *cluster) wait(rank int) error {
	<-c.ranks[rank].ended
	return c.ranks[rank].err
}

// waitFor waits until the rank has emitted a line of the kind.
func (c *cluster) waitFor(rank int, is func(workload.Line) bool) workload.Line {
	c.t.Helper()
	for {
		c.mu.Lock()
		lines, changed := c.lines[rank], c.changed
		c.mu.Unlock()
		for _, line := range lines {
			if is(line) {
				return line
			}
			if line.Event == "ended" {
				c.t.Fatalf("rank %d ended (%v) before the line came: %v", rank, c.ranks[rank].err, lines)
			}
		}
		<-changed
	}
}

func (c *cluster) checkDone() {
	c.t.Helper()
	want, err := Reference(c.settings)
	if err != nil {
		c.t.Fatal(err)
	}
	for rank := range c.ranks {
		if err := c.wait(rank); err != nil {
			c.t.Errorf("rank %d: %v", rank, err)
		} else if got := c.ranks[rank].result; got != want {
			c.t.Errorf("rank %d ended with %+v, want %+v", rank, got, want)
		}
	}
}

func listen(t *testing.T, address string) net.Listener {
	t.Helper()
	listener, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	return listener
}
