package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	drav1 "k8s.io/kubelet/pkg/apis/dra/v1"

	"github.com/dra-lab/dra-lab/driver/api"
	"github.com/dra-lab/dra-lab/driver/draconn/kubelettest"
)

const nodeName = "node-1"

// patience bounds everything that a test waits for.
const patience = time.Minute

// node is a node with GPUs, a cluster around it, and the driver as it is
// shipped: the program, in a process of its own.
type node struct {
	*apiServer
	program, config, root string
}

// newNode builds the driver and gives the node a number of GPUs.
func newNode(t *testing.T, gpus int) *node {
	t.Helper()
	n := &node{apiServer: newAPIServer(t), root: socketDir(t)}
	n.config = n.kubeconfig(t)
	n.program = filepath.Join(t.TempDir(), "driver")
	// As scripts/build.sh does.
	build := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-buildvcs=false", "-tags=grpcnotrace", "-ldflags=-s -w", "-o", n.program, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=1", "CGO_LDFLAGS_ALLOW=-Wl,-z,lazy", "CGO_LDFLAGS=-Wl,-z,lazy")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the driver: %v\n%s", err, out)
	}
	for _, dir := range []string{n.pluginDir(), n.registrarDir(), n.hardwareDir()} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	inventory := fmt.Appendf(nil, `{"gpus":[{"profile":"h100","count":%d}]}`, gpus)
	if err := os.WriteFile(filepath.Join(n.hardwareDir(), api.InventoryName), inventory, 0o644); err != nil {
		t.Fatal(err)
	}
	n.add(t, "nodes", &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName}})
	return n
}

func (n *node) pluginDir() string    { return below(n.root, api.PluginDir) }
func (n *node) registrarDir() string { return below(n.root, api.RegistrarDir) }
func (n *node) cdiDir() string       { return filepath.Join(n.root, "cdi") }
func (n *node) hardwareDir() string  { return filepath.Join(n.root, "hw") }

// allocate has the scheduler give a device to a claim of this name.
func (n *node) allocate(t *testing.T, claim, device string) {
	t.Helper()
	c := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: claim, UID: types.UID("uid-" + claim)}}
	c.Status.Allocation = &resourceapi.AllocationResult{}
	c.Status.Allocation.Devices.Results = []resourceapi.DeviceRequestAllocationResult{
		{Request: "gpu", Driver: api.DriverName, Pool: nodeName, Device: device},
	}
	n.add(t, "resourceclaims", c)
}

// process is a driver that runs.
type process struct {
	*kubelettest.Plugin
	cmd *exec.Cmd
	// registered is how long that took, from the start of the process.
	registered time.Duration
	// address is where it serves HTTP.
	address string
	wait    func() error
}

// start runs the driver and registers it as the kubelet does.
func (n *node) start(t *testing.T) *process {
	t.Helper()
	ctx, cancel := context.WithTimeoutCause(t.Context(), patience, errors.New("the driver does not come up"))
	defer cancel()
	cmd := exec.Command(n.program, "-node-name="+nodeName, "-kubeconfig="+n.config, "-http=127.0.0.1:0", "-v=2",
		"-kubelet-dir="+n.root, "-cdi-dir="+n.cdiDir(), "-hardware-dir="+n.hardwareDir())
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	address := make(chan string, 1)
	drained := make(chan struct{})
	go func() {
		defer close(drained)
		follow(stderr, address)
	}()
	p := &process{cmd: cmd, wait: sync.OnceValue(func() error {
		<-drained // before Wait, which closes the pipe
		return cmd.Wait()
	})}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = p.wait()
	})
	p.Plugin, err = kubelettest.Register(ctx, filepath.Join(n.registrarDir(), api.DriverName+"-reg.sock"))
	if err != nil {
		t.Fatal(err)
	}
	p.registered = time.Since(began)
	t.Cleanup(func() { p.Close() })
	select {
	case p.address = <-address:
	case <-ctx.Done():
		t.Fatal("the driver does not serve HTTP")
	}
	return p
}

// follow reads the log to its end, and finds in it where HTTP is served.
func follow(stderr io.Reader, address chan<- string) {
	serving := regexp.MustCompile(`"Serving HTTP" address="([^"]+)"`)
	lines := bufio.NewScanner(stderr)
	for lines.Scan() {
		if m := serving.FindStringSubmatch(lines.Text()); m != nil {
			address <- m[1]
		}
	}
	_, _ = io.Copy(io.Discard, stderr) // after a line that is too long
}

// kill ends the driver violently, and takes its registration away as the
// kubelet does, which then waits for the next one.
func (n *node) kill(t *testing.T, p *process) {
	t.Helper()
	if err := p.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = p.wait()
	p.Close()
	if err := os.Remove(filepath.Join(n.registrarDir(), api.DriverName+"-reg.sock")); err != nil {
		t.Fatal(err)
	}
}

// stop asks the driver to end.
func (p *process) stop(t *testing.T) {
	t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := p.wait(); err != nil {
		t.Errorf("the driver ended with %v", err)
	}
}

// memory is a line of /proc/PID/status in bytes: VmRSS is the resident memory,
// VmHWM the most that ever was.
func (p *process) memory(t *testing.T, name string) int64 {
	t.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`(?m)^` + name + `:\s+(\d+) kB$`).FindSubmatch(data)
	if m == nil {
		t.Fatalf("/proc says nothing of %s", name)
	}
	kilobytes, err := strconv.ParseInt(string(m[1]), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return kilobytes << 10
}

// metric is a figure of the driver's own metrics that has no labels.
func (p *process) metric(t *testing.T, name string) float64 {
	t.Helper()
	resp, err := http.Get("http://" + p.address + api.PathMetrics)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		if text, ok := strings.CutPrefix(lines.Text(), name+" "); ok {
			value, err := strconv.ParseFloat(text, 64)
			if err != nil {
				t.Fatal(err)
			}
			return value
		}
	}
	t.Fatalf("the driver has no metric %s (%v)", name, lines.Err())
	return 0
}

func reference(claim string) *drav1.Claim {
	return &drav1.Claim{Namespace: "default", Name: claim, Uid: "uid-" + claim}
}

// prepare prepares one claim, as the kubelet does for a Pod.
func (p *process) prepare(ctx context.Context, claim string) error {
	resp, err := p.Prepare(ctx, &drav1.NodePrepareResourcesRequest{Claims: []*drav1.Claim{reference(claim)}})
	if err != nil {
		return err
	}
	switch answer := resp.Claims["uid-"+claim]; {
	case answer == nil:
		return fmt.Errorf("no answer about claim %s", claim)
	case answer.Error != "":
		return errors.New(answer.Error)
	case len(answer.Devices) != 1 || len(answer.Devices[0].CdiDeviceIds) != 1:
		return fmt.Errorf("claim %s got %v, want one device", claim, answer.Devices)
	}
	return nil
}

// unprepare unprepares one claim.
func (p *process) unprepare(ctx context.Context, claim string) error {
	resp, err := p.Unprepare(ctx, &drav1.NodeUnprepareResourcesRequest{Claims: []*drav1.Claim{reference(claim)}})
	if err != nil {
		return err
	}
	if answer := resp.Claims["uid-"+claim]; answer.GetError() != "" {
		return errors.New(answer.Error)
	}
	return nil
}

// eventually waits for something that another process is going to do.
func eventually(t *testing.T, what string, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !done(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("it never happened: %s", what)
		}
	}
}
