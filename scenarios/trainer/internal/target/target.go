package target

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
)

// Verb is the first argument of the program that makes it be a target.
const Verb = "target"

// Exit statuses.
const (
	statusFailed = 1
	statusUsage  = 2
)

// Main is the target. It returns the exit status: when leave is closed, 0.
func Main(leave <-chan struct{}, args []string, stderr io.Writer) int {
	flags := flag.NewFlagSet(Verb, flag.ContinueOnError)
	flags.SetOutput(stderr)
	var t target
	var text, ask string
	flags.StringVar(&text, "plan", "ok@0s", "`plan` of answers")
	flags.StringVar(&t.http, "http", "", "`address` for HTTP")
	flags.StringVar(&t.https, "https", "", "`address` for HTTPS")
	flags.StringVar(&t.tcp, "tcp", "", "`address` for TCP")
	flags.StringVar(&t.grpc, "grpc", "", "`address` for gRPC")
	flags.BoolVar(&t.bare, "bare", false, "gRPC has no health service")
	flags.StringVar(&ask, "ask", "", "ask this `URL` and end")
	if err := flags.Parse(args); errors.Is(err, flag.ErrHelp) {
		return 0
	} else if err != nil {
		return statusUsage
	}
	if ask != "" {
		if err := get(ask); err != nil {
			fmt.Fprintf(stderr, "%s: %v\n", Verb, err)
			return statusFailed
		}
		return 0
	}
	var err error
	t.changed = make(chan struct{}, 1)
	if err = t.begin(text); err != nil {
		fmt.Fprintf(stderr, "%s: %v\n", Verb, err)
		return statusUsage
	}
	status, err := t.serve(leave)
	if err != nil {
		fmt.Fprintf(stderr, "%s: %v\n", Verb, err)
		return statusFailed
	}
	return status
}

// get asks as a command probe does.
func get(location string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, location, http.NoBody)
	if err != nil {
		return fmt.Errorf("ask %q: %w", location, err)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = res.Body.Close() }() // only the status matters
	if res.StatusCode < 200 || res.StatusCode > 299 {
		return fmt.Errorf("ask %q: %s", location, res.Status)
	}
	return nil
}

type target struct {
	http, https, tcp, grpc string
	bare                   bool

	mu      sync.Mutex
	plan    plan
	start   time.Time
	changed chan struct{} // gets a value when another plan has begun
}

// begin begins a plan.
func (t *target) begin(text string) error {
	p, err := parsePlan(text)
	if err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.plan, t.start = p, time.Now()
	select {
	case t.changed <- struct{}{}:
	default:
	}
	return nil
}

// now is the present step, and how long it is until the next: 0 if there is none.
func (t *target) now() (step, time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	since := time.Since(t.start)
	s, next := t.plan.at(since)
	if next == 0 {
		return s, 0
	}
	return s, next - since
}

// serve serves until leave is closed or the plan ends the process, and returns
// its exit status.
func (t *target) serve(leave <-chan struct{}) (status int, err error) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	group, ctx := errgroup.WithContext(ctx)
	if t.http != "" {
		group.Go(func() error { return t.serveHTTP(ctx, t.http, nil) })
	}
	if t.https != "" {
		certificate, err := selfSigned()
		if err != nil {
			return 0, err
		}
		group.Go(func() error {
			return t.serveHTTP(ctx, t.https, &tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS12})
		})
	}
	if t.grpc != "" {
		group.Go(func() error { return t.serveGRPC(ctx) })
	}
	group.Go(func() error {
		defer cancel()
		status, err = t.follow(ctx, leave)
		return err
	})
	return status, group.Wait()
}

// follow opens and closes the TCP port as the plan says, and returns the exit
// status when the plan or leave ends the process.
func (t *target) follow(ctx context.Context, leave <-chan struct{}) (status int, err error) {
	var open net.Listener
	defer func() {
		if open != nil {
			_ = open.Close()
		}
	}()
	for {
		s, next := t.now()
		switch {
		case s.behaviour == exit:
			return s.status, nil
		case s.behaviour == fail && open != nil:
			_ = open.Close()
			open = nil
		case s.behaviour != fail && open == nil && t.tcp != "":
			if open, err = net.Listen("tcp", t.tcp); err != nil {
				return 0, err
			}
			go acceptAll(open)
		}
		var due <-chan time.Time
		if next > 0 {
			due = time.After(next)
		}
		select {
		case <-due:
		case <-t.changed:
		case <-leave:
			return 0, nil
		case <-ctx.Done():
			return 0, nil // another part says why
		}
	}
}

// acceptAll ends with the listener.
func acceptAll(l net.Listener) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		_ = conn.Close()
	}
}

func (t *target) serveHTTP(ctx context.Context, address string, secret *tls.Config) error {
	mux := http.NewServeMux()
	mux.HandleFunc("/ok", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("/set", func(w http.ResponseWriter, r *http.Request) {
		if err := t.begin(r.FormValue("plan")); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
		}
	})
	mux.HandleFunc("/", t.answer)
	server := &http.Server{Addr: address, Handler: mux, TLSConfig: secret, ReadHeaderTimeout: time.Minute}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	serve := server.ListenAndServe
	if secret != nil {
		serve = func() error { return server.ListenAndServeTLS("", "") }
	}
	if err := serve(); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// body is the one of large.
const body = 1 << 20

func (t *target) answer(w http.ResponseWriter, r *http.Request) {
	switch s, _ := t.now(); s.behaviour {
	case fail:
		http.Error(w, "not well, as planned", http.StatusServiceUnavailable)
	case redirect:
		http.Redirect(w, r, s.location, http.StatusFound)
	case large:
		_, _ = w.Write(make([]byte, body)) // the kubelet reads its beginning
	case slow:
		wait(r.Context(), s.delay)
	}
}

func wait(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

func (t *target) serveGRPC(ctx context.Context) error {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", t.grpc)
	if err != nil {
		return err
	}
	server := grpc.NewServer()
	if !t.bare {
		healthpb.RegisterHealthServer(server, health{target: t})
	}
	stop := context.AfterFunc(ctx, server.Stop)
	defer stop()
	return server.Serve(listener)
}

// health answers by the plan for every service but "unheard", which it does not
// know.
type health struct {
	healthpb.UnimplementedHealthServer
	target *target
}

func (h health) Check(ctx context.Context, r *healthpb.HealthCheckRequest) (*healthpb.HealthCheckResponse, error) {
	s, _ := h.target.now()
	switch {
	case r.GetService() == "unheard":
		return nil, status.Error(codes.NotFound, "unknown service")
	case s.behaviour == fail:
		return &healthpb.HealthCheckResponse{Status: healthpb.HealthCheckResponse_NOT_SERVING}, nil
	case s.behaviour == slow:
		wait(ctx, s.delay)
	}
	return &healthpb.HealthCheckResponse{Status: healthpb.HealthCheckResponse_SERVING}, nil
}

// selfSigned makes a certificate that nobody trusts.
func selfSigned() (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("make key: %w", err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("make certificate: %w", err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, nil
}
