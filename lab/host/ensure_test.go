package host

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dra-lab/dra-lab/lab/internal/ui"
)

// The user's choice is the only candidate; else the order is fixed.
func TestCandidates(t *testing.T) {
	p := privateEngine{run: "/run/dra-lab/engine"}
	for name, tc := range map[string]struct {
		env  map[string]string
		want []string
	}{
		"nothing set":      {nil, []string{"private", "docker", "podman", "nerdctl"}},
		"docker by name":   {map[string]string{providerEnv: "docker"}, []string{"private", "docker"}},
		"podman by name":   {map[string]string{providerEnv: "podman"}, []string{"podman from KIND_EXPERIMENTAL_PROVIDER"}},
		"socket":           {map[string]string{dockerHostEnv: "unix:///x"}, []string{"docker unix:///x from DOCKER_HOST"}},
		"the lab's own":    {map[string]string{dockerHostEnv: "unix:///run/dra-lab/engine/docker.sock", providerEnv: "docker"}, []string{"private from DOCKER_HOST"}},
		"podman wins over": {map[string]string{dockerHostEnv: "unix:///x", providerEnv: "podman"}, []string{"podman from KIND_EXPERIMENTAL_PROVIDER"}},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, c := range candidates(p, func(name string) string { return tc.env[name] }) {
				text := c.Kind
				if c.Private {
					text = "private"
				} else if c.Host != "" {
					text += " " + c.Host
				}
				if c.from != "" {
					text += " from " + c.from
				}
				got = append(got, text)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("candidates (-want +got):\n%s", diff)
			}
		})
	}
}

