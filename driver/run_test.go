package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/dra-lab/dra-lab/driver/api"
)

// host is what a driver needs of its node, without an API server: that may be
// down whenever a driver starts or stops.
func host(t *testing.T) (root string, args []string) {
	t.Helper()
	t.Setenv("POD_UID", "")
	// Not t.TempDir: the path of a socket has at most 107 bytes.
	root, err := os.MkdirTemp("", "d")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(root) })
	for _, dir := range []string{"plugins/" + api.DriverName, "plugins_registry", "cdi"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	kubeconfig := filepath.Join(root, "kubeconfig")
	const nobody = `{"clusters":[{"name":"c","cluster":{"server":"http://127.0.0.1:1"}}],
		"contexts":[{"name":"c","context":{"cluster":"c"}}],"current-context":"c"}`
	if err := os.WriteFile(kubeconfig, []byte(nobody), 0o600); err != nil {
		t.Fatal(err)
	}
	return root, []string{
		"-node-name=node", "-gpus=simulated=t4:2", "-http=", "-kubeconfig=" + kubeconfig,
		"-kubelet-dir=" + root, "-cdi-dir=" + filepath.Join(root, "cdi"), "-hardware-dir=" + filepath.Join(root, "hw"),
	}
}

func TestDriverThatIsAskedToStopLeavesNoSocketAndStatus0(t *testing.T) {
	root, args := host(t)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var stdout, stderr bytes.Buffer
	status := make(chan int, 1)
	go func() { status <- run(ctx, args, &stdout, &stderr) }()
	registration := filepath.Join(root, "plugins_registry", api.DriverName+"-reg.sock")
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		if _, err := os.Stat(registration); err == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("no registration socket")
		}
	}
	stop()
	select {
	case got := <-status:
		if got != exitDone {
			t.Errorf("exit status %d: %s", got, stderr.String())
		}
	case <-time.After(time.Minute):
		t.Fatal("it does not stop")
	}
	sockets, err := filepath.Glob(filepath.Join(root, "plugins*", "*", "*.sock"))
	left, _ := filepath.Glob(filepath.Join(root, "plugins_registry", "*"))
	if err != nil || len(sockets)+len(left) > 0 {
		t.Errorf("left: %v %v, %v", sockets, left, err)
	}
	if out := stdout.String(); !strings.Contains(out, api.StepStopped) || !strings.Contains(out, "2 devices") {
		t.Errorf("stdout is %s", out)
	}
}

func TestDriverThatCannotGoOnSaysWhyWithStatus1(t *testing.T) {
	root, args := host(t)
	// Claims that cannot be read may hold any device: nothing must be given away.
	for _, name := range []string{"-a.json", "-b.json"} {
		file := filepath.Join(root, "plugins", api.DriverName, api.CheckpointName+name)
		if err := os.WriteFile(file, []byte("damaged"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var stdout, stderr bytes.Buffer
	if got := run(t.Context(), args, &stdout, &stderr); got != exitFailed {
		t.Errorf("exit status %d", got)
	}
	lines := strings.Split(strings.TrimSpace(stderr.String()), "\n")
	if last := lines[len(lines)-1]; !strings.HasPrefix(last, "driver: error: open driver: ") || !strings.Contains(last, "corrupt") {
		t.Errorf("the last line is %q", last)
	}
}
