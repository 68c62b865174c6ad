package host

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/dra-lab/dra-lab/lab/internal/ui"
)

func TestParseRoutes(t *testing.T) {
	got, err := parseRoutes(strings.NewReader(`Iface	Destination	Gateway 	Flags	RefCnt	Use	Metric	Mask		MTU	Window	IRTT
eth0	00000000	010200C0	0003	0	0	0	00000000	0	0	0
tun0	0000D50A	00000000	0001	0	0	0	0000FFFF	0	0	0
`))
	if err != nil {
		t.Fatal(err)
	}
	want := []route{
		{"eth0", netip.MustParsePrefix("0.0.0.0/0")},
		{"tun0", netip.MustParsePrefix("10.213.0.0/16")},
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(route{}), cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); diff != "" {
		t.Errorf("routes (-want +got):\n%s", diff)
	}
	if _, err := parseRoutes(strings.NewReader("head\neth0 xyz 0 0 0 0 0 00000000\n")); err == nil {
		t.Error("a broken table went through")
	}
}

func TestParseMounts(t *testing.T) {
	got, err := parseMounts(strings.NewReader(`22 1 0:1 / /run rw - tmpfs tmpfs rw
23 22 0:2 / /run/with\040blank rw - tmpfs tmpfs rw
short
`))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"/run", "/run/with blank"}, got); diff != "" {
		t.Errorf("mounts (-want +got):\n%s", diff)
	}
}

// Every rule names interfaces or addresses of ours, and the chain is no one
// else's.
func TestFirewallRules(t *testing.T) {
	f := firewall{prefix: "dralab", networks: netip.MustParsePrefix("10.213.0.0/16")}
	var got []string
	for _, r := range f.rules() {
		got = append(got, strings.Join(r, " "))
	}
	want := []string{
		"-t filter -A DRALAB -i dralab+ -o docker+ -j RETURN",
		"-t filter -A DRALAB -i dralab+ -o br-+ -j RETURN",
		"-t filter -A DRALAB -i dralab+ -j ACCEPT",
		"-t filter -A DRALAB -o dralab+ -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
		"-t nat -A DRALAB -s 10.213.0.0/16 ! -o dralab+ -j MASQUERADE",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("rules (-want +got):\n%s", diff)
	}
}

// The engine's runtime takes the detour through the lab only for calls that set
// capabilities, and passes every argument as it is.
func TestRuntimeScript(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"it's lab": "#!/bin/sh\necho lab \"$@\"\n",
		"runc":     "#!/bin/sh\necho runc \"$@\"\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	script := filepath.Join(dir, "runtime")
	runc := filepath.Join(dir, "runc")
	if err := os.WriteFile(script, []byte(runtimeScript(filepath.Join(dir, "it's lab"), runc)), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		args []string
		want string
	}{
		{[]string{"--root", "/a b", "create", "--bundle", "/b", "id"}, "lab oci-runtime " + runc + " --root /a b create --bundle /b id"},
		{[]string{"exec", "--process", "/p", "id"}, "lab oci-runtime " + runc + " exec --process /p id"},
		{[]string{"--root", "/r", "kill", "id", "9"}, "runc --root /r kill id 9"},
		{[]string{"--version"}, "runc --version"},
	} {
		out, err := exec.Command(script, tc.args...).Output()
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.TrimSpace(string(out)); got != tc.want {
			t.Errorf("runtime %q\n got %q\nwant %q", tc.args, got, tc.want)
		}
	}
}

// The copy of the program has its content's name, and making it again changes
// nothing.
func TestInstallRuntime(t *testing.T) {
	dir := t.TempDir()
	first, err := installRuntime(dir, "/usr/sbin/runc")
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(filepath.Dir(first), "lab")
	before, err := os.Stat(program)
	if err != nil {
		t.Fatal(err)
	}
	second, err := installRuntime(dir, "/usr/sbin/runc")
	if err != nil || second != first {
		t.Fatalf("second time %q, %v; want %q", second, err, first)
	}
	after, err := os.Stat(program)
	if err != nil || !os.SameFile(before, after) {
		t.Errorf("the copy was made again (%v)", err)
	}
	// One that was cut off is made anew.
	if err := os.Truncate(program, 10); err != nil {
		t.Fatal(err)
	}
	if _, err := installRuntime(dir, "/usr/sbin/runc"); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(program); err != nil || info.Size() != before.Size() {
		t.Errorf("the copy was not mended: %v, %v", info, err)
	}
}

