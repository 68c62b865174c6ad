// Command lab runs the DRA lab: it brings up a real kind cluster with the
// lab's DRA driver, runs scenarios on it, breaks things and shows what
// happened. `lab --help` lists the verbs; the README has the whole story.
//
// Every verb is thin: it parses, calls one package below and prints. Results
// go to stdout, progress and problems to stderr. The exit status is 0 when the
// work is done, 1 when something failed, 2 when the command line was wrong; of
// "lab probe" also 3 when the Pod is not ready.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/dra-lab/dra-lab/lab/host/ociruntime"
	"github.com/dra-lab/dra-lab/lab/internal/ui"
	"github.com/dra-lab/dra-lab/lab/plugin"
	"github.com/dra-lab/dra-lab/lab/probe/reach"
)

func main() {
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

func run(args []string, stdout, stderr io.Writer) int {
	// Three verbs are for programs: the engine starts the one for every container,
	// the lab itself the others inside a node. Their flags and output are their
	// own.
	if len(args) > 0 {
		switch args[0] {
		case ociruntime.Verb:
			return ociruntime.Main(args[1:])
		case plugin.RelayVerb:
			return plugin.RelayMain(args[1:])
		case reach.AgentVerb:
			return reach.AgentMain()
		}
	}

	l := &lab{ui: ui.New(stdout, stderr, 0)}
	ctx, stop := l.interruptible(context.Background())
	defer stop()
	root := newRoot(l)
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := root.ExecuteContext(ctx)
	if err != nil && errors.Is(context.Cause(ctx), errInterrupted) {
		err = stopped(err)
	}
	if err != nil && ui.Hint(err) == "" {
		err = ui.WithHint(err, "\"lab doctor\" examines this machine, \"lab collect\" gathers what a cluster says")
	}
	return l.ui.Fail(err)
}

// errInterrupted is the cause of a context that Ctrl-C or SIGTERM ended.
var errInterrupted = errors.New("interrupted")

// stopped is the error of a verb that was interrupted, which may know only that
// some call of it was canceled.
func stopped(err error) error {
	if !errors.Is(err, errInterrupted) {
		err = fmt.Errorf("%w: %w", errInterrupted, err)
	}
	if ui.Hint(err) == "" {
		err = ui.WithHint(err, "run the same command again to go on")
	}
	return err
}

// interruptible returns a context that the first SIGINT or SIGTERM cancels
// with errInterrupted. A second one ends the process there and then.
func (l *lab) interruptible(parent context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(parent)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	ended := make(chan struct{})
	go func() {
		select {
		case <-signals:
			cancel(errInterrupted)
		case <-ended:
			return
		}
		select {
		case <-signals:
			os.Exit(l.ui.Fail(ui.WithHint(errors.New("interrupted again, before all was tidied up"),
				"something may be left: \"lab down\" removes it, \"lab up\" goes on")))
		case <-ended:
		}
	}()
	return ctx, func() {
		signal.Stop(signals)
		close(ended)
		cancel(nil)
	}
}

// lab is what every verb gets.
type lab struct {
	ui *ui.UI
}

func newRoot(l *lab) *cobra.Command {
	root := &cobra.Command{
		Use:   "lab",
		Short: "A lab for Kubernetes Dynamic Resource Allocation on a real kind cluster",
		Long: `A lab for Kubernetes Dynamic Resource Allocation (DRA): a real kind cluster, the lab's
own DRA driver, GPUs passed through or simulated, scenarios, faults and a timeline of
what happened between a Pod that asks for a GPU and the GPU.`,
		Example: `  lab up                 # cluster and driver
  lab run training       # the walk-through, with its timeline
  lab status             # nodes, devices, claims
  lab down               # remove it all, keep caches`,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	noun(root)
	root.SetFlagErrorFunc(wrongFlag)
	root.SetHelpCommand(newHelp())
	root.AddCommand(
		newUp(l), newDown(l), newStatus(l),
		newRun(l), newScenarios(l), newTimeline(l),
		newFault(l), newPlugin(l), newProbe(l), newReproduce(l), newExercise(l),
		newDoctor(l), newNodeImage(l), newImage(l), newManifests(l),
		newEnv(l), newKubectl(l), newCollect(l),
	)
	addCompletion(root)
	return root
}
