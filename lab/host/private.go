package host

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/dra-lab/dra-lab/lab/host/capability"
	"github.com/dra-lab/dra-lab/lab/internal/ui"
)

// kindNetwork is the name of the engine network that kind puts its nodes on.
const kindNetwork = "kind"

// privateEngine is the lab's own engine: a dockerd on a containerd. Everything
// it uses is named here, so that two of them can run on one machine.
//
// What runs is found by its command line, and every step of start can be
// repeated, so a start or stop that was killed anywhere is finished by the next.
type privateEngine struct {
	run    string // sockets, configuration, exec root; gone after a reboot
	data   string // images, logs, the chosen address range; kept as a cache
	bin    string // copies of the lab as OCI runtime
	prefix string // of all its network interfaces' names
}

// newPrivateEngine returns the private engine of this environment. It starts
// nothing.
func newPrivateEngine() (privateEngine, error) {
	run, err := runDir()
	if err != nil {
		return privateEngine{}, err
	}
	cache, err := CacheDir()
	if err != nil {
		return privateEngine{}, err
	}
	return privateEngine{
		run:    filepath.Join(run, "engine"),
		data:   filepath.Join(cache, "engine"),
		bin:    filepath.Join(cache, "engine-runtime"),
		prefix: bridgePrefix(run),
	}, nil
}

func (p privateEngine) bridge() string           { return p.prefix + "0" }
func (p privateEngine) kindBridge() string       { return p.prefix + "1" }
func (p privateEngine) socket() string           { return filepath.Join(p.run, "docker.sock") }
func (p privateEngine) pidFile() string          { return filepath.Join(p.run, "dockerd.pid") }
func (p privateEngine) execRoot() string         { return filepath.Join(p.run, "exec") }
func (p privateEngine) config() string           { return filepath.Join(p.run, "dockerd.json") }
func (p privateEngine) containerdConfig() string { return filepath.Join(p.run, "containerd.toml") }
func (p privateEngine) containerdSocket() string { return filepath.Join(p.run, "containerd.sock") }
func (p privateEngine) log() string              { return filepath.Join(p.data, "dockerd.log") }
func (p privateEngine) containerdLog() string    { return filepath.Join(p.data, "containerd.log") }
func (p privateEngine) networkFile() string      { return filepath.Join(p.data, "network.json") }

func (p privateEngine) dockerd() daemon {
	return daemon{program: "dockerd", arg: "--config-file=" + p.config()}
}

func (p privateEngine) containerd() daemon {
	return daemon{program: "containerd", arg: "--config=" + p.containerdConfig()}
}

func (p privateEngine) engine() *Engine {
	return &Engine{Kind: "docker", Host: "unix://" + p.socket(), Private: true, DataRoot: p.dataRoot()}
}

// dataRoot is where the running engine, which an environment with another cache
// may have started, has its data; else where ours will be.
func (p privateEngine) dataRoot() string {
	var config dockerdConfig
	if text, err := os.ReadFile(p.config()); err == nil && json.Unmarshal(text, &config) == nil && config.DataRoot != "" {
		return config.DataRoot
	}
	return filepath.Join(p.data, "docker")
}

// serves reports whether the whole engine runs and answers.
func (p privateEngine) serves(ctx context.Context) bool {
	return p.dockerd().running() && p.containerd().running() && ping(ctx, p.socket()) == nil
}

// start starts whatever of the engine does not run yet and waits until it
// serves.
func (p privateEngine) start(ctx context.Context, u *ui.UI) (err error) {
	if p.serves(ctx) {
		return p.ensureNetwork(ctx)
	}
	step := u.Step("starting private engine on %s", p.socket())
	defer func() { step.Done(err) }()
	for _, dir := range []string{p.run, p.data} {
		if err := os.MkdirAll(dir, 0o711); err != nil {
			return fmt.Errorf("make engine directory: %w", err)
		}
	}
	networks, err := p.addressRange()
	if err != nil {
		return err
	}
	if err := ensureBridge(p.bridge(), firstHost(networks)); err != nil {
		return err
	}
	if err := (firewall{prefix: p.prefix, networks: networks}).open(ctx); err != nil {
		return err
	}
	if !p.containerd().running() {
		// A dockerd that lost its containerd does not recover by itself in
		// any known time. The containers go on without it.
		if err := endDaemon(ctx, p.dockerd()); err != nil {
			return err
		}
	}
	step.Update("containerd")
	if err := p.startContainerd(ctx); err != nil {
		return err
	}
	step.Update("dockerd")
	if err := p.startDockerd(ctx, networks); err != nil {
		return err
	}
	return p.ensureNetwork(ctx)
}

// addressRange returns the range for all networks of the engine. It stays the
// same as long as the data root has networks in it.
func (p privateEngine) addressRange() (netip.Prefix, error) {
	var saved struct{ Range netip.Prefix }
	if text, err := os.ReadFile(p.networkFile()); err == nil && json.Unmarshal(text, &saved) == nil && saved.Range.IsValid() {
		return saved.Range, nil
	}
	networks, err := freeRange(p.prefix)
	if err != nil {
		return netip.Prefix{}, err
	}
	saved.Range = networks
	text, err := json.Marshal(saved)
	if err != nil {
		return netip.Prefix{}, fmt.Errorf("encode address range: %w", err)
	}
	return networks, writeFile(p.networkFile(), text, 0o644)
}

