package host

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dra-lab/dra-lab/lab/internal/ui"
)

// insideEnv marks the process that runs a test in namespaces of its own.
const insideEnv = "DRA_LAB_TEST_INSIDE"

// inside runs the test again in a process with network, mount and process
// namespaces of its own, and returns false in the process outside. Whatever the
// test starts ends with it, and engines on this machine cannot be touched.
func inside(t *testing.T) bool {
	t.Helper()
	if os.Geteuid() != 0 || len(missingPrograms()) > 0 {
		reason := fmt.Sprintf("needs root and %s: NOT TESTED that the private engine leaves others alone", "dockerd")
		if os.Getenv("DRA_LAB_REQUIRE_ENGINE") != "" {
			t.Fatal(reason)
		}
		t.Skip(reason)
	}
	if os.Getenv(insideEnv) == t.Name() {
		for _, mount := range [][]string{{"mount", "-t", "proc", "proc", "/proc"}, {"mount", "-t", "tmpfs", "tmpfs", "/run"}} {
			if out, err := exec.Command(mount[0], mount[1:]...).CombinedOutput(); err != nil {
				t.Fatalf("%q: %v: %s", mount, err, out)
			}
		}
		if err := withControlSocket(func(fd int) error { return setUp(fd, "lo", true) }); err != nil {
			t.Fatal(err)
		}
		return true
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.v", "-test.timeout=110s")
	cmd.Env = append(os.Environ(), insideEnv+"="+t.Name())
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:   syscall.CLONE_NEWPID,
		Unshareflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWNET,
		Pdeathsig:    syscall.SIGKILL,
	}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("in namespaces of its own: %v\n%s", err, out)
	}
	t.Logf("in namespaces of its own:\n%s", out)
	return false
}

// testEngine returns a private engine in directories of its own, with names
// short enough for sockets.
func testEngine(t *testing.T) privateEngine {
	t.Helper()
	dir, err := os.MkdirTemp("", "dl")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	p := privateEngine{
		run:    filepath.Join(dir, "run", "engine"),
		data:   filepath.Join(dir, "cache", "engine"),
		bin:    filepath.Join(dir, "cache", "engine-runtime"),
		prefix: bridgePrefix(dir),
	}
	t.Cleanup(func() {
		if err := p.stop(context.WithoutCancel(t.Context())); err != nil && !errors.Is(err, ErrEngineInUse) {
			t.Error(err)
		}
	})
	return p
}

