// Command exercise shows exercises, starts them on a cluster and checks them. It
// is what "lab exercise" runs, which has found the cluster by then: $KUBECONFIG
// names it.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/dra-lab/dra-lab/lab/host"
	"github.com/dra-lab/dra-lab/scenarios/exercises"
	"github.com/dra-lab/dra-lab/scenarios/exercises/lesson"
)

const (
	exitDone   = 0
	exitFailed = 1 // an error, or a check that does not hold yet
	exitUsage  = 2
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	status, err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	if err != nil {
		fmt.Fprintf(os.Stderr, "lab: error: %v\n", err)
		status = max(status, exitFailed)
	}
	os.Exit(status)
}

// program is one run of this command.
type program struct {
	out, progress io.Writer
	output        string
	dir           string // in which exercises have their folders
	apply         bool
	all           []lesson.Exercise
	room          *lesson.Room
}

func run(ctx context.Context, args []string, out, progress io.Writer) (int, error) {
	p := &program{out: out, progress: progress}
	verbs := map[string]func(context.Context, []string) (int, error){
		"list": p.list, "start": p.start, "status": p.status, "check": p.check,
		"hint": p.hint, "solution": p.solution, "reset": p.reset,
	}
	if len(args) == 0 || verbs[args[0]] == nil {
		return exitUsage, fmt.Errorf("no verb: want one of %s", strings.Join(slices.Sorted(maps.Keys(verbs)), ", "))
	}
	flags := flag.NewFlagSet("exercise "+args[0], flag.ContinueOnError)
	flags.StringVar(&p.output, "output", "text", "how to show results: text or json")
	flags.StringVar(&p.dir, "dir", "exercises", "`folder` in which the exercises' files are")
	flags.BoolVar(&p.apply, "apply", false, "apply the solution")
	if err := flags.Parse(args[1:]); err != nil {
		return exitUsage, nil // flags has said it
	}
	var err error
	if p.all, err = exercises.All(); err != nil {
		return exitFailed, err
	}
	if args[0] != "list" {
		if err := p.enter(ctx); err != nil {
			return exitFailed, err
		}
	}
	return verbs[args[0]](ctx, flags.Args())
}

// enter connects to the cluster.
func (p *program) enter(ctx context.Context) error {
	config, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	if err != nil {
		return fmt.Errorf("read kubeconfig: %w", err)
	}
	p.room, err = lesson.Enter(ctx, config)
	return err
}

// chosen is the exercise that the arguments name, or the one that was started
// last.
func (p *program) chosen(ctx context.Context, args []string) (lesson.Exercise, lesson.Progress, error) {
	progress, err := p.room.Progress(ctx)
	if err != nil {
		return lesson.Exercise{}, progress, err
	}
	id := progress.Current
	if len(args) > 0 {
		id = args[0]
	}
	if id == "" {
		return lesson.Exercise{}, progress, errors.New("no exercise was started yet: \"lab exercise list\" shows them, \"lab exercise start 1\" starts the first")
	}
	e, err := exercises.Find(p.all, id)
	return e, progress, err
}

func (p *program) list(context.Context, []string) (int, error) {
	if p.output == "json" {
		type entry struct {
			Number  int    `json:"number"`
			Name    string `json:"name"`
			Title   string `json:"title"`
			Minutes int    `json:"minutes"`
		}
		var all []entry
		for _, e := range p.all {
			all = append(all, entry{e.Number, e.Name, e.Title, e.Minutes})
		}
		return exitDone, p.json(all)
	}
	w := tabwriter.NewWriter(p.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "NUMBER\tNAME\tMINUTES\tTITLE")
	for _, e := range p.all {
		fmt.Fprintf(w, "%d\t%s\t%d\t%s\n", e.Number, e.Name, e.Minutes, e.Title)
	}
	return exitDone, w.Flush()
}