// firstHost returns the bridge's own address: the first one of the first /24.
func firstHost(networks netip.Prefix) netip.Prefix {
	return netip.PrefixFrom(networks.Masked().Addr().Next(), 24)
}

// range6 returns the IPv6 range of kind's network, a unique local one.
func (p privateEngine) range6() netip.Prefix {
	address := [16]byte{0xfd}
	sum := sha256.Sum256([]byte(p.run))
	copy(address[1:6], sum[:])
	return netip.PrefixFrom(netip.AddrFrom16(address), 64)
}

func (p privateEngine) startContainerd(ctx context.Context) error {
	// The plugins that are switched off would serve a kubelet, and make
	// directories outside of ours.
	config := fmt.Sprintf(`version = 2
root = %q
state = %q
disabled_plugins = ["io.containerd.grpc.v1.cri", "io.containerd.internal.v1.opt"]
[grpc]
  address = %q
`, filepath.Join(p.data, "containerd"), filepath.Join(p.run, "containerd"), p.containerdSocket())
	if err := writeFile(p.containerdConfig(), []byte(config), 0o644); err != nil {
		return err
	}
	return background{
		daemon: p.containerd(),
		log:    p.containerdLog(),
		ready: func(ctx context.Context) error {
			var dialer net.Dialer
			conn, err := dialer.DialContext(ctx, "unix", p.containerdSocket())
			if err != nil {
				return err
			}
			return conn.Close()
		},
	}.start(ctx)
}

// dockerdConfig is the part of dockerd's configuration file that the lab sets.
type dockerdConfig struct {
	Hosts          []string                 `json:"hosts"`
	DataRoot       string                   `json:"data-root"`
	ExecRoot       string                   `json:"exec-root"`
	PidFile        string                   `json:"pidfile"`
	Containerd     string                   `json:"containerd"`
	Bridge         string                   `json:"bridge"`
	IPTables       bool                     `json:"iptables"`
	IP6Tables      bool                     `json:"ip6tables"`
	IPMasq         bool                     `json:"ip-masq"`
	MTU            int                      `json:"mtu,omitempty"`
	AddressPools   []addressPool            `json:"default-address-pools"`
	LiveRestore    bool                     `json:"live-restore"`
	Labels         []string                 `json:"labels"`
	Runtimes       map[string]dockerRuntime `json:"runtimes,omitempty"`
	DefaultRuntime string                   `json:"default-runtime,omitempty"`
}

type addressPool struct {
	Base netip.Prefix `json:"base"`
	Size int          `json:"size"`
}

type dockerRuntime struct {
	Path string `json:"path"`
}

func (p privateEngine) startDockerd(ctx context.Context, networks netip.Prefix) error {
	config := dockerdConfig{
		Hosts:      []string{"unix://" + p.socket()},
		DataRoot:   filepath.Join(p.data, "docker"),
		ExecRoot:   p.execRoot(),
		PidFile:    p.pidFile(),
		Containerd: p.containerdSocket(),
		Bridge:     p.bridge(),
		MTU:        uplinkMTU(),
		// See firewall.go for what is done instead.
		IPTables: false, IP6Tables: false, IPMasq: false,
		AddressPools: []addressPool{{Base: networks, Size: 24}},
		// Clusters survive a dockerd that was killed.
		LiveRestore: true,
		Labels:      []string{"dra-lab.engine=private"},
	}
	missing, err := missingCapabilities()
	if err != nil {
		return err
	}
	if len(missing) > 0 {
		runc := findProgram("runc")
		if runc == "" {
			return errors.New("find OCI runtime: program \"runc\" not found")
		}
		runtime, err := installRuntime(p.bin, runc)
		if err != nil {
			return err
		}
		config.DefaultRuntime = "dra-lab"
		config.Runtimes = map[string]dockerRuntime{config.DefaultRuntime: {Path: runtime}}
	}
	text, err := json.MarshalIndent(config, "", "  ")
	if err != nil {
		return fmt.Errorf("encode engine configuration: %w", err)
	}
	process, err := p.dockerd().find()
	if err != nil {
		return err
	}
	if process == nil {
		if err := writeFile(p.config(), text, 0o644); err != nil {
			return err
		}
		// dockerd refuses to start while any process has the number in the
		// file, be it somebody else's by now.
		if err := os.Remove(p.pidFile()); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("remove stale pid file: %w", err)
		}
	}
	return background{
		daemon: p.dockerd(),
		log:    p.log(),
		ready:  func(ctx context.Context) error { return ping(ctx, p.socket()) },
	}.start(ctx)
}

