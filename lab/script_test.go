package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"github.com/spf13/cobra"

	"github.com/dra-lab/dra-lab/driver/driverroot/nvmltest"
	"github.com/dra-lab/dra-lab/lab/host/gpu/gputest"
	"github.com/dra-lab/dra-lab/lab/internal/ui"
)

// refuses runs a program that must say no as the lab does: with this exit status,
// nothing on stdout, exactly one error line, at least one hint, and only hints
// that can be followed.
//
//	refuses STATUS PROGRAM [ARGUMENT...]
func refuses(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: refuses STATUS PROGRAM [ARGUMENT...]")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	err = ts.Exec(args[1], args[2:]...)
	got := 0
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		got = exit.ExitCode()
	} else {
		ts.Check(err)
	}
	if got != want {
		ts.Fatalf("exit status %d, want %d", got, want)
	}
	if out := ts.ReadFile("stdout"); out != "" {
		ts.Fatalf("stdout has %q, want nothing", out)
	}
	said := ts.ReadFile("stderr")
	if n := strings.Count("\n"+said, "\nlab: error: "); n != 1 {
		ts.Fatalf("%d error lines, want 1", n)
	}
	hints := regexp.MustCompile(`(?m)^lab: hint: (.+)$`).FindAllStringSubmatch(said, -1)
	if len(hints) == 0 {
		ts.Fatalf("no hint")
	}
	for _, hint := range hints {
		for _, command := range commandsIn(hint[1]) {
			if _, err := parse(command); err != nil {
				ts.Fatalf("the hint %q cannot be followed: %v", hint[1], err)
			}
		}
	}
}

// commandsIn returns the command lines of the lab that a text names: in quotes,
// or after a colon, or as the whole of it.
func commandsIn(text string) [][]string {
	var commands [][]string
	for _, found := range regexp.MustCompile(`(?:^|: |")lab ([a-z][^";,()]*)`).FindAllStringSubmatch(text, -1) {
		commands = append(commands, strings.Fields(found[1]))
	}
	return commands
}

// parse finds the command that a command line means and reads its flags, without
// running it.
func parse(args []string) (*cobra.Command, error) {
	cmd, rest, err := newRoot(&lab{ui: ui.New(io.Discard, io.Discard, 0)}).Find(args)
	switch {
	case err != nil:
		return nil, err
	case cmd.HasSubCommands() && len(rest) > 0 && rest[0] != "--help":
		return nil, unknownCommand(cmd, rest[0])
	}
	cmd.InitDefaultHelpFlag()
	return cmd, cmd.ParseFlags(rest)
}

// waitFor waits until a file is there, as long as a lab on a busy machine may
// take for a step.
//
//	waitfor FILE
func waitFor(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: waitfor FILE")
	}
	path := ts.MkAbs(args[0])
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		if _, err := os.Stat(path); err == nil {
			return
		}
		if time.Now().After(deadline) {
			ts.Fatalf("%s did not come", path)
		}
	}
}

// tmpfs makes a directory that is a disk of its own.
//
//	tmpfs DIRECTORY SIZE
func tmpfs(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: tmpfs DIRECTORY SIZE")
	}
	dir := ts.MkAbs(args[0])
	ts.Check(os.MkdirAll(dir, 0o755))
	ts.Check(syscall.Mount("tmpfs", dir, "tmpfs", 0, "size="+args[1]))
	ts.Defer(func() { ts.Check(syscall.Unmount(dir, syscall.MNT_DETACH)) })
}

// weakEngine makes a socket and sets DOCKER_HOST to it. Behind it is the real
// engine, with a policy as authorization plugins have it: no privileged containers.
//
//	weakengine SOCKET
func weakEngine(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: weakengine SOCKET")
	}
	socket := strings.TrimPrefix(ts.Getenv("ENGINE"), "unix://")
	proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: "engine"})
	proxy.Transport = &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}}
	policy := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/containers/create") {
			body, err := io.ReadAll(io.LimitReader(r.Body, 1<<20))
			if err == nil && regexp.MustCompile(`"Privileged":\s*true`).Match(body) {
				w.Header().Set("Content-Type", "application/json")
				w.WriteHeader(http.StatusForbidden)
				_, _ = io.WriteString(w, `{"message":"authorization denied by plugin policy: privileged containers are not allowed"}`)
				return
			}
			r.Body = io.NopCloser(bytes.NewReader(body))
		}
		proxy.ServeHTTP(w, r)
	})
	path := ts.MkAbs(args[0])
	listener, err := net.Listen("unix", path)
	ts.Check(err)
	server := httptest.NewUnstartedServer(policy)
	ts.Check(server.Listener.Close())
	server.Listener = listener
	server.Start()
	ts.Defer(server.Close)
	ts.Setenv("DOCKER_HOST", "unix://"+path)
}

// moduleProxy serves what a proxy of Go modules says about the versions of
// Kubernetes.
func moduleProxy() *httptest.Server {
	const base = "/k8s.io/kubernetes/@v/"
	// One of them nobody has published, so no engine has a node image of it.
	versions := []string{"v1.35.8", "v1.36.98", "v1.37.0", "v1.37.2"}
	return httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		version := strings.TrimSuffix(strings.TrimPrefix(r.URL.Path, base), filepath.Ext(r.URL.Path))
		switch known := slices.Contains(versions, version); {
		case r.URL.Path == base+"list":
			fmt.Fprintln(w, strings.Join(versions, "\n"))
		case known && strings.HasSuffix(r.URL.Path, ".info"):
			fmt.Fprintf(w, `{"Version":%q,"Time":"2026-01-01T00:00:00Z"}`, version)
		case known && strings.HasSuffix(r.URL.Path, ".mod"):
			fmt.Fprintln(w, "module k8s.io/kubernetes")
		default:
			http.Error(w, "not found: unknown revision", http.StatusNotFound)
		}
	}))
}

// driverRoot makes a folder that looks like the root of a host with two GPUs. Its
// libnvidia-ml.so.1 works, and says of them what the other files say.
//
//	driverroot DIRECTORY
func driverRoot(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: driverroot DIRECTORY")
	}
	root := ts.MkAbs(args[0])
	ts.Check(gputest.Make(root))
	library := filepath.Join(root, "usr/lib/x86_64-linux-gnu/libnvidia-ml.so.570.86.15")
	ts.Check(os.Remove(library))
	ts.Check(nvmltest.Compile(library, `driver 570.86.15
cuda 12080
gpu 0 uuid GPU-00000000-0000-8000-8000-000000000001
gpu 0 name NVIDIA H100 80GB HBM3
gpu 0 bus 00000000:17:00.0
gpu 1 uuid GPU-00000000-0000-8000-8000-000000000002
gpu 1 name NVIDIA H100 80GB HBM3
gpu 1 bus 00000000:65:00.0
`))
}

// cures checks a report of lab doctor: a JSON document with checks, each of which
// has a cure unless it is ok.
//
//	cures FILE
func cures(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: cures FILE")
	}
	var report struct {
		Checks []struct{ Name, Status, Detail, Cure string }
	}
	ts.Check(json.Unmarshal([]byte(ts.ReadFile(args[0])), &report))
	if len(report.Checks) < 10 {
		ts.Fatalf("%d checks, want 10 at least", len(report.Checks))
	}
	for _, c := range report.Checks {
		if c.Name == "" || c.Detail == "" || !slices.Contains([]string{"ok", "warn", "fail"}, c.Status) || (c.Status == "ok") != (c.Cure == "") {
			ts.Fatalf("check %+v: want name, status, detail, and a cure unless it is ok", c)
		}
	}
}