// A private engine beside somebody else's: the other one, its bridge, its
// firewall rules and its container are the same afterwards, and while the
// private one runs.
func TestBesideAnotherEngine(t *testing.T) {
	t.Parallel()
	if !inside(t) {
		return
	}
	ctx := t.Context()
	// Given an ordinary engine with a container that publishes a port.
	other := startOtherEngine(t)
	other.startContainer(t)
	before := other.state(t)
	if !strings.Contains(before, "docker0") || !strings.Contains(before, "18080") {
		t.Fatalf("the other engine is not as ordinary as it should be:\n%s", before)
	}

	// When a private engine starts and runs a privileged container,
	p := testEngine(t)
	if err := p.start(ctx, testUI(t)); err != nil {
		t.Fatal(err)
	}
	e := p.engine()
	if _, err := e.verify(ctx); err != nil {
		t.Fatalf("verify: %v\n%s", err, tail(p.log()))
	}
	// then the other engine is as it was.
	if diff := cmp.Diff(before, other.state(t)); diff != "" {
		t.Errorf("the other engine changed by the start of ours (-before +after):\n%s", diff)
	}

	// Its daemon may open as many files as this machine allows.
	process, err := p.dockerd().find()
	if err != nil || process == nil {
		t.Fatalf("find dockerd: %v, %v", process, err)
	}
	limits, err := os.ReadFile(fmt.Sprintf("/proc/%d/limits", process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(limits)) {
		if fields := strings.Fields(line); strings.HasPrefix(line, "Max open files") && fields[3] != fields[4] {
			t.Errorf("dockerd has a limit of %s open files, and could have %s", fields[3], fields[4])
		}
	}

	// When containers of somebody's are in it, it does not stop.
	runPause(t, e, "--name=kept", "--network="+kindNetwork)
	if err := p.stop(ctx); !errors.Is(err, ErrEngineInUse) || !strings.Contains(err.Error(), "kept") {
		t.Errorf("stop with a container = %v, want ErrEngineInUse with its name", err)
	}
	if !p.serves(ctx) {
		t.Error("the engine that was in use does not serve any more")
	}

	// When it stops, nothing of it is left,
	mustRun(t, e.Command(ctx, "rm", "--force", "kept"))
	runPause(t, e, "--name=leftover", "--label="+temporaryLabel+"=build")
	if err := p.stop(ctx); err != nil {
		t.Fatal(err)
	}
	assertGone(t, p)
	// except for its images.
	if _, err := os.Stat(filepath.Join(p.data, "docker", "image")); err != nil {
		t.Errorf("the cache is gone: %v", err)
	}
	// Then the other engine is as it was, and so when ours stops again.
	if err := p.stop(ctx); err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff(before, other.state(t)); diff != "" {
		t.Errorf("the other engine changed by the stop of ours (-before +after):\n%s", diff)
	}
}

// Killed at any instant, the next start and the next stop finish the work.
func TestKilledHalfway(t *testing.T) {
	t.Parallel()
	if !inside(t) {
		return
	}
	ctx := t.Context()
	p := testEngine(t)
	// An innocent process, whose number a stale pid file names.
	innocent := exec.Command("sleep", "600")
	if err := innocent.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = innocent.Process.Kill(); _ = innocent.Wait() }()
	if err := os.MkdirAll(p.run, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(p.pidFile(), fmt.Appendf(nil, "%d", innocent.Process.Pid), 0o644); err != nil {
		t.Fatal(err)
	}

	// Given starts that are killed after ever more of the work,
	for i, after := range []time.Duration{5 * time.Millisecond, 80 * time.Millisecond, 200 * time.Millisecond} {
		startAndKill(t, p, after)
		// the next one comes to its end.
		if err := p.start(ctx, testUI(t)); err != nil {
			t.Fatalf("start after one that was killed after %s: %v", after, err)
		}
		if _, err := p.engine().verify(ctx); err != nil {
			t.Fatalf("verify after a start that was killed after %s: %v", after, err)
		}
		// And a stop at a time when only half of it runs stops the rest.
		killDaemon(t, []daemon{p.dockerd(), p.containerd(), p.dockerd()}[i])
		if err := p.stop(ctx); err != nil {
			t.Fatalf("stop with one daemon killed: %v", err)
		}
		assertGone(t, p)
	}

	// Given an engine with a node whose daemons are both killed,
	if err := p.start(ctx, testUI(t)); err != nil {
		t.Fatal(err)
	}
	runPause(t, p.engine(), "--name=node", "--network="+kindNetwork)
	killDaemon(t, p.dockerd())
	killDaemon(t, p.containerd())
	// stop still sees that it is in use,
	if err := p.stop(ctx); !errors.Is(err, ErrEngineInUse) {
		t.Errorf("stop with a container and no daemon = %v, want ErrEngineInUse", err)
	}
	// and the node never stopped.
	state := mustRun(t, p.engine().Command(ctx, "inspect", "--format={{.State.Running}} {{.RestartCount}}", "node"))
	if state != "true 0" {
		t.Errorf("node: running and restarts = %q, want true 0", state)
	}
	mustRun(t, p.engine().Command(ctx, "rm", "--force", "node"))

	// After a reboot, when only the data root is left with a container in it,
	// stop removes that too.
	runPause(t, p.engine(), "--name=leftover", "--label="+temporaryLabel+"=build", "--network="+kindNetwork)
	powerCut(t, p)
	if !p.unfinished() {
		t.Error("an engine that lost its power counts as stopped")
	}
	if err := p.stop(ctx); err != nil {
		t.Errorf("stop after a power cut: %v", err)
	}
	assertGone(t, p)
	if p.unfinished() {
		t.Error("an engine that was stopped counts as unfinished")
	}

	if err := innocent.Process.Signal(syscall.Signal(0)); err != nil {
		t.Errorf("the process that a stale pid file named was touched: %v", err)
	}
}

// An engine that cannot start says why, with its log.
func TestStartFails(t *testing.T) {
	t.Parallel()
	if !inside(t) {
		return
	}
	p := testEngine(t)
	// Given a data root that is a file.
	if err := os.MkdirAll(p.data, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(p.data, "docker"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	err := p.start(t.Context(), testUI(t))
	if err == nil || !strings.Contains(err.Error(), "start dockerd (log: "+p.log()+"): ended at once") {
		t.Errorf("start = %v, want that dockerd ended at once and its log", err)
	}
	if detail := ui.Detail(err); !strings.Contains(detail, filepath.Join(p.data, "docker")) {
		t.Errorf("detail = %q, want the daemon's own words", detail)
	}
}

// otherEngine is an ordinary dockerd, as a distribution starts it.
type otherEngine struct {
	Engine
	daemon *exec.Cmd
}

func startOtherEngine(t *testing.T) otherEngine {
	t.Helper()
	dir, err := os.MkdirTemp("", "ot")
	if err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(dir, "docker.sock")
	other := otherEngine{
		Engine: Engine{Kind: "docker", Host: "unix://" + socket},
		daemon: exec.Command(findProgram("dockerd"), "--host=unix://"+socket, "--data-root="+filepath.Join(dir, "data"),
			"--exec-root="+filepath.Join(dir, "exec"), "--pidfile="+filepath.Join(dir, "pid"), "--config-file="+filepath.Join(dir, "none")),
	}
	// A file that is named has to exist.
	if err := os.WriteFile(filepath.Join(dir, "none"), []byte("{}"), 0o644); err != nil {
		t.Fatal(err)
	}
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	other.daemon.Stdout, other.daemon.Stderr, other.daemon.Env = log, log, daemonEnv(os.Environ())
	if err := other.daemon.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = other.Command(context.WithoutCancel(t.Context()), "rm", "--force", "theirs").Run()
		_ = other.daemon.Process.Signal(syscall.SIGTERM)
		_ = other.daemon.Wait()
		_ = unmountBelow(dir)
		_ = os.RemoveAll(dir)
	})
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if err := poll(ctx, func(ctx context.Context) error { return ping(ctx, socket) }); err != nil {
		t.Fatalf("the other engine does not start: %v\n%s", err, tail(log.Name()))
	}
	return other
}

func (o otherEngine) startContainer(t *testing.T) {
	t.Helper()
	runPause(t, &o.Engine, "--name=theirs", "--publish=127.0.0.1:18080:80")
}

// state describes everything of the engine that a neighbour could disturb.
func (o otherEngine) state(t *testing.T) string {
	t.Helper()
	var state strings.Builder
	fmt.Fprintln(&state, "daemon:", o.daemon.Process.Pid, commandLine(o.daemon.Process.Pid) != nil)
	fmt.Fprintln(&state, "container:", mustRun(t, o.Command(t.Context(), "inspect",
		"--format={{.State.Pid}} {{.State.StartedAt}} {{.RestartCount}} {{.NetworkSettings.IPAddress}} {{.NetworkSettings.Ports}}", "theirs")))
	bridge, err := net.InterfaceByName("docker0")
	if err != nil {
		t.Fatal(err)
	}
	addresses, err := bridge.Addrs()
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintln(&state, "bridge:", bridge.Name, bridge.Index, addresses, bridge.Flags&net.FlagUp)
	rules := mustRun(t, exec.Command(findProgram("iptables-save")))
	lines := bufio.NewScanner(strings.NewReader(rules))
	for lines.Scan() {
		// Counters and dates change by themselves, and our chains are ours.
		line, _, _ := strings.Cut(lines.Text(), " [")
		if !strings.HasPrefix(line, "#") && !strings.Contains(line, "DL") {
			fmt.Fprintln(&state, "rule:", line)
		}
	}
	return state.String()
}

// runPause runs a container that does nothing until it is stopped.
func runPause(t *testing.T, e *Engine, args ...string) {
	t.Helper()
	const tag = "localhost/dra-lab/pause:test"
	archive, err := imageArchive(tag, "/pause", pauseProgram(t))
	if err != nil {
		t.Fatal(err)
	}
	load := e.Command(t.Context(), "load")
	load.Stdin = bytes.NewReader(archive)
	mustRun(t, load)
	mustRun(t, e.Command(t.Context(), append(append([]string{"run", "--detach"}, args...), tag)...))
}

// pauseProgram is the probe program with other code: it waits for a signal.
func pauseProgram(t *testing.T) []byte {
	t.Helper()
	return elfProgram(62, []byte{
		0xb8, 34, 0, 0, 0, // mov eax, SYS_pause
		0x0f, 0x05, // syscall
		0xeb, 0xf7, // jmp to the start
	})
}

// assertGone fails the test for everything of the engine that is left.
func assertGone(t *testing.T, p privateEngine) {
	t.Helper()
	if !p.idle() {
		t.Error("a process of the engine is left")
	}
	if _, err := os.Stat(p.run); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("run directory: %v, want none", err)
	}
	if mounts, err := mountsBelow(filepath.Dir(filepath.Dir(p.run))); err != nil || len(mounts) > 0 {
		t.Errorf("mounts left: %q, %v", mounts, err)
	}
	interfaces, err := net.Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range interfaces {
		if strings.HasPrefix(i.Name, p.prefix) {
			t.Errorf("network interface %q is left", i.Name)
		}
	}
	for _, dir := range []string{"/run/docker", "/run/containerd"} {
		if dockerds, err := findAll(func(argv []string) bool { return filepath.Base(argv[0]) == "dockerd" }); err != nil || len(dockerds) == 0 && exists(dir) {
			t.Errorf("%s is left, %v", dir, err)
		}
	}
	if rules := mustRun(t, exec.Command(findProgram("iptables-save"))); strings.Contains(rules, strings.ToUpper(p.prefix)) {
		t.Errorf("firewall rules are left:\n%s", rules)
	}
}