// missingCapabilities returns what the host withholds from this process and
// the engine that it starts.
func missingCapabilities() ([]string, error) {
	bounding, err := capability.Bounding()
	if err != nil {
		return nil, err
	}
	last, err := capability.Last()
	if err != nil {
		return nil, err
	}
	return bounding.Missing(last), nil
}

// ensureNetwork makes the network that kind puts its nodes on before kind does,
// so that its bridge has a name that the firewall rules cover. Like kind's it
// has IPv6 where the host does.
func (p privateEngine) ensureNetwork(ctx context.Context) error {
	e := p.engine()
	if e.Command(ctx, "network", "inspect", kindNetwork).Run() == nil {
		return nil
	}
	args := []string{"network", "create", "--driver=bridge",
		"--opt=com.docker.network.bridge.name=" + p.kindBridge()}
	if mtu := uplinkMTU(); mtu > 0 {
		args = append(args, fmt.Sprintf("--opt=com.docker.network.driver.mtu=%d", mtu))
	}
	if _, err := output(e.Command(ctx, append(args, "--ipv6", "--subnet="+p.range6().String(), kindNetwork)...)); err == nil {
		return nil
	}
	if _, err := output(e.Command(ctx, append(args, kindNetwork)...)); err != nil {
		return fmt.Errorf("make engine network %q: %w", kindNetwork, err)
	}
	return nil
}

// ping asks an engine whether it serves.
func ping(ctx context.Context, socket string) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	transport := &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var dialer net.Dialer
			return dialer.DialContext(ctx, "unix", socket)
		},
		DisableKeepAlives: true,
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://engine/_ping", nil)
	if err != nil {
		return fmt.Errorf("ping engine: %w", err)
	}
	response, err := (&http.Client{Transport: transport}).Do(request)
	if err != nil {
		return fmt.Errorf("ping engine: %w", err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("ping engine: %s", response.Status)
	}
	return nil
}

// background is a daemon to start.
type background struct {
	daemon
	log   string                      // file that its output is appended to
	ready func(context.Context) error // nil once it serves
}

const (
	startTimeout = time.Minute
	maxLog       = 8 << 20 // bytes; a log larger than this is set aside
)

// start starts the daemon unless it runs, in a session of its own so that it
// outlives this program and its terminal, and waits until it is ready.
func (b background) start(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout, fmt.Errorf("not ready after %s", startTimeout))
	defer cancel()
	running, err := b.find()
	if err != nil {
		return err
	}
	exited := make(chan error, 1)
	if running == nil {
		path := findProgram(b.program)
		if path == "" {
			return fmt.Errorf("start %s: program not found", b.program)
		}
		log, err := openLog(b.log)
		if err != nil {
			return err
		}
		defer log.Close()
		cmd := exec.Command(path, b.arg) // not bound to ctx: it stays
		cmd.Dir = "/"
		cmd.Env = daemonEnv(os.Environ())
		cmd.Stdout, cmd.Stderr = log, log
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		if err := raiseFileLimit(); err != nil {
			return fmt.Errorf("start %s: %w", b.program, err)
		}
		if err := cmd.Start(); err != nil {
			return fmt.Errorf("start %s: %w", b.program, err)
		}
		// While this program lives it is the parent and has to take note of
		// the end; the goroutine ends with either.
		go func() { exited <- cmd.Wait() }()
	}
	err = poll(ctx, func(ctx context.Context) error {
		select {
		case err := <-exited:
			return final{fmt.Errorf("ended at once: %w", cmp.Or(err, errors.New("exit status 0")))}
		default:
			return b.ready(ctx)
		}
	})
	if err != nil {
		return ui.WithDetail(fmt.Errorf("start %s (log: %s): %w", b.program, b.log, err),
			"last lines of "+b.log, tail(b.log))
	}
	return nil
}

// raiseFileLimit lets this process and what it starts open as many files as the
// hard limit says, as a service manager would. A login shell's 1024 would be
// handed down to every container.
func raiseFileLimit() error {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return fmt.Errorf("read limit of open files: %w", err)
	}
	// Beyond that, programs that close all they might have open take minutes.
	limit.Cur = min(limit.Max, 1<<20)
	// Go raises the limit for itself alone; set explicitly, children get it.
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return fmt.Errorf("raise limit of open files: %w", err)
	}
	return nil
}

// openLog opens a log for appending. One that has grown large is set aside.
func openLog(path string) (*os.File, error) {
	if info, err := os.Stat(path); err == nil && info.Size() > maxLog {
		if err := os.Rename(path, path+".1"); err != nil {
			return nil, fmt.Errorf("set log aside: %w", err)
		}
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, fmt.Errorf("open log: %w", err)
	}
	return f, nil
}

// tail returns the last 20 lines of a file, "" if it cannot be read.
func tail(path string) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	if info, err := f.Stat(); err == nil && info.Size() > 64<<10 {
		_, _ = f.Seek(-64<<10, 2)
	}
	buffer := make([]byte, 64<<10)
	n, _ := f.Read(buffer)
	all := strings.Split(strings.TrimRight(string(buffer[:n]), "\n"), "\n")
	return strings.Join(all[max(0, len(all)-20):], "\n")
}
