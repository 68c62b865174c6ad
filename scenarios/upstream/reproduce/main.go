// Command reproduce runs the reproductions of package upstream, and compares
// kubelets side by side. It is what "lab reproduce" runs, which has brought the
// cluster by then.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"

	"github.com/dra-lab/dra-lab/lab/cluster"
	"github.com/dra-lab/dra-lab/lab/host"
	"github.com/dra-lab/dra-lab/lab/kubesource"
	"github.com/dra-lab/dra-lab/scenarios/kubelets"
)

func main() {
	klog.SetLogger(logr.Discard()) // client-go says in errors what matters
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	status, err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	cancel()
	switch {
	case err != nil && status == exitUsage:
		// As the lab says it, which leaves the telling to us.
		fmt.Fprintf(os.Stderr, "lab: error: %v\nlab: hint: lab reproduce list\n", err)
	case err != nil:
		if broken := (*kubesource.CompileError)(nil); errors.As(err, &broken) {
			fmt.Fprintf(os.Stderr, "reproduce: the compiler says:\n  %s\n", strings.Join(broken.Lines, "\n  "))
		}
		fmt.Fprintf(os.Stderr, "reproduce: error: %v\n", err)
		status = max(status, exitFailed)
	}
	os.Exit(status)
}

const (
	exitFailed = 1
	exitUsage  = 2
)

// program is one run of this command.
type program struct {
	out, progress  io.Writer
	output         string
	junit, cluster string
	kubelets       []kubelets.Kubelet
	all            bool
}

func run(ctx context.Context, args []string, out, progress io.Writer) (int, error) {
	verbs := map[string]func(*program, context.Context, []string) (int, error){
		"list": (*program).list, "run": (*program).reproduce,
		"kubelets": (*program).compareKubelets, "packages": (*program).comparePackages,
	}
	p := &program{out: out, progress: progress}
	var verb func(*program, context.Context, []string) (int, error)
	if len(args) > 0 {
		verb = verbs[args[0]]
	}
	if verb == nil {
		return exitUsage, errors.New("no verb: reproduce list, run, kubelets or packages, then flags and IDs")
	}
	flags := flag.NewFlagSet("reproduce "+args[0], flag.ContinueOnError)
	flags.StringVar(&p.output, "output", "text", "how to show results: text, json or markdown")
	flags.StringVar(&p.junit, "junit", "", "write a JUnit report to this `file`")
	flags.StringVar(&p.cluster, "cluster", "", "`name` of the cluster with the kubelets; empty: none, for what needs no cluster")
	flags.BoolVar(&p.all, "all", false, "compare the plugin managers of all versions that are known")
	flags.Func("kubelet", "compare this `version` only, or reproduce on it too; may be repeated", func(v string) error {
		p.kubelets = append(p.kubelets, kubelets.Kubelet{Version: v})
		return nil
	})
	flags.Func("checkout", "the same with a kubelet from a checkout of Kubernetes, as `BASE:DIR`", func(v string) error {
		base, dir, _ := strings.Cut(v, ":")
		c, err := kubesource.Open(ctx, dir, base)
		p.kubelets = append(p.kubelets, kubelets.FromCheckout(c))
		return err
	})
	if err := flags.Parse(args[1:]); err != nil {
		return exitUsage, nil // flags has said it
	}
	return verb(p, ctx, flags.Args())
}

// say tells those who wait what is being done.
func (p *program) say(format string, a ...any) {
	fmt.Fprintln(p.progress, "reproduce: "+fmt.Sprintf(format, a...))
}

// openCluster finds the lab with the kubelets.
func (p *program) openCluster(ctx context.Context) (*cluster.Cluster, error) {
	engine, err := host.FindEngine(ctx)
	if err != nil {
		return nil, err
	}
	if err := engine.Use(); err != nil {
		return nil, err
	}
	return cluster.Open(ctx, p.cluster)
}

func writeJSON(w io.Writer, value any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(value)
}
