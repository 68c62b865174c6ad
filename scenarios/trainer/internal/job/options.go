package job

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"strconv"
)

// Options are where a trainer runs and with what.
type Options struct {
	Rank    int    // from the Job's completion index unless set
	Run     string // unique per job
	Volume  string
	Listen  string // rank 0's own address
	Address string // rank 0 as its peers reach it
	Devices int    // GPUs that the claim promises
	Memory  uint64 // bytes used on each GPU; 0 is no user of it
	Hold    bool   // use the GPUs until SIGTERM instead of training
}

// Bind declares the options on flags, with their defaults.
func (o *Options) Bind(flags *flag.FlagSet) {
	flags.IntVar(&o.Rank, "rank", -1, "this process's rank ($JOB_COMPLETION_INDEX)")
	flags.StringVar(&o.Run, "run", "", "what tells this job from earlier ones on the volume ($TRAINER_RUN)")
	flags.StringVar(&o.Volume, "volume", "/checkpoints", "folder that all ranks share")
	flags.StringVar(&o.Listen, "listen", ":7070", "address on which rank 0 serves")
	flags.StringVar(&o.Address, "address", "localhost:7070", "address at which rank 0 is reached")
	flags.IntVar(&o.Devices, "devices", 1, "GPUs that the claim promises; 0 trains without")
	flags.Uint64Var(&o.Memory, "gpu-memory", 2<<30, "bytes to use on each simulated GPU; 0 only looks at them")
	flags.BoolVar(&o.Hold, "hold", false, "do not train: use the GPUs until SIGTERM")
}

// Complete takes what no flag set from the environment and checks the rest.
func (o *Options) Complete(world int) error {
	if index := os.Getenv("JOB_COMPLETION_INDEX"); o.Rank < 0 && index != "" {
		rank, err := strconv.Atoi(index)
		if err != nil {
			return fmt.Errorf("read JOB_COMPLETION_INDEX: %w", err)
		}
		o.Rank = rank
	}
	if o.Run == "" {
		o.Run = os.Getenv("TRAINER_RUN")
	}
	switch {
	case o.Hold:
		o.Rank = max(o.Rank, 0)
	case o.Rank < 0 || o.Rank >= world:
		return fmt.Errorf("rank %d of %d: set -rank or JOB_COMPLETION_INDEX", o.Rank, world)
	case o.Run == "":
		return errors.New("no run: set -run or TRAINER_RUN")
	}
	return nil
}
