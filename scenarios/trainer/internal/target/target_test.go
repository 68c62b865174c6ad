package target

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
)

func TestPlans(t *testing.T) {
	p, err := parsePlan("fail@0s,ok@3s,slow=2s@10s,redirect=http://a/b?c=d@12s,large@13s,exit=3@14s")
	if err != nil {
		t.Fatal(err)
	}
	for since, want := range map[time.Duration]step{
		0:                       {behaviour: fail},
		2999 * time.Millisecond: {behaviour: fail},
		3 * time.Second:         {behaviour: ok, from: 3 * time.Second},
		11 * time.Second:        {behaviour: slow, delay: 2 * time.Second, from: 10 * time.Second},
		12 * time.Second:        {behaviour: redirect, location: "http://a/b?c=d", from: 12 * time.Second},
		time.Hour:               {behaviour: exit, status: 3, from: 14 * time.Second},
	} {
		if got, _ := p.at(since); got != want {
			t.Errorf("at %s: %+v, want %+v", since, got, want)
		}
	}
	if _, next := p.at(2 * time.Second); next != 3*time.Second {
		t.Errorf("the step after that of 2s is at %s, want 3s", next)
	}
	for _, wrong := range []string{"", "ok", "ok@1s", "ok@0s,fail@0s", "ok@0s,fail@x", "well@0s", "ok=1@0s", "slow=x@0s", "redirect@0s", "exit=x@0s", "ok@0s,"} {
		if got, err := parsePlan(wrong); err == nil {
			t.Errorf("plan %q = %+v, want an error", wrong, got)
		}
	}
}

// ports are free ones of this machine.
func ports(t *testing.T, n int) []string {
	t.Helper()
	var found []string
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		found = append(found, l.Addr().String())
	}
	return found
}

// run runs a target until the test ends.
func run(t *testing.T, args ...string) {
	t.Helper()
	leave, ended := make(chan struct{}), make(chan int, 1)
	var stderr bytes.Buffer
	go func() { ended <- Main(leave, args, &stderr) }()
	t.Cleanup(func() {
		close(leave)
		if status := <-ended; status != 0 {
			t.Errorf("the target ends with status %d: %s", status, &stderr)
		}
	})
}

// eventually waits until check has no error.
func eventually(t *testing.T, check func() error) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
}

func TestAnswersFollowThePlan(t *testing.T) {
	free := ports(t, 4)
	web, secret, raw, rpc := free[0], free[1], free[2], free[3]
	run(t, "-http", web, "-https", secret, "-tcp", raw, "-grpc", rpc, "-plan", "fail@0s")
	insecureClient := &http.Client{
		Transport:     &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	getStatus := func(url string, want int) func() error {
		return func() error {
			res, err := insecureClient.Get(url)
			if err != nil {
				return err
			}
			res.Body.Close()
			if res.StatusCode != want {
				return fmt.Errorf("%s: status %d, want %d", url, res.StatusCode, want)
			}
			return nil
		}
	}
	conn, err := grpc.NewClient(rpc, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	serving := func(service string, want string) func() error {
		return func() error {
			res, err := healthpb.NewHealthClient(conn).Check(context.Background(), &healthpb.HealthCheckRequest{Service: service}, grpc.WaitForReady(true))
			got := res.GetStatus().String()
			if err != nil {
				got = status.Code(err).String()
			}
			if got != want {
				return fmt.Errorf("service %q: %s, want %s", service, got, want)
			}
			return nil
		}
	}
	eventually(t, getStatus("http://"+web, 503))
	for name, check := range map[string]error{
		"HTTPS":    getStatus("https://"+secret, 503)(),
		"/ok":      getStatus("http://"+web+"/ok", 200)(),
		"gRPC":     serving("", "NOT_SERVING")(),
		"unheard":  serving("unheard", codes.NotFound.String())(),
		"ask fail": wantStatus(Main(nil, []string{"-ask", "http://" + web}, io.Discard), statusFailed),
	} {
		if check != nil {
			t.Errorf("at first, %s: %v", name, check)
		}
	}
	if conn, err := net.Dial("tcp", raw); err == nil {
		conn.Close()
		t.Error("at first the TCP port is open, want it closed")
	}
	if err := getStatus("http://"+web+"/set?plan=nonsense", 400)(); err != nil {
		t.Error(err)
	}
	if err := getStatus("http://"+web+"/set?plan=fail@0s,ok@100ms", 200)(); err != nil {
		t.Error(err)
	}
	eventually(t, getStatus("http://"+web, 200))
	eventually(t, func() error {
		conn, err := net.Dial("tcp", raw)
		if err == nil {
			conn.Close()
		}
		return err
	})
	for name, check := range map[string]error{
		"HTTPS":  getStatus("https://"+secret, 200)(),
		"gRPC":   serving("", "SERVING")(),
		"ask ok": wantStatus(Main(nil, []string{"-ask", "http://" + web}, io.Discard), 0),
	} {
		if check != nil {
			t.Errorf("then, %s: %v", name, check)
		}
	}
}

func wantStatus(got, want int) error {
	if got != want {
		return fmt.Errorf("exit status %d, want %d", got, want)
	}
	return nil
}

func TestOtherBehaviours(t *testing.T) {
	get := func(address, path string) (*http.Response, int, error) {
		client := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
		res, err := client.Get("http://" + address + path)
		if err != nil {
			return nil, 0, err
		}
		defer res.Body.Close()
		n, err := io.Copy(io.Discard, res.Body)
		return res, int(n), err
	}
	for behaviour, check := range map[string]func(*http.Response, int, time.Duration) bool{
		"redirect=/ok": func(r *http.Response, _ int, _ time.Duration) bool {
			return r.StatusCode == 302 && r.Header.Get("Location") == "/ok"
		},
		"large": func(r *http.Response, n int, _ time.Duration) bool { return r.StatusCode == 200 && n == body },
		"slow=200ms": func(r *http.Response, _ int, d time.Duration) bool {
			return r.StatusCode == 200 && d >= 200*time.Millisecond
		},
	} {
		address := ports(t, 1)[0]
		run(t, "-http", address, "-plan", behaviour+"@0s")
		eventually(t, func() error {
			start := time.Now()
			res, n, err := get(address, "/")
			if err == nil && !check(res, n, time.Since(start)) {
				err = fmt.Errorf("%s: status %d, %d bytes", behaviour, res.StatusCode, n)
			}
			return err
		})
	}
}

func TestHowItEnds(t *testing.T) {
	var stderr bytes.Buffer
	if status := Main(nil, []string{"-plan", "ok@0s,exit=7@50ms"}, &stderr); status != 7 {
		t.Errorf("status %d, want that of the plan: 7 (%s)", status, &stderr)
	}
	if status := Main(nil, []string{"-plan", "nonsense"}, &stderr); status != statusUsage || !strings.Contains(stderr.String(), "nonsense") {
		t.Errorf("status %d, stderr %q; want %d and the step that is wrong", status, &stderr, statusUsage)
	}
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	if status := Main(nil, []string{"-http", taken.Addr().String()}, &stderr); status != statusFailed {
		t.Errorf("status %d with a port that is taken, want %d", status, statusFailed)
	}
}
