package probe

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

func target(h corev1.ProbeHandler) Target {
	return Target{
		Namespace: "ns", Pod: "pod", PodIP: "127.0.0.1", Handler: h, Timeout: 5 * time.Second, UserAgent: UserAgent("v1.37.2"),
		Container: corev1.Container{Name: "app"},
	}
}

// get is a Target for a path of a server.
func get(t *testing.T, server *httptest.Server, path string, change func(*corev1.HTTPGetAction)) Target {
	t.Helper()
	action := &corev1.HTTPGetAction{Path: path, Port: intstr.FromInt(portOf(t, server.Listener)), Scheme: corev1.URISchemeHTTP}
	if server.TLS != nil {
		action.Scheme = corev1.URISchemeHTTPS
	}
	if change != nil {
		change(action)
	}
	return target(corev1.ProbeHandler{HTTPGet: action})
}

func portOf(t *testing.T, l net.Listener) int {
	t.Helper()
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	number, err := strconv.Atoi(port)
	if err != nil {
		t.Fatal(err)
	}
	return number
}

func check(t *testing.T, a Answer, want Result, output string) {
	t.Helper()
	if a.Err != nil || a.Result != want || !strings.Contains(a.Output, output) {
		t.Errorf("%s = %s %q, error %v; want %s with %q", a.Handler, a.Result, a.Output, a.Err, want, output)
	}
}

func checkBroken(t *testing.T, a Answer, words ...string) {
	t.Helper()
	if a.Err == nil || a.Result != Unknown {
		t.Fatalf("%s = %s %q without an error, want unknown with one", a.Handler, a.Result, a.Output)
	}
	for _, word := range words {
		if !strings.Contains(a.Err.Error(), word) {
			t.Errorf("error %q does not have %q", a.Err, word)
		}
	}
}

var direct = Handlers{Dial: Direct()}

