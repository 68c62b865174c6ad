package reach

import (
	"context"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	runtimev1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/dra-lab/dra-lab/lab/probe"
)

// criRuntime answers commands as containerd does.
type criRuntime struct {
	runtimev1.UnimplementedRuntimeServiceServer
}

func (criRuntime) ExecSync(_ context.Context, r *runtimev1.ExecSyncRequest) (*runtimev1.ExecSyncResponse, error) {
	if r.GetContainerId() != "abc" || r.GetTimeout() != 2 {
		return nil, status.Errorf(codes.InvalidArgument, "container %q, timeout %d", r.GetContainerId(), r.GetTimeout())
	}
	switch r.GetCmd()[0] {
	case "hangs":
		return nil, status.Error(codes.DeadlineExceeded, "timeout 2s exceeded")
	case "missing":
		return nil, status.Error(codes.Unknown, "executable file not found")
	case "false":
		return &runtimev1.ExecSyncResponse{Stdout: []byte("out"), Stderr: []byte("err"), ExitCode: 7}, nil
	}
	return &runtimev1.ExecSyncResponse{Stdout: []byte(strings.Join(r.GetCmd(), " ")), Stderr: []byte("(err)")}, nil
}

func TestExecByTheRuntime(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "containerd.sock")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	runtimev1.RegisterRuntimeServiceServer(server, criRuntime{})
	go func() { _ = server.Serve(listener) }()
	defer server.Stop()
	run, closeRuntime, err := inRuntime("unix://" + socket)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := closeRuntime(); err != nil {
			t.Error(err)
		}
	}()
	answer := func(argv ...string) probe.Answer {
		return probe.Handlers{Exec: run}.Probe(t.Context(), probe.Target{
			Timeout: 2 * time.Second, Container: corev1.Container{Name: "app"}, ContainerID: "containerd://abc",
			Handler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: argv}},
		})
	}
	if a := answer("true", "x"); a.Err != nil || a.Result != probe.Success || a.Output != "true x(err)" {
		t.Errorf("status 0: %+v, want success with stdout and stderr", a)
	}
	if a := answer("false"); a.Err != nil || a.Result != probe.Failure || a.Output != "outerr" {
		t.Errorf("status 7: %+v, want a failure", a)
	}
	if a := answer("hangs"); a.Err != nil || a.Result != probe.Failure || !strings.Contains(a.Output, "timed out after 2s") {
		t.Errorf("hangs: %+v, want a failure", a)
	}
	if a := answer("missing"); a.Err == nil || !strings.Contains(a.Err.Error(), "executable file not found") {
		t.Errorf("no such file: %+v, want an error", a)
	}
}