// killTestEnv has the engine that TestStartToBeKilled starts, as JSON.
const killTestEnv = "DRA_LAB_TEST_START"

// startAndKill starts the engine in another process, which it kills.
func startAndKill(t *testing.T, p privateEngine, after time.Duration) {
	t.Helper()
	text, err := json.Marshal([]string{p.run, p.data, p.bin, p.prefix})
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/proc/self/exe", "-test.run=^TestStartToBeKilled$")
	cmd.Env = append(os.Environ(), killTestEnv+"="+string(text))
	begun, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := bufio.NewReader(begun).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	<-time.After(after) // not to wait for something: the moment is the point
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
}

// TestStartToBeKilled is the other process of startAndKill, no test by itself.
func TestStartToBeKilled(t *testing.T) {
	var fields []string
	if os.Getenv(killTestEnv) == "" {
		return
	}
	if err := json.Unmarshal([]byte(os.Getenv(killTestEnv)), &fields); err != nil {
		t.Fatal(err)
	}
	_, _ = os.Stdout.WriteString("begin\n")
	p := privateEngine{run: fields[0], data: fields[1], bin: fields[2], prefix: fields[3]}
	if err := p.start(t.Context(), testUI(t)); err != nil {
		t.Fatal(err)
	}
}

func killDaemon(t *testing.T, d daemon) {
	t.Helper()
	process, err := d.find()
	if err != nil || process == nil {
		t.Fatalf("find %s: %v, %v", d.program, process, err)
	}
	if err := process.Kill(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := poll(ctx, func(context.Context) error {
		if alive(process) {
			return errors.New("alive")
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

// powerCut ends everything of the engine that a power cut would end.
func powerCut(t *testing.T, p privateEngine) {
	t.Helper()
	pid, id, _ := strings.Cut(mustRun(t, p.engine().Command(t.Context(), "inspect", "--format={{.State.Pid}} {{.Id}}", "leftover")), " ")
	killDaemon(t, p.dockerd())
	killDaemon(t, p.containerd())
	if err := p.killShims(); err != nil {
		t.Fatal(err)
	}
	mustRun(t, exec.Command("kill", "-9", pid))
	for _, pattern := range []string{"/sys/fs/cgroup/*/docker/" + id, "/sys/fs/cgroup/docker/" + id} {
		groups, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, group := range groups {
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			if err := poll(ctx, func(context.Context) error { return os.Remove(group) }); err != nil {
				t.Error(err)
			}
			cancel()
		}
	}
	if err := errors.Join(unmountBelow(p.run, p.data), removeBridges(p.prefix), removeTree(p.run)); err != nil {
		t.Fatal(err)
	}
}

func mustRun(t *testing.T, cmd *exec.Cmd) string {
	t.Helper()
	out, err := output(cmd)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(out)
}

// testUI shows progress in the test's log.
func testUI(t *testing.T) *ui.UI { return ui.New(t.Output(), t.Output(), 1) }

// The bridge has an address inside of the first network, not the network's own.
func TestFirstHost(t *testing.T) {
	got := firstHost(netip.MustParsePrefix("10.213.0.0/16"))
	if want := netip.MustParsePrefix("10.213.0.1/24"); got != want {
		t.Errorf("firstHost = %s, want %s", got, want)
	}
}

// Two private engines have nothing in common, and names that the kernel takes.
func TestBridgePrefix(t *testing.T) {
	a, b := bridgePrefix("/tmp/a"), bridgePrefix("/tmp/b")
	if a == b || len(a) > 14 || bridgePrefix(defaultRunDir) != "dralab" {
		t.Errorf("prefixes %q, %q, %q", a, b, bridgePrefix(defaultRunDir))
	}
	if (privateEngine{run: "/tmp/a"}).range6() == (privateEngine{run: "/tmp/b"}).range6() {
		t.Error("two engines share an IPv6 range")
	}
}
