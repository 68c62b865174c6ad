package job

import (
	"flag"
	"fmt"
	"time"

	"github.com/dra-lab/dra-lab/scenarios/trainer/internal/data"
)

// Settings decide the result: two runs with equal settings end with
// bit-identical networks, whatever happens in between.
type Settings struct {
	World  int     // ranks, at least 1
	Seed   uint64  // of the data set and of the network
	Points int     // in the data set
	Hidden int     // width of the two hidden layers
	Batch  int     // points per step, all ranks together
	Steps  int64   // in all
	Rate   float64 // by which a step follows the mean gradient
}

// Bind declares the settings on flags, with their defaults.
func (s *Settings) Bind(flags *flag.FlagSet) {
	flags.IntVar(&s.World, "world", 2, "number of ranks")
	flags.Uint64Var(&s.Seed, "seed", 1, "seed of the data set and of the network")
	flags.IntVar(&s.Points, "points", 3000, "points in the data set")
	flags.IntVar(&s.Hidden, "hidden", 64, "width of the two hidden layers")
	flags.IntVar(&s.Batch, "batch", 512, "points per step, all ranks together")
	flags.Int64Var(&s.Steps, "steps", 600, "steps in all")
	flags.Float64Var(&s.Rate, "rate", 0.4, "learning rate")
}

// String is what ranks compare before they train together.
func (s Settings) String() string {
	type plain Settings // without this method
	return fmt.Sprintf("%+v", plain(s))
}

func (s Settings) shape() []int { return []int{data.Inputs, s.Hidden, s.Hidden, data.Classes} }

// Pace is how a rank goes about it; it does not change the result.
type Pace struct {
	// Step is the least duration of a step. The network is small enough for
	// two busy cores; without a pace it would be trained before a fault in
	// the middle of it could be watched. 0 means as fast as it goes.
	Step time.Duration
	// Checkpoint is after how many steps a checkpoint is written. At least 1.
	Checkpoint int64
	// Report is after how many steps the loss is reported. At least 1.
	Report int64
	// Patience is how long a rank waits for its peers before it gives up.
	Patience time.Duration
	// Grace is how long a rank that was asked to leave goes on to finish its
	// step.
	Grace time.Duration
}

// Bind declares the pace on flags, with its defaults.
func (p *Pace) Bind(flags *flag.FlagSet) {
	flags.DurationVar(&p.Step, "pace", 20*time.Millisecond, "least duration of a step")
	flags.Int64Var(&p.Checkpoint, "checkpoint-every", 50, "steps between checkpoints")
	flags.Int64Var(&p.Report, "report-every", 100, "steps between reports of the loss")
	flags.DurationVar(&p.Patience, "patience", 3*time.Minute, "how long to wait for other ranks before giving up")
	flags.DurationVar(&p.Grace, "grace", 10*time.Second, "how long to go on after SIGTERM to finish the step")
}

func (p Pace) check() error {
	if p.Checkpoint < 1 || p.Report < 1 || p.Patience <= 0 || p.Step < 0 || p.Grace < 0 {
		return fmt.Errorf("check pace %+v: intervals must be at least 1, durations positive", p)
	}
	return nil
}
