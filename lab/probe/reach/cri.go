package reach

import (
	"context"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	runtimev1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/dra-lab/dra-lab/lab/probe"
)

// containerdSocket is where the runtime of a lab's node, and of any other node
// with containerd, is asked.
const containerdSocket = "unix:///run/containerd/containerd.sock"

// startTime is how long a runtime may take to start a command and to tidy up
// after one that took too long: the time of a probe does not include it.
const startTime = 30 * time.Second

// inRuntime returns the way into containers by the runtime, as the kubelet goes
// (pkg/kubelet/kuberuntime, RunInContainer). The runtime ends a command whose
// time is over.
func inRuntime(socket string) (probe.Exec, func() error, error) {
	conn, err := grpc.NewClient(socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, nil, fmt.Errorf("connect to the runtime: %w", err)
	}
	client := runtimev1.NewRuntimeServiceClient(conn)
	return func(ctx context.Context, t probe.Target, command []string) ([]byte, error) {
		// It knows its containers without their scheme, such as containerd://.
		_, id, _ := strings.Cut(t.ContainerID, "://")
		bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), t.Timeout+startTime)
		defer cancel()
		resp, err := client.ExecSync(bounded, &runtimev1.ExecSyncRequest{
			ContainerId: id, Cmd: command, Timeout: int64(t.Timeout / time.Second),
		})
		switch {
		case status.Code(err) == codes.DeadlineExceeded:
			return nil, probe.ErrCommandTimeout
		case err != nil:
			return nil, fmt.Errorf("exec in container %q: %w", t.Container.Name, err)
		case resp.GetExitCode() != 0:
			return append(resp.GetStdout(), resp.GetStderr()...), exitStatus(resp.GetExitCode())
		}
		return append(resp.GetStdout(), resp.GetStderr()...), nil
	}, conn.Close, nil
}

// exitStatus is the error of a command that ran and failed.
type exitStatus int32

func (e exitStatus) Error() string   { return fmt.Sprintf("exit status %d", int32(e)) }
func (e exitStatus) ExitStatus() int { return int(e) }
