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
	"net"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"

	"github.com/dra-lab/dra-lab/driver/api"
	"github.com/dra-lab/dra-lab/driver/internal/controller"
	"github.com/dra-lab/dra-lab/driver/internal/operation"
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
	if err := logTo(stderr, f.verbosity); err != nil {
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

// logTo sets klog up, which is configured through flags only.
func logTo(stderr io.Writer, verbosity int) error {
	fs := flag.NewFlagSet("klog", flag.ContinueOnError)
	klog.InitFlags(fs)
	for name, value := range map[string]string{"v": strconv.Itoa(verbosity), "logtostderr": "false", "alsologtostderr": "false", "stderrthreshold": "FATAL"} {
		if err := fs.Set(name, value); err != nil {
			return fmt.Errorf("set up logging: %w", err)
		}
	}
	klog.SetOutput(stderr)
	return nil
}

func serve(ctx context.Context, f flags) error {
	config, err := configure(f.kubeconfig)
	if err != nil {
		return fmt.Errorf("configure API client: %w", err)
	}
	operations, err := operation.NewClient(config)
	if err != nil {
		return err
	}
	config.ContentType = "application/vnd.kubernetes.protobuf"
	config.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("configure API client: %w", err)
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
		stop, err := listenHTTP(ctx, f.http, c)
		if err != nil {
			return err
		}
		defer stop()
	}
	return c.Run(ctx)
}

func configure(kubeconfig string) (config *rest.Config, err error) {
	if kubeconfig == "" {
		config, err = rest.InClusterConfig()
	} else {
		config, err = clientcmd.BuildConfigFromFlags("", kubeconfig)
	}
	if err != nil {
		return nil, err
	}
	config.QPS, config.Burst = 50, 100
	config.UserAgent = rest.DefaultKubernetesUserAgent()
	return config, nil
}

// listenHTTP serves in the background. An instance that waits for its turn is
// ready: it can do no more than that.
func listenHTTP(ctx context.Context, address string, c *controller.Controller) (stop func(), err error) {
	ok := func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("ok\n")) }
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+api.PathLive, ok)
	mux.HandleFunc("GET "+api.PathReady, ok)
	mux.Handle("GET "+api.PathMetrics, promhttp.HandlerFor(c.Metrics(), promhttp.HandlerOpts{}))
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("serve HTTP: %w", err)
	}
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second, WriteTimeout: 30 * time.Second, IdleTimeout: time.Minute}
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			klog.FromContext(ctx).Error(err, "Serve HTTP")
		}
	}()
	return func() {
		_ = server.Close()
		<-done
	}, nil
}