func TestHTTP(t *testing.T) {
	mux := http.NewServeMux()
	status := func(path string, code int) {
		mux.HandleFunc(path, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code); _, _ = io.WriteString(w, "body") })
	}
	status("/200", 200)
	status("/299", 299)
	status("/304", 304)
	status("/400", 400)
	status("/503", 503)
	mux.HandleFunc("/local", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/503", http.StatusFound) })
	mux.HandleFunc("/loop", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/loop", http.StatusFound) })
	mux.HandleFunc("/away", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "http://elsewhere.example/", http.StatusFound)
	})
	mux.HandleFunc("/big", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(make([]byte, 1<<20)) })
	mux.HandleFunc("/broken", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "100")
		_, _ = io.WriteString(w, "half")
	})
	mux.HandleFunc("/slow", func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	mux.HandleFunc("/host", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "%s %s %q %q", r.Host, r.URL.RawQuery, r.Header, r.Proto)
	})
	plain := httptest.NewServer(mux)
	defer plain.Close()
	secret := httptest.NewUnstartedServer(mux)
	secret.EnableHTTP2 = true
	secret.StartTLS()
	defer secret.Close()
	probe := func(target Target) Answer { return direct.Probe(t.Context(), target) }

	for path, want := range map[string]struct {
		result Result
		output string
	}{
		"/200":  {Success, "body"},
		"/299":  {Success, "body"},
		"/304":  {Warning, "redirected"}, // 3xx ends as a redirect that is not followed
		"/400":  {Failure, "HTTP probe failed with statuscode: 400"},
		"/503":  {Failure, "HTTP probe failed with statuscode: 503"},
		"/none": {Failure, "404"},
		// A redirect to the same host is followed, and its end counts.
		"/local": {Failure, "503"},
		"/loop":  {Failure, "stopped after 10 redirects"},
		"/away":  {Warning, "http://elsewhere.example/"},
	} {
		check(t, probe(get(t, plain, path, nil)), want.result, want.output)
	}
	// The certificate is the test server's own.
	check(t, probe(get(t, secret, "/200", nil)), Success, "body")
	check(t, probe(get(t, secret, "/host", nil)), Success, "HTTP/2.0")
	// HTTPS from a server that speaks HTTP is a failure.
	check(t, probe(get(t, plain, "/200", func(a *corev1.HTTPGetAction) { a.Scheme = corev1.URISchemeHTTPS })), Failure, "HTTP response to HTTPS client")

	big := probe(get(t, plain, "/big", nil))
	check(t, big, Success, "")
	if len(big.Output) != maxOutput {
		t.Errorf("%d bytes of a large body are kept, want %d", len(big.Output), maxOutput)
	}
	// http.go, DoHTTPProbe: an error of reading the body is returned as one.
	checkBroken(t, probe(get(t, plain, "/broken", nil)), "read body")

	slow := get(t, plain, "/slow", nil)
	slow.Timeout = 50 * time.Millisecond
	check(t, probe(slow), Failure, "no answer within 50ms")

	// request.go: User-Agent and Accept have defaults; an empty Accept is none.
	check(t, probe(get(t, plain, "/host?a=b", nil)), Success,
		fmt.Sprintf(`127.0.0.1:%d a=b map["Accept":["*/*"] "Connection":["close"] "User-Agent":["kube-probe/1.37"]] "HTTP/1.1"`, portOf(t, plain.Listener)))
	check(t, probe(get(t, plain, "/host", func(a *corev1.HTTPGetAction) {
		a.HTTPHeaders = []corev1.HTTPHeader{{Name: "Host", Value: "app.example"}, {Name: "user-agent", Value: "me"}, {Name: "Accept", Value: ""},
			{Name: "X-Twice", Value: "1"}, {Name: "X-Twice", Value: "2"}}
	})), Success, `app.example  map["Connection":["close"] "User-Agent":["me"] "X-Twice":["1" "2"]]`)
	// The field host replaces the Pod's IP.
	elsewhere := get(t, plain, "/200", func(a *corev1.HTTPGetAction) { a.Host = "localhost" })
	elsewhere.PodIP = "192.0.2.1"
	check(t, probe(elsewhere), Success, "body")

	// A name instead of a number.
	named := get(t, plain, "/200", func(a *corev1.HTTPGetAction) { a.Port = intstr.FromString("web") })
	checkBroken(t, probe(named), `"web"`, `"app"`)
	named.Container.Ports = []corev1.ContainerPort{{Name: "other", ContainerPort: 1}, {Name: "web", ContainerPort: int32(portOf(t, plain.Listener))}}
	check(t, probe(named), Success, "body")

	plain.Close()
	check(t, probe(get(t, plain, "/200", nil)), Failure, "connection refused")
}

func TestHTTP2WithoutTLS(t *testing.T) {
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.Proto) }))
	server.Config.Protocols = new(http.Protocols)
	server.Config.Protocols.SetHTTP1(true)
	server.Config.Protocols.SetUnencryptedHTTP2(true)
	server.Start()
	defer server.Close()
	h2 := corev1.HTTPProtocolHTTP2
	check(t, direct.Probe(t.Context(), get(t, server, "/", func(a *corev1.HTTPGetAction) { a.Protocol = &h2 })), Success, "HTTP/2.0")
	check(t, direct.Probe(t.Context(), get(t, server, "/", nil)), Success, "HTTP/1.1")
}

func TestTCP(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	probe := target(corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt(portOf(t, listener))}})
	// Nobody accepts: the kernel does, and that is all that is asked.
	check(t, direct.Probe(t.Context(), probe), Success, "")
	listener.Close()
	check(t, direct.Probe(t.Context(), probe), Failure, "connection refused")
	probe.Handler.TCPSocket.Port = intstr.FromInt(0)
	checkBroken(t, direct.Probe(t.Context(), probe), "not between 1 and 65535")
}

type mute struct {
	healthpb.UnimplementedHealthServer
}