func (p *program) start(ctx context.Context, args []string) (int, error) {
	e, _, err := p.chosen(ctx, args)
	if err != nil {
		return exitFailed, err
	}
	if err := p.begin(ctx, e); err != nil {
		return exitFailed, err
	}
	fmt.Fprintf(p.out, "%s\n", e.Text)
	if len(e.Draft) > 0 {
		fmt.Fprintf(p.out, "Your files:  %s\n", filepath.Join(p.dir, e.Folder()))
	}
	fmt.Fprintf(p.out, `Namespace:   %[1]s
             eval "$(lab env)"; kubectl config set-context --current --namespace=%[1]s
             kubectl apply -f FILE
Then:        lab exercise check   (and lab exercise hint when you are stuck)
`, e.Namespace())
	return exitDone, nil
}

// begin puts the exercise's start onto the cluster and its files onto the disk,
// where those that are there already stay.
func (p *program) begin(ctx context.Context, e lesson.Exercise) error {
	if err := p.room.Begin(ctx, e); err != nil {
		return err
	}
	if err := p.files(e, false); err != nil {
		return err
	}
	return p.room.Remember(ctx, func(progress *lesson.Progress) {
		step := progress.Of[e.Name]
		if step.Started.IsZero() {
			step.Started = time.Now().UTC().Truncate(time.Second)
		}
		progress.Of[e.Name], progress.Current = step, e.Name
	})
}

// files writes what the learner begins with. A file that is there already is the
// learner's: it stays, or with anew is kept beside the new one.
func (p *program) files(e lesson.Exercise, anew bool) error {
	for name, content := range e.Draft {
		path := filepath.Join(p.dir, e.Folder(), name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return fmt.Errorf("make folder of exercise: %w", err)
		}
		content = p.room.Fill(content)
		have, err := os.ReadFile(path)
		switch {
		case err == nil && string(have) == content:
			continue
		case err == nil && !anew:
			fmt.Fprintf(p.progress, "lab: %s stays as you left it\n", path)
			continue
		case err == nil:
			if err := os.Rename(path, path+".old"); err != nil {
				return fmt.Errorf("keep your file: %w", err)
			}
			fmt.Fprintf(p.progress, "lab: your %s is now %s.old\n", path, path)
		case !os.IsNotExist(err):
			return fmt.Errorf("read file of exercise: %w", err)
		}
		if err := host.WriteFile(path, []byte(content), 0o644); err != nil {
			return fmt.Errorf("write file of exercise: %w", err)
		}
	}
	return nil
}

func (p *program) status(ctx context.Context, _ []string) (int, error) {
	progress, err := p.room.Progress(ctx)
	if err != nil {
		return exitFailed, err
	}
	if p.output == "json" {
		return exitDone, p.json(progress)
	}
	w := tabwriter.NewWriter(p.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "NUMBER\tNAME\tSTATE\tHINTS")
	for _, e := range p.all {
		step := progress.Of[e.Name]
		state := "not started"
		switch {
		case !step.Solved.IsZero():
			state = "solved " + step.Solved.Format("2006-01-02 15:04") + " UTC"
		case !step.Started.IsZero():
			state = "started " + step.Started.Format("2006-01-02 15:04") + " UTC"
		}
		if e.Name == progress.Current {
			state += ", current"
		}
		fmt.Fprintf(w, "%d\t%s\t%s\t%d of %d\n", e.Number, e.Name, state, step.Hints, len(e.Hints))
	}
	return exitDone, w.Flush()
}

func (p *program) check(ctx context.Context, args []string) (int, error) {
	e, _, err := p.chosen(ctx, args)
	if err != nil {
		return exitFailed, err
	}
	found, err := p.room.Check(ctx, e)
	if apierrors.IsNotFound(err) {
		return exitFailed, fmt.Errorf("exercise %s was not started on this cluster: lab exercise start %d", e.Name, e.Number)
	}
	if err != nil {
		return exitFailed, err
	}
	solved := lesson.Solved(found)
	if solved {
		err = p.room.Remember(ctx, func(progress *lesson.Progress) {
			step := progress.Of[e.Name]
			if step.Solved.IsZero() {
				step.Solved = time.Now().UTC().Truncate(time.Second)
			}
			progress.Of[e.Name] = step
		})
	}
	if p.output == "json" {
		err = errors.Join(err, p.json(found))
	} else {
		p.show(e, found, solved)
	}
	if !solved || err != nil {
		return exitFailed, err
	}
	return exitDone, nil
}

