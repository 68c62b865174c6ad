// Command controller is the second component of the DRA driver: one in the
// cluster that leads, others that wait. It publishes the GPUs that belong to no
// node, has them attached where they are needed, and has GPUs repaired. See
// package driver/internal/controller.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"syscall"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"

	"github.com/dra-lab/dra-lab/driver/api"
	"github.com/dra-lab/dra-lab/driver/internal/controller"
	"github.com/dra-lab/dra-lab/driver/internal/program"
)

// Exit statuses.
const (
	exitDone   = 0 // asked to stop
	exitFailed = 1 // a fatal error, which is the last line on stderr
	exitUsage  = 2
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stderr)
	stop()
	os.Exit(code)
}

// flags are the command line.
type flags struct {
	identity, http, kubeconfig string
	fabricDevices              int
	verbosity                  int
}

func parse(args []string, stderr io.Writer) (flags, error) {
	var f flags
	fs := flag.NewFlagSet("controller", flag.ContinueOnError)
	fs.SetOutput(stderr)
	fs.StringVar(&f.identity, "identity", os.Getenv("POD_NAME"), "`name` of this instance in the election ($POD_NAME)")
	fs.IntVar(&f.fabricDevices, "fabric-devices", 4, "`number` of simulated network-attached GPUs")
	fs.StringVar(&f.http, "http", ":8080", "`address` for "+api.PathLive+", "+api.PathReady+" and "+api.PathMetrics+"; empty for none")
	fs.StringVar(&f.kubeconfig, "kubeconfig", "", "`file` to reach the API server with; empty inside a cluster")
	fs.IntVar(&f.verbosity, "v", 0, "`level` of logging on stderr")
	if err := fs.Parse(args); err != nil {
		return f, err
	}
	switch {
	case fs.NArg() > 0:
		return f, fmt.Errorf("unexpected argument %q", fs.Arg(0))
	case f.identity == "":
		return f, errors.New("no identity: set -identity or $POD_NAME")
	}
	return f, nil
}

func run(ctx context.Context, args []string, stderr io.Writer) int {
	f, err := parse(args, stderr)
	if errors.Is(err, flag.ErrHelp) {
		return exitDone
	}
	if err != nil {
		fmt.Fprintf(stderr, "controller: error: %v\n", err)
		return exitUsage
	}
	if err := program.LogTo(stderr, f.verbosity); err != nil {
		fmt.Fprintf(stderr, "controller: error: %v\n", err)
		return exitFailed
	}
	defer klog.Flush()
	if err := serve(ctx, f); err != nil {
		klog.Flush()
		fmt.Fprintf(stderr, "controller: error: %v\n", err)
		return exitFailed
	}
	return exitDone
}

func serve(ctx context.Context, f flags) error {
	client, operations, err := program.Connect(f.kubeconfig, nil)
	if err != nil {
		return err
	}
	broadcaster := events.NewBroadcaster(&events.EventSinkImpl{Interface: client.EventsV1()})
	defer broadcaster.Shutdown()
	if err := broadcaster.StartRecordingToSinkWithContext(ctx); err != nil {
		return fmt.Errorf("record events: %w", err)
	}
	c, err := controller.New(controller.Config{
		Client: client, Operations: operations,
		Events:        broadcaster.NewRecorder(scheme.Scheme, "controller."+api.DriverName),
		FabricDevices: f.fabricDevices, Identity: f.identity,
	})
	if err != nil {
		return err
	}
	if f.http != "" {
		stop, err := program.ServeHTTP(ctx, f.http, handler(c))
		if err != nil {
			return err
		}
		defer stop()
	}
	return c.Run(ctx)
}

// handler answers for one instance. One that waits for its turn is ready: it can
// do no more than that.
func handler(c *controller.Controller) http.Handler {
	ok := func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("ok\n")) }
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+api.PathLive, ok)
	mux.HandleFunc("GET "+api.PathReady, ok)
	mux.Handle("GET "+api.PathMetrics, promhttp.HandlerFor(c.Metrics(), promhttp.HandlerOpts{}))
	return mux
}
