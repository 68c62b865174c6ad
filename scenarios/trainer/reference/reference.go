// Package reference computes what an undisturbed training job ends with, so
// that a scenario can compare a disturbed one with it, to the bit.
package reference

import (
	"flag"
	"fmt"
	"io"

	"github.com/dra-lab/dra-lab/scenarios/trainer/internal/job"
)

// Result is what a job ends with.
type Result = job.Result

// Run computes the result of a trainer with the given command-line arguments;
// arguments that do not change the result are passed over. It takes a few
// seconds of one core.
func Run(args []string) (Result, error) {
	var settings job.Settings
	var pace job.Pace
	flags := flag.NewFlagSet("reference", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	settings.Bind(flags)
	pace.Bind(flags)
	var own job.Options
	own.Bind(flags)
	if err := flags.Parse(args); err != nil {
		return Result{}, fmt.Errorf("read trainer's arguments: %w", err)
	}
	return job.Reference(settings)
}