func (p *program) show(e lesson.Exercise, found []lesson.Finding, solved bool) {
	missing := 0
	for _, f := range found {
		mark := "✓"
		if !f.Holds {
			mark = "✗"
			missing++
		}
		fmt.Fprintf(p.out, "%s %s\n", mark, f.Text)
	}
	if !solved {
		fmt.Fprintf(p.out, "%d of %d still to come\n", missing, len(found))
		return
	}
	fmt.Fprintf(p.out, "Exercise %d is solved.", e.Number)
	if e.Number < len(p.all) {
		fmt.Fprintf(p.out, " The next is %q: lab exercise start %d", p.all[e.Number].Title, e.Number+1)
	}
	fmt.Fprintln(p.out)
}

func (p *program) hint(ctx context.Context, args []string) (int, error) {
	e, progress, err := p.chosen(ctx, args)
	if err != nil {
		return exitFailed, err
	}
	shown := min(progress.Of[e.Name].Hints+1, len(e.Hints))
	for i, hint := range e.Hints[:shown] {
		fmt.Fprintf(p.out, "Hint %d of %d:\n%s\n\n", i+1, len(e.Hints), hint)
	}
	if shown == len(e.Hints) {
		fmt.Fprintf(p.out, "There are no more hints. \"lab exercise solution\" shows a solution.\n")
	}
	return exitDone, p.room.Remember(ctx, func(progress *lesson.Progress) {
		step := progress.Of[e.Name]
		step.Hints = max(step.Hints, shown)
		progress.Of[e.Name] = step
	})
}

func (p *program) solution(ctx context.Context, args []string) (int, error) {
	e, _, err := p.chosen(ctx, args)
	if err != nil {
		return exitFailed, err
	}
	for _, name := range slices.Sorted(maps.Keys(e.Solution)) {
		fmt.Fprintf(p.out, "# %s\n%s", name, p.room.Fill(e.Solution[name]))
	}
	fmt.Fprint(p.out, e.Commands)
	if !p.apply {
		return exitDone, nil
	}
	if e.Commands != "" && e.Solve == nil {
		return exitFailed, errors.New("apply solution: it is something to do by hand, see above")
	}
	// What cannot be changed has to go first: Pods, claims and their templates.
	if err := p.room.Clear(ctx, e); err != nil {
		return exitFailed, err
	}
	empty := e
	empty.Start = nil
	if err := p.room.Begin(ctx, empty); err != nil {
		return exitFailed, err
	}
	if err := p.room.Apply(ctx, e, e.Solution); err != nil {
		return exitFailed, err
	}
	if e.Solve != nil {
		if err := e.Solve(ctx, p.room); err != nil {
			return exitFailed, err
		}
	}
	fmt.Fprintf(p.progress, "lab: applied in namespace %s\n", e.Namespace())
	return exitDone, nil
}

func (p *program) reset(ctx context.Context, args []string) (int, error) {
	e, _, err := p.chosen(ctx, args)
	if err != nil {
		return exitFailed, err
	}
	fmt.Fprintf(p.progress, "lab: removing namespace %s ...\n", e.Namespace())
	if err := p.room.Clear(ctx, e); err != nil {
		return exitFailed, err
	}
	if err := p.files(e, true); err != nil {
		return exitFailed, err
	}
	if err := p.room.Begin(ctx, e); err != nil {
		return exitFailed, err
	}
	fmt.Fprintf(p.progress, "lab: exercise %d begins anew\n", e.Number)
	return exitDone, p.room.Remember(ctx, func(progress *lesson.Progress) {
		progress.Of[e.Name] = lesson.Step{Started: time.Now().UTC().Truncate(time.Second)}
		progress.Current = e.Name
	})
}

func (p *program) json(v any) error {
	e := json.NewEncoder(p.out)
	e.SetIndent("", "  ")
	if err := e.Encode(v); err != nil {
		return fmt.Errorf("show result: %w", err)
	}
	return nil
}
