// Package program has what the driver's programs have in common: how each logs,
// reaches the API server and serves HTTP.
package program

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/transport"
	"k8s.io/klog/v2"

	"github.com/dra-lab/dra-lab/driver/internal/operation"
)

// LogTo sets klog up, which is configured through flags only: everything goes to
// w, at this verbosity.
func LogTo(w io.Writer, verbosity int) error {
	fs := flag.NewFlagSet("klog", flag.ContinueOnError)
	klog.InitFlags(fs)
	for name, value := range map[string]string{"v": strconv.Itoa(verbosity), "logtostderr": "false", "alsologtostderr": "false", "stderrthreshold": "FATAL"} {
		if err := fs.Set(name, value); err != nil {
			return fmt.Errorf("set up logging: %w", err)
		}
	}
	klog.SetOutput(w)
	return nil
}

// Connect makes clients of the API server of a kubeconfig, or with "" of the
// cluster that the program runs in. A burst of Pods fetches as many claims at
// once, so the limits of the clients, 100 requests a second and 200 at once, are
// above client-go's. wrap may be nil.
func Connect(kubeconfig string, wrap transport.WrapperFunc) (kubernetes.Interface, operation.Client, error) {
	var config *rest.Config
	var err error
	if kubeconfig == "" {
		config, err = rest.InClusterConfig()
	} else {
		config, err = clientcmd.BuildConfigFromFlags("", kubeconfig)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("configure API client: %w", err)
	}
	config.QPS, config.Burst = 100, 200
	if wrap != nil {
		config.Wrap(wrap)
	}
	config.UserAgent = rest.DefaultKubernetesUserAgent()
	operations, err := operation.NewClient(config)
	if err != nil {
		return nil, nil, err
	}
	config.ContentType = "application/vnd.kubernetes.protobuf"
	config.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, nil, fmt.Errorf("configure API client: %w", err)
	}
	return client, operations, nil
}

// ServeHTTP serves in the background until stop is called. An error after the
// start ends up in the log, and with the probes that then fail.
func ServeHTTP(ctx context.Context, address string, handler http.Handler) (stop func(), err error) {
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("serve HTTP: %w", err)
	}
	klog.FromContext(ctx).V(2).Info("Serving HTTP", "address", listener.Addr().String())
	server := &http.Server{Handler: handler, ReadHeaderTimeout: 5 * time.Second, WriteTimeout: 30 * time.Second, IdleTimeout: time.Minute}
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
