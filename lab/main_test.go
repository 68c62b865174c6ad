package main

import (
	"bufio"
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
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"github.com/spf13/cobra"

	"github.com/dra-lab/dra-lab/lab/host"
	"github.com/dra-lab/dra-lab/lab/host/ociruntime"
	"github.com/dra-lab/dra-lab/lab/internal/ui"
	"github.com/dra-lab/dra-lab/lab/nodeimage"
	"github.com/dra-lab/dra-lab/lab/plugin"
)

// The scripts in testdata run the lab as its users do, in a process of its own.
// Beside it they have two programs that put it into situations.
func TestMain(m *testing.M) {
	// Copies of the lab, under other names, are started by engines and in nodes.
	if len(os.Args) > 1 && slices.Contains([]string{ociruntime.Verb, plugin.RelayVerb}, os.Args[1]) {
		main()
	}
	testscript.Main(m, map[string]func(){
		"lab":       main,
		"nobody":    asNobody,
		"interrupt": interrupt,
	})
}

// requireEnv says that the machine has an engine and a node image, so that
// scripts that are skipped for want of one are a mistake. So does
// clusterEnv, which scripts/test.sh sets.
const (
	requireEnv = "DRA_LAB_REQUIRE_ENGINE"
	clusterEnv = "DRA_LAB_TEST_CLUSTER"
)

// TestScripts runs testdata/*.txt. Besides testscript's own commands they have
// refuses, waitfor, tmpfs, weakengine and cures, and the conditions live, built,
// root, mounts and packages: see the functions of those names.
func TestScripts(t *testing.T) {
	m := findMachine(t)
	testscript.Run(t, testscript.Params{
		Dir:   "testdata",
		Setup: m.setup,
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"refuses":    refuses,
			"waitfor":    waitFor,
			"tmpfs":      tmpfs,
			"weakengine": weakEngine,
			"cures":      cures,
		},
		Condition: m.condition,
	})
}

// A machine is what the scripts run on.
type machine struct {
	engine *host.Engine // nil: none that serves
	image  string       // a node image that it has; "": none
	bin    string       // the directory of the lab that scripts run
	built  bool         // it has the real driver and trainer
	why    string       // why not live
}

func findMachine(t *testing.T) machine {
	t.Helper()
	var m machine
	engine, err := host.FindEngine(t.Context())
	if err != nil {
		m.why = err.Error()
	} else {
		m.engine = engine
		// Not the image that lab would choose: that of an older recipe will do.
		ref := "dra-lab/node:" + nodeimage.DefaultKubernetes
		if out, err := engine.Command(t.Context(), "image", "inspect", "--format={{.Id}}", ref).CombinedOutput(); err == nil {
			m.image = ref
		} else {
			m.why = fmt.Sprintf("no node image %s: %s", ref, bytes.TrimSpace(out))
		}
	}
	switch {
	case m.why == "":
	case os.Getenv(requireEnv) != "" || os.Getenv(clusterEnv) != "":
		t.Fatalf("%s or %s is set, but: %s", requireEnv, clusterEnv, m.why)
	default:
		t.Logf("NOT TESTED on a real engine: %s", m.why)
	}
	m.bin, m.built = provideArtifacts(t)
	return m
}

// provideArtifacts puts the lab's other programs beside the lab that scripts run,
// and reports whether they are real: lab up looks for them first, and most
// scripts end before it uses them.
func provideArtifacts(t *testing.T) (dir string, built bool) {
	t.Helper()
	self, err := exec.LookPath("lab")
	if err != nil {
		t.Fatal(err)
	}
	dir = filepath.Dir(self)
	// It is below a directory that is only ours; scripts run it as nobody, too.
	for _, d := range []string{dir, filepath.Dir(dir)} {
		if err := os.Chmod(d, 0o755); err != nil { //nolint:gosec // see above
			t.Fatal(err)
		}
	}
	built = true
	for _, program := range []string{"driver", "trainer", "scenarios.test"} {
		made, err := filepath.Abs(filepath.Join("../bin", program))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(made); err != nil {
			built, made = false, "/dev/null"
		}
		if err := os.Symlink(made, filepath.Join(dir, program)); err != nil {
			t.Fatal(err)
		}
	}
	return dir, built
}