func TestDaemonEnv(t *testing.T) {
	got := daemonEnv([]string{"PATH=/mine", "DOCKER_HOST=unix:///x", "HTTP_PROXY=http://p", "NOTIFY_SOCKET=/n", "DOCKER_CONTENT_TRUST=1"})
	if diff := cmp.Diff([]string{"HTTP_PROXY=http://p", "PATH=/mine:" + systemPath}, got); diff != "" {
		t.Errorf("environment (-want +got):\n%s", diff)
	}
}

func TestGist(t *testing.T) {
	for said, want := range map[string]string{
		"": "",
		"docker: Error response from daemon: no.\nSee 'docker run --help'.\n": "docker: Error response from daemon: no.",
		"a\nb\n\nRun 'docker run --help' for more information":                "b",
	} {
		if got := gist(said); got != want {
			t.Errorf("gist(%q) = %q, want %q", said, got, want)
		}
	}
}

func TestDirs(t *testing.T) {
	t.Setenv("HOME", "/home/ada")
	t.Setenv("XDG_CACHE_HOME", "")
	for _, tc := range []struct {
		env  string
		get  func() (string, error)
		want string
	}{
		{CacheEnv, CacheDir, "/home/ada/.cache/dra-lab"},
		{StateEnv, StateDir, "/home/ada/.local/state/dra-lab"},
		{RunEnv, runDir, "/run/dra-lab"},
	} {
		t.Setenv(tc.env, "")
		if got, err := tc.get(); err != nil || got != tc.want {
			t.Errorf("default for %s = %q, %v; want %q", tc.env, got, err, tc.want)
		}
		t.Setenv(tc.env, "/elsewhere")
		if got, err := tc.get(); err != nil || got != "/elsewhere" {
			t.Errorf("%s is not heeded: %q, %v", tc.env, got, err)
		}
	}
}

// Services are held back while this process installs, not longer, and never
// against an administrator's own policy.
func TestHoldServices(t *testing.T) {
	path := filepath.Join(t.TempDir(), "policy-rc.d")
	if _, err := holdServices(path); err != nil {
		t.Fatal(err)
	}
	asked := exec.Command(path, "docker", "start")
	_ = asked.Run()
	if got := asked.ProcessState.ExitCode(); got != 101 {
		t.Errorf("while installing, the policy says %d, want 101", got)
	}
	// A killed process leaves a policy that allows everything,
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	orphan := strings.Replace(string(text), "kill -0 ", "kill -0 1073741824", 1)
	if err := os.WriteFile(path, []byte(orphan), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := exec.Command(path, "docker", "start").Run(); err != nil {
		t.Errorf("a policy whose process is gone still holds: %v", err)
	}
	// and that the next installation replaces and removes.
	remove, err := holdServices(path)
	if err != nil {
		t.Fatal(err)
	}
	remove()
	if exists(path) {
		t.Error("the policy is left")
	}

	if err := os.WriteFile(path, []byte("#!/bin/sh\nexit 104\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if remove, err = holdServices(path); err != nil {
		t.Fatal(err)
	}
	remove()
	if text, err := os.ReadFile(path); err != nil || !strings.Contains(string(text), "104") {
		t.Errorf("the administrator's policy is gone: %q, %v", text, err)
	}
}

// Packages that are there cost nothing; a name that nobody has is missing.
func TestMissingPackages(t *testing.T) {
	if findProgram("dpkg-query") == "" {
		t.Skip("no dpkg here")
	}
	got, err := missingPackages(t.Context(), []string{"base-files", "no-such-package-anywhere", "dpkg"})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"no-such-package-anywhere"}, got); diff != "" {
		t.Errorf("missing (-want +got):\n%s", diff)
	}
}