func (mute) Check(ctx context.Context, _ *healthpb.HealthCheckRequest) (*healthpb.HealthCheckResponse, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

func TestGRPC(t *testing.T) {
	serve := func(server *grpc.Server) Target {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		go func() { _ = server.Serve(listener) }()
		t.Cleanup(server.Stop)
		return target(corev1.ProbeHandler{GRPC: &corev1.GRPCAction{Port: int32(portOf(t, listener))}})
	}
	states := health.NewServer()
	states.SetServingStatus("down", healthpb.HealthCheckResponse_NOT_SERVING)
	server := grpc.NewServer()
	healthpb.RegisterHealthServer(server, states)
	healthy := serve(server)
	check(t, direct.Probe(t.Context(), healthy), Success, "service healthy")
	for service, want := range map[string]string{"down": `service unhealthy (responded with "NOT_SERVING")`, "unheard": "unknown service"} {
		healthy.Handler.GRPC.Service = &service
		check(t, direct.Probe(t.Context(), healthy), Failure, want)
	}
	check(t, direct.Probe(t.Context(), serve(grpc.NewServer())), Failure, "does not implement the grpc health protocol")

	slow := grpc.NewServer()
	healthpb.RegisterHealthServer(slow, mute{})
	silent := serve(slow)
	silent.Timeout = 200 * time.Millisecond
	check(t, direct.Probe(t.Context(), silent), Failure, "health rpc did not complete within 200ms")

	// A port that refuses is tried until the time is over.
	slow.Stop()
	refused := direct.Probe(t.Context(), silent)
	check(t, refused, Failure, "connection refused")
	if refused.Took < silent.Timeout {
		t.Errorf("a refused gRPC probe took %s, want all of its %s", refused.Took, silent.Timeout)
	}
}

func TestGRPCWithTLS(t *testing.T) {
	web := httptest.NewUnstartedServer(nil) // for its certificate
	web.StartTLS()
	defer web.Close()
	server := grpc.NewServer(grpc.Creds(credentials.NewTLS(&tls.Config{Certificates: web.TLS.Certificates})))
	healthpb.RegisterHealthServer(server, health.NewServer())
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = server.Serve(listener) }()
	defer server.Stop()
	mode := corev1.GRPCProbeModeTLS
	probe := target(corev1.ProbeHandler{GRPC: &corev1.GRPCAction{Port: int32(portOf(t, listener)), Mode: &mode}})
	check(t, direct.Probe(t.Context(), probe), Success, "service healthy")
}

type exitStatus int

func (e exitStatus) Error() string   { return fmt.Sprintf("exit status %d", int(e)) }
func (e exitStatus) ExitStatus() int { return int(e) }

func TestExec(t *testing.T) {
	var ran []string
	answer := func(output string, err error) Handlers {
		return Handlers{Exec: func(_ context.Context, _ Target, command []string) ([]byte, error) {
			ran = command
			return []byte(output), err
		}}
	}
	probe := target(corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"check", "$(WHAT)", "$(NOT_SET)", "$$(WHAT)", "$(FROM)", "$(open", "a$", "$x"}}})
	probe.Container.Env = []corev1.EnvVar{{Name: "WHAT", Value: "it"}, {Name: "FROM", ValueFrom: &corev1.EnvVarSource{}}}
	check(t, answer("fine", nil).Probe(t.Context(), probe), Success, "fine")
	if got, want := strings.Join(ran, "|"), "check|it|$(NOT_SET)|$(WHAT)||$(open|a$|$x"; got != want {
		t.Errorf("ran %s, want %s", got, want)
	}
	check(t, answer("bad", fmt.Errorf("run: %w", exitStatus(3))).Probe(t.Context(), probe), Failure, "bad")
	check(t, answer("", exitStatus(0)).Probe(t.Context(), probe), Success, "")
	checkBroken(t, answer("", errors.New("no such file")).Probe(t.Context(), probe), "no such file")
	checkBroken(t, Handlers{}.Probe(t.Context(), probe), "no way into the container")
	if long := answer(strings.Repeat("x", 1<<20), nil).Probe(t.Context(), probe); len(long.Output) != maxOutput {
		t.Errorf("%d bytes of output are kept, want %d", len(long.Output), maxOutput)
	}
	probe.Timeout = 20 * time.Millisecond
	slow := Handlers{Exec: func(ctx context.Context, _ Target, _ []string) ([]byte, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}}
	check(t, slow.Probe(t.Context(), probe), Failure, "timed out after 20ms")
}