// setup gives a script a home and a lab of its own. It has no engine unless it
// sets DOCKER_HOST to $ENGINE, and may make one cluster, $NAME.
func (m machine) setup(env *testscript.Env) error {
	for _, dir := range []string{env.WorkDir, filepath.Dir(env.WorkDir)} {
		if err := os.Chmod(dir, 0o755); err != nil { //nolint:gosec // scripts run the lab as nobody, too
			return err
		}
	}
	proxy := moduleProxy()
	env.Defer(proxy.Close)
	silent, err := net.Listen("tcp", "127.0.0.1:0") // accepts and says nothing
	if err != nil {
		return err
	}
	env.Defer(func() { _ = silent.Close() })

	name := fmt.Sprintf("dra-lab-t-%s-%d", strings.TrimPrefix(filepath.Base(env.WorkDir), "script-"), os.Getpid())
	env.Setenv("NAME", name)
	env.Setenv("HOME", filepath.Join(env.WorkDir, "home"))
	env.Setenv(host.StateEnv, filepath.Join(env.WorkDir, "state"))
	env.Setenv(host.CacheEnv, filepath.Join(env.WorkDir, "cache"))
	env.Setenv(host.RunEnv, filepath.Join(env.WorkDir, "run"))
	env.Setenv("MODULES", proxy.URL)
	env.Setenv("SILENT", "tcp://"+silent.Addr().String())
	env.Setenv("IMAGE", m.image)
	env.Setenv("BIN", m.bin)
	env.Setenv("FULLPATH", env.Getenv("PATH"))
	if m.engine != nil {
		env.Setenv("ENGINE", m.engine.Host)
		env.Defer(func() { m.removeContainers(name) })
	}
	return nil
}

// removeContainers removes what a script that failed left of its cluster.
func (m machine) removeContainers(cluster string) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	out, err := m.engine.Command(ctx, "ps", "--all", "--quiet", "--filter=label=io.x-k8s.kind.cluster="+cluster).Output()
	if ids := strings.Fields(string(out)); err == nil && len(ids) > 0 {
		_ = m.engine.Command(ctx, append([]string{"rm", "--force", "--volumes"}, ids...)...).Run()
	}
}

// condition decides [live], [built], [root], [mounts] and [packages].
func (m machine) condition(name string) (bool, error) {
	switch name {
	case "live": // an engine serves and has a node image
		return m.why == "", nil
	case "built": // make build has run: lab up can end well
		return m.built, nil
	case "root":
		return os.Geteuid() == 0, nil
	case "mounts": // tmpfs works
		dir, err := os.MkdirTemp("", "lab-mount")
		if err != nil {
			return false, err
		}
		defer os.Remove(dir)
		if syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=4k") != nil {
			return false, nil
		}
		return true, syscall.Unmount(dir, 0)
	case "packages": // building a node image would not install any first
		out, err := exec.Command("dpkg-query", append([]string{"--show", "--showformat=${db:Status-Status} "}, host.BuildPackages()...)...).Output()
		words := strings.Fields(string(out))
		missing := slices.ContainsFunc(words, func(status string) bool { return status != "installed" })
		return err == nil && !missing && len(words) == len(host.BuildPackages()), nil
	}
	return false, fmt.Errorf("unknown condition %q", name)
}

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