// fakeDocker puts a docker command on PATH whose engine answers info and runs
// containers as the shell script in run says. It hides podman and nerdctl.
func fakeDocker(t *testing.T, info, run string) {
	t.Helper()
	dir := t.TempDir()
	script := fmt.Sprintf(`#!/bin/sh
case "$1" in
--version) echo "Docker version 20.10.24, build x" ;;
context) echo unix:///fake.sock ;;
info) %s ;;
load) cat >/dev/null ;;
ps | images | rmi | rm) ;;
run) %s ;;
*) echo "fake docker: $*" >&2; exit 99 ;;
esac
`, info, run)
	if err := os.WriteFile(filepath.Join(dir, "docker"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"podman", "nerdctl"} {
		broken := fmt.Sprintf("#!/bin/sh\necho %s: cannot connect >&2; exit 125\n", name)
		if err := os.WriteFile(filepath.Join(dir, name), []byte(broken), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	t.Setenv(dockerHostEnv, "")
	t.Setenv(providerEnv, "")
}

const (
	answers    = `echo '{"ServerVersion":"27.1.1","CgroupVersion":"2","DockerRootDir":"/var/lib/docker","SecurityOptions":["name=seccomp"]}'`
	deniedSays = `echo "permission denied while trying to connect to the Docker daemon socket at unix:///fake.sock" >&2; exit 1`
	unable     = `echo "docker: Error response from daemon: unable to apply caps: operation not permitted." >&2; echo "See 'docker run --help'." >&2; exit 126`
	noResource = `exit 3`
)

// outsider is somebody who is not root and has no private engine.
func outsider(t *testing.T) ensurer {
	t.Helper()
	dir := t.TempDir()
	return ensurer{private: privateEngine{run: dir + "/run", data: dir + "/data", bin: dir + "/bin", prefix: "dltest"}, ui: testUI(t)}
}

// An engine that serves and has privileges is used as it is.
func TestEnsureFindsEngine(t *testing.T) {
	fakeDocker(t, answers, "exit 0")
	got, err := outsider(t).ensure(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	want := &Engine{Kind: "docker", Host: "unix:///fake.sock", DataRoot: "/var/lib/docker"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("engine (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"KIND_EXPERIMENTAL_PROVIDER=docker", "DOCKER_HOST=unix:///fake.sock"}, got.Env()); diff != "" {
		t.Errorf("Env (-want +got):\n%s", diff)
	}
}

// What the engine's containers lack is handed on to the cluster.
func TestEnsureReportsRestrictions(t *testing.T) {
	fakeDocker(t, strings.Replace(answers, `"CgroupVersion":"2"`, `"CgroupVersion":"1"`, 1), noResource)
	got, err := outsider(t).ensure(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	want := Restrictions{CapSysResource: true, CgroupV1: true, Missing: []string{"CAP_SYS_RESOURCE"}}
	if diff := cmp.Diff(want, got.Restrictions); diff != "" {
		t.Errorf("restrictions (-want +got):\n%s", diff)
	}
}

// Without a usable engine, somebody who is not root is told what to run.
func TestEnsureWithoutRoot(t *testing.T) {
	for name, tc := range map[string]struct{ info, run, err, hint string }{
		"no engine serves":      {"echo 'Cannot connect to the Docker daemon at unix:///fake.sock. Is the docker daemon running?' >&2; exit 1", "", "Cannot connect to the Docker daemon at unix:///fake.sock", "sudo "},
		"socket not for us":     {deniedSays, "", "permission denied", "sudo usermod -aG docker "},
		"no privileges":         {answers, unable, "unable to apply caps: operation not permitted", "sudo "},
		"quietly no privileges": {answers, "exit 4", "does not run privileged containers", "sudo "},
	} {
		t.Run(name, func(t *testing.T) {
			fakeDocker(t, tc.info, tc.run)
			n := outsider(t)
			_, err := n.ensure(t.Context())
			if !errors.Is(err, ErrNoEngine) || !strings.Contains(err.Error(), tc.err) || strings.Contains(err.Error(), "--help") {
				t.Errorf("error = %v, want ErrNoEngine with %q", err, tc.err)
			}
			if !strings.HasPrefix(ui.Hint(err), tc.hint) {
				t.Errorf("hint = %q, want %q and more", ui.Hint(err), tc.hint)
			}
			if exists(n.private.run) || exists(n.private.data) {
				t.Error("something was made for an engine that cannot start")
			}
		})
	}
}

// An engine that the user named is never replaced, not even by a working one.
func TestEnsureKeepsToNamedEngine(t *testing.T) {
	for name, tc := range map[string]struct {
		env, value, info, run, err string
	}{
		"socket that leads nowhere": {dockerHostEnv, "unix:///nowhere.sock",
			`echo "Cannot connect to the Docker daemon at $DOCKER_HOST. Is the docker daemon running?" >&2; exit 1`, "exit 0",
			`reach engine "unix:///nowhere.sock" (DOCKER_HOST): docker info: Cannot connect to the Docker daemon at unix:///nowhere.sock. Is the docker daemon running?`},
		"socket that is not for us": {dockerHostEnv, "unix:///others.sock", deniedSays, "exit 0",
			`reach engine "unix:///others.sock" (DOCKER_HOST): permission denied`},
		"engine without privileges": {dockerHostEnv, "unix:///weak.sock", answers, unable,
			`use engine "unix:///weak.sock" (DOCKER_HOST): the engine does not run privileged containers: docker run: docker: Error response from daemon: unable to apply caps: operation not permitted.`},
		"kind that does not serve": {providerEnv, "podman", answers, "exit 0",
			`reach engine "podman" (KIND_EXPERIMENTAL_PROVIDER): podman info: podman: cannot connect`},
		"kind that is none": {providerEnv, "lxc", answers, "exit 0",
			`use engine "lxc" (KIND_EXPERIMENTAL_PROVIDER): not one that kind can use`},
	} {
		t.Run(name, func(t *testing.T) {
			fakeDocker(t, tc.info, tc.run)
			t.Setenv(tc.env, tc.value)
			n := outsider(t)
			n.root = true // who could start another one
			_, err := n.ensure(t.Context())
			if err == nil || err.Error() != tc.err {
				t.Errorf("error = %v\nwant %s", err, tc.err)
			}
			if hint := ui.Hint(err); !strings.Contains(hint, tc.env) {
				t.Errorf("hint = %q, want one that names %s", hint, tc.env)
			}
			if exists(n.private.run) {
				t.Error("a private engine was begun")
			}
		})
	}
}

// What only looks for an engine says the same about a name that is none.
func TestFindEngineOfUnknownKind(t *testing.T) {
	t.Setenv(dockerHostEnv, "")
	t.Setenv(providerEnv, "lxc")
	_, err := FindEngine(t.Context())
	if err == nil || !strings.Contains(err.Error(), `use engine "lxc" (KIND_EXPERIMENTAL_PROVIDER): not one that kind can use`) {
		t.Errorf("error = %v, want one that says what kind can use", err)
	}
}

// The real docker command's words about a socket that is not there.
func TestFindEngineAtWrongSocket(t *testing.T) {
	if findProgram("docker") == "" {
		t.Skip("no docker command: NOT TESTED what it says about a wrong socket")
	}
	socket := filepath.Join(t.TempDir(), "no.sock")
	t.Setenv(dockerHostEnv, "unix://"+socket)
	t.Setenv(providerEnv, "")
	_, err := FindEngine(t.Context())
	if err == nil || !strings.Contains(err.Error(), socket) || !strings.Contains(ui.Hint(err), dockerHostEnv) {
		t.Errorf("FindEngine = %v, hint %q; want the socket and a hint about DOCKER_HOST", err, ui.Hint(err))
	}
}

// An engine that never answers does not hold the lab up for long.
func TestInspectIsBounded(t *testing.T) {
	fakeDocker(t, "exec sleep 600", "")
	ctx, cancel := context.WithTimeoutCause(t.Context(), 200*time.Millisecond, errors.New("no answer"))
	defer cancel()
	facts := inspect(ctx, Engine{Kind: "docker"})
	if facts.Unreachable != "no answer" {
		t.Errorf("Unreachable = %q, want the deadline's cause", facts.Unreachable)
	}
}

// Nor does one that answers, and then never comes to the end of a container.
func TestCheckIsBounded(t *testing.T) {
	fakeDocker(t, answers, "exec sleep 600")
	cause := errors.New("no answer")
	ctx, cancel := context.WithTimeoutCause(t.Context(), 200*time.Millisecond, cause)
	defer cancel()
	facts := EngineFacts{Kind: "docker"}
	if err := facts.check(ctx, *facts.engine()); !errors.Is(err, cause) || facts.Unprivileged != "no answer" {
		t.Errorf("check = %v, Unprivileged = %q; want the deadline's cause", err, facts.Unprivileged)
	}
}

func TestReadInfo(t *testing.T) {
	var docker, podman EngineFacts
	err := docker.readDocker([]byte(`{"ServerVersion":"29.0.0","CgroupVersion":"2","DockerRootDir":"/d","SecurityOptions":["name=rootless"]}`))
	if diff := cmp.Diff(EngineFacts{Version: "29.0.0", CgroupVersion: 2, DataRoot: "/d", Rootless: true, UserNamespace: true}, docker); diff != "" || err != nil {
		t.Errorf("docker: %v (-want +got):\n%s", err, diff)
	}
	err = podman.readPodman([]byte(`{"host":{"cgroupVersion":"v1","security":{"rootless":false},"remoteSocket":{"path":"/run/podman/podman.sock"}},"store":{"graphRoot":"/p"},"version":{"Version":"4.3.1"}}`))
	if diff := cmp.Diff(EngineFacts{Version: "4.3.1", CgroupVersion: 1, DataRoot: "/p"}, podman); diff != "" || err != nil {
		t.Errorf("podman: %v (-want +got):\n%s", err, diff)
	}
	if err := docker.readDocker([]byte(`{"ServerErrors":["Cannot connect"]}`)); err == nil || err.Error() != "Cannot connect" {
		t.Errorf("server errors: %v", err)
	}
	for _, text := range []string{"", "{}", "null"} {
		if err := docker.readDocker([]byte(text)); !errors.Is(err, errNoAnswer) {
			t.Errorf("readDocker(%q) = %v, want errNoAnswer", text, err)
		}
	}
}

// Podman's imitation of the docker command is not Docker.
func TestInspectRefusesImitation(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "docker"), []byte("#!/bin/sh\necho podman version 4.3.1\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	if facts := inspect(t.Context(), Engine{Kind: "docker"}); !strings.Contains(facts.Unreachable, "podman version 4.3.1") {
		t.Errorf("Unreachable = %q, want what the command really is", facts.Unreachable)
	}
}

// What killed processes left is removed, what living ones use is not.
func TestAbandoned(t *testing.T) {
	gone := 1 << 30 // above the largest process number
	lines := fmt.Sprintf("p-%d-abc\np-%d-def\nlatest\n", gone, os.Getpid())
	if diff := cmp.Diff([]string{fmt.Sprintf("%d-abc", gone)}, abandoned(lines, "p-")); diff != "" {
		t.Errorf("abandoned (-want +got):\n%s", diff)
	}
}