func TestUnknownKindIsAnErrorThatNamesPodAndContainer(t *testing.T) {
	checkBroken(t, direct.Probe(t.Context(), target(corev1.ProbeHandler{})), "ns/pod", `"app"`, "unknown kind of handler")
}

func TestErrorsAreTriedThreeTimes(t *testing.T) {
	calls := 0
	h := Handlers{Exec: func(context.Context, Target, []string) ([]byte, error) {
		calls++
		if calls < 3 {
			return nil, errors.New("no luck")
		}
		return nil, nil
	}}
	probe := target(corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"check"}}})
	if a := Try(t.Context(), h, probe); a.Err != nil || a.Tries != 3 || calls != 3 {
		t.Errorf("third try: %d tries, %d calls, error %v; want success at the third", a.Tries, calls, a.Err)
	}
	calls = -10
	if a := Try(t.Context(), h, probe); a.Err == nil || a.Tries != 3 {
		t.Errorf("%d tries, error %v; want an error after 3", a.Tries, a.Err)
	}
	// A failure is an answer, and asked for once.
	calls = 0
	h.Exec = func(context.Context, Target, []string) ([]byte, error) { calls++; return nil, exitStatus(1) }
	if a := Try(t.Context(), h, probe); a.Result != Failure || calls != 1 {
		t.Errorf("a failure was tried %d times, want once", calls)
	}
}

func TestEndOfTheContextIsNoAnswer(t *testing.T) {
	stopped := errors.New("somebody pressed a key")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(stopped)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	port := portOf(t, listener)
	for _, h := range []corev1.ProbeHandler{
		{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt(port)}},
		{HTTPGet: &corev1.HTTPGetAction{Port: intstr.FromInt(port)}},
		{GRPC: &corev1.GRPCAction{Port: int32(port)}},
	} {
		if a := direct.Probe(ctx, target(h)); !errors.Is(a.Err, stopped) {
			t.Errorf("%s: error %v, want %v", a.Handler, a.Err, stopped)
		}
	}
}

// A way that cannot reach an address says nothing about who listens there.
func TestNoWayIsAnErrorAndNoFailure(t *testing.T) {
	h := Handlers{Dial: func(_ context.Context, _, address string) (net.Conn, error) {
		return nil, fmt.Errorf("connect to %s: %w", address, ErrNoWay)
	}}
	for _, handler := range []corev1.ProbeHandler{
		{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt(80)}},
		{HTTPGet: &corev1.HTTPGetAction{Port: intstr.FromInt(80)}},
		{GRPC: &corev1.GRPCAction{Port: 80}},
	} {
		probe := target(handler)
		probe.Timeout = 200 * time.Millisecond
		checkBroken(t, h.Probe(t.Context(), probe), "no way")
	}
}

// The server sees an orderly end of the connection, not a reset.
func TestTCPProbeClosesInOrder(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	ended := make(chan error, 1)
	go func() {
		conn, err := listener.Accept()
		if err == nil {
			defer conn.Close()
			_, err = bufio.NewReader(conn).ReadByte()
		}
		ended <- err
	}()
	check(t, direct.Probe(t.Context(), target(corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt(portOf(t, listener))}})), Success, "")
	if err := <-ended; !errors.Is(err, io.EOF) {
		t.Errorf("the server saw %v, want the end", err)
	}
}