// weakEngine sets DOCKER_HOST to a socket behind which is the real engine, with a
// policy as authorization plugins have it: no privileged containers.
func weakEngine(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 0 {
		ts.Fatalf("usage: weakengine")
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
	path := ts.MkAbs("weak.sock")
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
	versions := []string{"v1.35.8", "v1.36.3", "v1.37.0", "v1.37.2"}
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

// asNobody is the program nobody: it runs another one as an ordinary user, which
// it already is unless tests run as root.
//
//	nobody PROGRAM [ARGUMENT...]
func asNobody() {
	cmd := exec.Command(os.Args[1], os.Args[2:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	if os.Geteuid() == 0 {
		const nobody = 65534
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	}
	os.Exit(exitStatus(cmd.Run()))
}

// interrupt is the program interrupt: it runs another one in a process group, as
// a shell does, and sends the group a signal when a line on stderr matches, as
// Ctrl-C does. Signals with lines come one after the other. It ends as the other
// program does, and with status 99 if that ended without the lines.
//
//	interrupt SIGNAL:REGEXP... -- PROGRAM [ARGUMENT...]
func interrupt() {
	split := slices.Index(os.Args, "--")
	var plan []planned
	for _, arg := range os.Args[1:split] {
		name, text, _ := strings.Cut(arg, ":")
		number := map[string]syscall.Signal{"INT": syscall.SIGINT, "TERM": syscall.SIGTERM, "KILL": syscall.SIGKILL}[name]
		plan = append(plan, planned{number, regexp.MustCompile(text)})
	}
	cmd := exec.Command(os.Args[split+1], os.Args[split+2:]...)
	cmd.Stdout = os.Stdout
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	stderr, err := cmd.StderrPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(98)
	}
	// What is sent to this program is for that one.
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		for range signals {
			_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGINT)
		}
	}()
	var reading sync.WaitGroup
	reading.Go(func() {
		for lines := bufio.NewScanner(stderr); lines.Scan(); {
			fmt.Fprintln(os.Stderr, lines.Text())
			if len(plan) > 0 && plan[0].line.Match(lines.Bytes()) {
				_ = syscall.Kill(-cmd.Process.Pid, plan[0].signal)
				plan = plan[1:]
			}
		}
	})
	reading.Wait()
	status := exitStatus(cmd.Wait())
	if len(plan) > 0 {
		fmt.Fprintf(os.Stderr, "interrupt: no line matched %q\n", plan[0].line)
		status = 99
	}
	os.Exit(status)
}

type planned struct {
	signal syscall.Signal
	line   *regexp.Regexp
}

// exitStatus returns the status of a program that ran, as a shell has it.
func exitStatus(err error) int {
	exit := (*exec.ExitError)(nil)
	switch {
	case err == nil:
		return 0
	case !errors.As(err, &exit):
		fmt.Fprintln(os.Stderr, err)
		return 98
	}
	if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return 128 + int(status.Signal())
	}
	return exit.ExitCode()
}

// Every command has a help page that says what it is for, on stdout, with
// examples whose flags and arguments it takes.
func TestHelpPages(t *testing.T) {
	seen := 0
	var walk func(cmd *cobra.Command)
	walk = func(cmd *cobra.Command) {
		if cmd.Hidden || (cmd.HasParent() && cmd.Parent().Name() == "completion") {
			return // hidden, or cobra's own text
		}
		seen++
		t.Run(cmd.CommandPath(), func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			args := append(strings.Fields(cmd.CommandPath())[1:], "--help")
			if status := run(args, &stdout, &stderr); status != 0 || stderr.Len() > 0 {
				t.Errorf("status %d, stderr %q", status, stderr.String())
			}
			if cmd.Short == "" || !strings.Contains(stdout.String(), "Usage:\n  "+cmd.CommandPath()) {
				t.Errorf("the page is %q", stdout.String())
			}
			if !strings.Contains(stdout.String(), "Examples:\n") {
				t.Error("the page has no example")
			}
			for line := range strings.Lines(cmd.Example) {
				example := regexp.MustCompile(`\s([#|]|[<>][^(]).*`).ReplaceAllString(line, "") // the shell's
				start := strings.Index(example, "lab ")
				if start < 0 {
					t.Errorf("the example %q does not run the lab", line)
					continue
				}
				words := strings.Fields(strings.TrimRight(example[start+len("lab "):], ")\"\n"))
				parsed, err := parse(words)
				if err == nil {
					err = parsed.ValidateArgs(parsed.Flags().Args())
				}
				if err != nil {
					t.Errorf("the example %q is wrong: %v", line, err)
				}
			}
		})
		for _, child := range cmd.Commands() {
			walk(child)
		}
	}
	walk(newRoot(&lab{ui: ui.New(io.Discard, io.Discard, 0)}))
	if seen < 15 {
		t.Errorf("only %d commands", seen)
	}
}