// A fake apt-get shows what is done about its two common complaints, and what
// the user sees when nothing helps.
func TestInstallPackages(t *testing.T) {
	for name, tc := range map[string]struct {
		script string // of apt-get; $STATE is a directory
		fails  bool
		calls  string
	}{
		"at once":   {`exit 0`, false, "install"},
		"old lists": {`case "$*" in *update*) touch $STATE/new ;; *) test -e $STATE/new || { echo "E: Unable to locate package x"; exit 100; } ;; esac`, false, "install update install"},
		"no network": {`case "$*" in *update*) echo "W: Failed to fetch http://deb"; exit 100 ;; *) echo "E: Unable to locate package x"; exit 100 ;; esac`,
			true, "install update"},
		"something else": {`echo "E: disk full"; exit 100`, true, "install"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			t.Setenv("STATE", dir)
			t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
			script := "#!/bin/sh\nfor a in \"$@\"; do case $a in install|update) echo $a >>$STATE/calls ;; esac; done\n" + tc.script + "\n"
			if err := os.WriteFile(filepath.Join(dir, "apt-get"), []byte(script), 0o755); err != nil {
				t.Fatal(err)
			}
			step := testUI(t).Step("installing")
			defer step.Done(nil)
			err := installPackages(t.Context(), step, filepath.Join(dir, "policy-rc.d"), []string{"x"})
			if (err != nil) != tc.fails {
				t.Errorf("error = %v, want one: %t", err, tc.fails)
			}
			if tc.fails && (!strings.Contains(err.Error(), "install packages x: run apt-get") || ui.Detail(err) == "") {
				t.Errorf("error = %v with detail %q, want the names and apt-get's words", err, ui.Detail(err))
			}
			calls, err := os.ReadFile(filepath.Join(dir, "calls"))
			if err != nil {
				t.Fatal(err)
			}
			if got := strings.Join(strings.Fields(string(calls)), " "); got != tc.calls {
				t.Errorf("calls %q, want %q", got, tc.calls)
			}
		})
	}
}

// poll ends with the last error or at once with a final one.
func TestPoll(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("enough"))
	err := poll(ctx, func(context.Context) error { return errors.New("not yet") })
	if err == nil || err.Error() != "enough (last: not yet)" {
		t.Errorf("poll = %v", err)
	}
	stop := errors.New("never")
	if err := poll(t.Context(), func(context.Context) error { return final{stop} }); !errors.Is(err, stop) {
		t.Errorf("poll = %v, want %v", err, stop)
	}
}

// A process is found by program and argument together, and by nothing less.
func TestFindDaemon(t *testing.T) {
	cmd := exec.Command("sleep", "600.25")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	if p, err := (daemon{"sleep", "600.25"}).find(); err != nil || p == nil || p.Pid != cmd.Process.Pid {
		t.Errorf("find = %v, %v; want pid %d", p, err, cmd.Process.Pid)
	}
	for _, d := range []daemon{{"sleep", "600.2"}, {"slee", "600.25"}, {"sleep", "sleep"}} {
		if d.running() {
			t.Errorf("%+v is taken for running", d)
		}
	}
}

// Somebody who interrupts a stop while the engine is only on disk, as after a
// reboot, has not shown that no container is in it: the next stop must look.
func TestInterruptedStopForgetsNothing(t *testing.T) {
	dir := t.TempDir()
	p := privateEngine{run: filepath.Join(dir, "file", "engine"), data: filepath.Join(dir, "data"), prefix: "dltest"}
	// Given an engine that has run, and cannot start: its run directory is in a file.
	if err := os.MkdirAll(p.data, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{p.networkFile(), filepath.Join(dir, "file")} {
		if err := os.WriteFile(file, []byte("{}"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	interrupt := errors.New("interrupted")
	cancel(interrupt)
	if err := p.removeContainers(ctx); !errors.Is(err, interrupt) {
		t.Errorf("removeContainers = %v, want %v", err, interrupt)
	}
}
