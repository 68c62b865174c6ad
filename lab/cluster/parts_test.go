package cluster

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	kindexec "sigs.k8s.io/kind/pkg/exec"

	"github.com/dra-lab/dra-lab/lab/host"
	"github.com/dra-lab/dra-lab/lab/internal/ui"
)

// What docker 20.10 prints, shortened; podman and nerdctl have the same fields.
const inspected = `[
{"Id": "b1", "Name": "/demo-worker10", "State": {"Status": "running", "StartedAt": "2026-11-30T22:43:50.5Z"},
 "Config": {"Labels": {"io.x-k8s.kind.role": "worker"}}, "HostConfig": {"Binds": ["/state/clusters/demo/shared:/var/lib/dra-lab/shared", "/x:/y:ro"]},
 "Mounts": [{"Source": "/host_mnt/state/clusters/demo/shared", "Destination": "/var/lib/dra-lab/shared"}]},
{"Id": "b2", "Name": "/demo-worker2", "State": {"Status": "exited", "ExitCode": 137, "OOMKilled": true, "Error": "no space left"},
 "Config": {"Labels": {"io.x-k8s.kind.role": "worker"}}, "HostConfig": {"Binds": null}},
{"Id": "b3", "Name": "/demo-external-load-balancer", "State": {"Status": "running"},
 "Config": {"Labels": {"io.x-k8s.kind.role": "external-load-balancer"}}},
{"Id": "b4", "Name": "/demo-control-plane", "State": {"Status": "created"},
 "Config": {"Labels": {"io.x-k8s.kind.role": "control-plane"}}}
]`

func TestParseContainers(t *testing.T) {
	got, err := parseContainers([]byte(inspected))
	if err != nil {
		t.Fatal(err)
	}
	want := []container{
		{name: "demo-control-plane", id: "b4", role: "control-plane", state: "created", detail: "created, exit code 0", mounts: map[string]string{}},
		{name: "demo-external-load-balancer", id: "b3", role: "external-load-balancer", state: "running", detail: "running", mounts: map[string]string{}},
		{name: "demo-worker2", id: "b2", role: "worker", state: "exited", detail: "exited, exit code 137, out of memory: no space left", mounts: map[string]string{}},
		{
			name: "demo-worker10", id: "b1", role: "worker", state: "running", detail: "running",
			started: time.Date(2026, 11, 30, 22, 43, 50, 5e8, time.UTC),
			mounts:  map[string]string{SharedDir: "/state/clusters/demo/shared", "/y": "/x"},
		},
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(container{})); diff != "" {
		t.Errorf("containers (-want +got):\n%s", diff)
	}
}

func TestOwnership(t *testing.T) {
	dir := stateDir("/state/clusters/demo")
	node := func(source string) container {
		c := container{name: "demo-worker", role: "worker", mounts: map[string]string{}}
		if source != "" {
			c.mounts[SharedDir] = source
		}
		return c
	}
	balancer := container{name: "demo-external-load-balancer", role: "external-load-balancer"}
	ours := node("/state/clusters/demo/shared")
	const kindsOwn = "kind delete cluster --name demo"
	for _, tc := range []struct {
		name   string
		survey survey
		hint   string // of the error; "": there is none
	}{
		{"nothing is nobody's", survey{}, ""},
		{"our directory is mounted", survey{containers: []container{ours}}, ""},
		{"written in another way", survey{containers: []container{node("/state/clusters/./demo/shared/")}}, ""},
		{"nothing is mounted", survey{containers: []container{node("")}}, kindsOwn},
		{"the same cluster of another lab", survey{containers: []container{node("/home/x/clusters/demo/shared")}}, "export DRA_LAB_STATE=/home/x"},
		{"one of two is not ours", survey{containers: []container{ours, node("")}}, kindsOwn},
		{"a load balancer beside a node of ours", survey{containers: []container{balancer, ours}}, ""},
		{"a load balancer beside a node that is not ours", survey{containers: []container{balancer, node("")}}, kindsOwn},
		{"a load balancer alone", survey{containers: []container{balancer}}, kindsOwn},
		{"a load balancer alone, while we are making one", survey{containers: []container{balancer}, hasState: true}, ""},
		// A state file proves nothing about containers that are somebody else's.
		{"nothing is mounted, but we have state", survey{containers: []container{node("")}, hasState: true}, kindsOwn},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tc.survey.dir = dir
			err := tc.survey.checkOwner()
			if errors.Is(err, ErrForeign) != (tc.hint != "") || !strings.Contains(ui.Hint(err), tc.hint) {
				t.Errorf("got error %v with hint %q, want hint %q", err, ui.Hint(err), tc.hint)
			}
		})
	}
}

// A damaged or foreign state file is as good as none.
func TestState(t *testing.T) {
	t.Setenv("DRA_LAB_STATE", t.TempDir())
	dir, err := stateDirOf("demo")
	if err != nil {
		t.Fatal(err)
	}
	if _, ok, err := dir.read(); ok || err != nil {
		t.Errorf("nothing written: %t, %v", ok, err)
	}
	additions := []Addition{{Files: []File{{Path: filepath.Join(string(dir), "node/deep/f.sh"), Data: "x", Mode: 0o755}}}}
	want := state{Name: "demo", Phase: phaseReady, Version: "v1.37.2", Plan: "p", Merged: merged{Path: "/k", NewFile: true}}
	if err := os.MkdirAll(string(dir), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(dir.prepare(additions), dir.write(want)); err != nil {
		t.Fatal(err)
	}
	if got, ok, err := dir.read(); !ok || err != nil || got != want {
		t.Errorf("got %+v, %t, %v", got, ok, err)
	}
	if info, err := os.Stat(filepath.Join(string(dir), "node/deep/f.sh")); err != nil || info.Mode().Perm() != 0o755 {
		t.Errorf("file: %v, %v", info, err)
	}
	if info, err := os.Stat(dir.shared()); err != nil || info.Mode().Perm() != 0o777 {
		t.Errorf("shared directory: %v, %v", info, err)
	}
	// A second plan's files replace the first one's, and what Pods wrote stays.
	if err := os.WriteFile(filepath.Join(dir.shared(), "checkpoint"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := dir.prepare(nil); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(string(dir), "node")); err == nil {
		t.Error("files of the first plan are left")
	}
	if _, err := os.Stat(filepath.Join(dir.shared(), "checkpoint")); err != nil {
		t.Error(err)
	}
	for _, damaged := range []string{"{", `{"name": "other", "phase": "ready"}`} {
		if err := os.WriteFile(dir.file(), []byte(damaged), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, ok, err := dir.read(); ok || err != nil {
			t.Errorf("%s: %t, %v", damaged, ok, err)
		}
	}
	if err := dir.remove(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Dir(string(dir))); err == nil {
		t.Error("the empty directory of clusters is left")
	}
	if _, err := stateDirOf("../etc"); err == nil {
		t.Error("took a name that is a path")
	}
}

const twoContexts = `apiVersion: v1
kind: Config
current-context: kind-demo
contexts:
- {name: mine, context: {cluster: mine, user: mine, namespace: space}}
- {name: kind-demo, context: {cluster: kind-demo, user: kind-demo}}
clusters:
- {name: mine, cluster: {server: "https://a.test"}}
- {name: kind-demo, cluster: {server: "https://b.test"}}
users:
- {name: mine, user: {token: a}}
- {name: kind-demo, user: {token: b}}
`

func TestUnmerge(t *testing.T) {
	onlyOurs := `apiVersion: v1
kind: Config
current-context: kind-demo
contexts: [{name: kind-demo, context: {cluster: kind-demo, user: kind-demo}}]
clusters: [{name: kind-demo, cluster: {server: "https://b.test"}}]
users: [{name: kind-demo, user: {token: b}}]
`
	for _, tc := range []struct {
		name, config string
		merged       merged
		current      string   // afterwards
		contexts     []string // afterwards; nil: the file is gone
	}{
		{"the context before is current again", twoContexts, merged{Previous: "mine"}, "mine", []string{"mine"}},
		{"the context before is gone", twoContexts, merged{Previous: "other"}, "", []string{"mine"}},
		{
			"the user has switched", strings.Replace(twoContexts, "current-context: kind-demo", "current-context: mine", 1),
			merged{Previous: "other"}, "mine", []string{"mine"},
		},
		{"the file was there, empty", onlyOurs, merged{}, "", []string{}},
		{"the file was made for it", onlyOurs, merged{NewFile: true, NewDir: true}, "", nil},
		{"the file was made for it, and is used by now", twoContexts, merged{NewFile: true}, "", []string{"mine"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tc.merged.Path = filepath.Join(t.TempDir(), ".kube", "config")
			if err := os.MkdirAll(filepath.Dir(tc.merged.Path), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(tc.merged.Path, []byte(tc.config), 0o600); err != nil {
				t.Fatal(err)
			}
			// Twice: the second time there is nothing to do.
			for range 2 {
				if err := tc.merged.unmerge("demo"); err != nil {
					t.Fatal(err)
				}
			}
			config, err := clientcmd.LoadFromFile(tc.merged.Path)
			if tc.contexts == nil {
				if !os.IsNotExist(err) {
					t.Errorf("the file is left: %v", err)
				}
				if _, err := os.Stat(filepath.Dir(tc.merged.Path)); tc.merged.NewDir && err == nil {
					t.Error("the directory is left")
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			names := []string{}
			for name := range config.Contexts {
				names = append(names, name)
			}
			if diff := cmp.Diff(tc.contexts, names); diff != "" || config.CurrentContext != tc.current {
				t.Errorf("current context %q, contexts (-want +got):\n%s", config.CurrentContext, diff)
			}
			if len(config.Clusters) != len(names) || len(config.AuthInfos) != len(names) {
				t.Errorf("%d clusters, %d users", len(config.Clusters), len(config.AuthInfos))
			}
		})
	}
}

func TestUserKubeconfig(t *testing.T) {
	home := t.TempDir()
	t.Setenv("HOME", home)
	t.Setenv("DRA_LAB_STATE", filepath.Join(home, "state"))
	there := filepath.Join(home, "there")
	if err := os.WriteFile(there, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	ours := filepath.Join(home, "state", "clusters", "demo", "kubeconfig")
	for _, tc := range []struct{ env, want string }{
		{"", filepath.Join(home, ".kube", "config")},
		{"/no/a:/no/b", "/no/b"},
		{"/no/a:" + there + ":/no/b", there},
		// After eval "$(lab env)", the user's own file is still the user's.
		{ours, filepath.Join(home, ".kube", "config")},
		{ours + ":" + there, there},
	} {
		t.Setenv("KUBECONFIG", tc.env)
		if got, err := userKubeconfig(); err != nil || got != tc.want {
			t.Errorf("KUBECONFIG=%q: got %q, %v, want %q", tc.env, got, err, tc.want)
		}
	}
}

// What kind logs becomes steps, and tells when kubeadm starts.
func TestLogger(t *testing.T) {
	var stderr bytes.Buffer
	l := newLogger(ui.New(io.Discard, &stderr, 0))
	atKubeadm := ""
	l.kubeadmStarts = func() { atKubeadm = stderr.String() }
	info := l.V(0)
	info.Infof("Creating cluster %q ...\n", "demo")
	info.Infof(" • %s  ...\n", "Preparing nodes 📦 📦 ")
	info.Infof(" ✓ %s\n", "Preparing nodes 📦 📦 ")
	info.Infof(" • %s  ...\n", "Starting control-plane 🕹️")
	l.V(3).Info("a lot of text")
	l.Warn("Could not read storage manifest, falling back on old k8s.io/host-path default ...")
	l.Warnf("cluster name %q is probably too long\n", "demo")
	info.Infof(" ✗ %s\n", "Starting control-plane 🕹️")
	info.Infof(" • %s  ...\n", "Joining worker nodes 🚜")
	l.close(errors.New("interrupted"))
	want := `lab: • preparing nodes ...
lab: ✓ preparing nodes
lab: • starting control-plane ...
lab: warning: kind: cluster name "demo" is probably too long
lab: ✗ starting control-plane
lab: • joining worker nodes ...
lab: ✗ joining worker nodes
`
	if diff := cmp.Diff(want, stderr.String()); diff != "" {
		t.Errorf("stderr (-want +got):\n%s", diff)
	}
	if !strings.HasSuffix(atKubeadm, "lab: • starting control-plane ...\n") {
		t.Errorf("told of kubeadm's start after %q", atKubeadm)
	}
}

func TestSignificantLine(t *testing.T) {
	for _, tc := range []struct{ name, output, want string }{
		{"nothing", "", ""},
		{"the last line", "one\ntwo\n\n", "two"},
		{
			"kubeadm's error, not its stack",
			"I1130 init.go] waiting\nerror: error execution phase wait-control-plane: kube-apiserver check failed\n" +
				"To see the stack trace of this error execute with --v=5 or higher\nk8s.io/kubernetes/cmd/kubeadm/app.Run(0x1)\n\tcmd/kubeadm/app/kubeadm.go:47\nmain.main()\n",
			"error: error execution phase wait-control-plane: kube-apiserver check failed",
		},
		{
			"a kubelet's, not what systemd says of it",
			"Nov 30 23:04:50 n kubelet[9]: I0 started\nNov 30 23:04:50 n kubelet[9]: E0 run failed: unrecognized gate: Foo\n" +
				"Nov 30 23:04:50 n systemd[1]: kubelet.service: Failed with result 'exit-code'.\n",
			"Nov 30 23:04:50 n kubelet[9]: E0 run failed: unrecognized gate: Foo",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := significantLine(tc.output); got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}

func TestDifference(t *testing.T) {
	for _, tc := range []struct{ had, want, says string }{
		{"a: 1\nb: 2\n", "a: 1\nb: 3\n", `it has "b: 2" where "b: 3" is wanted`},
		{"a: 1\n", "a: 1\nb: 3\n", `it has "" where "b: 3" is wanted`},
	} {
		if got := difference(tc.had, tc.want); got != tc.says {
			t.Errorf("got %q, want %q", got, tc.says)
		}
	}
}

// A node that was ready before its container was started again is not ready.
func TestNotReady(t *testing.T) {
	started := time.Date(2026, 11, 30, 12, 0, 10, 5e8, time.UTC)
	node := func(status corev1.ConditionStatus, heartbeat time.Time) *corev1.Node {
		return &corev1.Node{Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{
			Type: corev1.NodeReady, Status: status, Reason: "KubeletNotReady", Message: "cni plugin not initialized",
			LastHeartbeatTime: metav1.NewTime(heartbeat),
		}}}}
	}
	for _, tc := range []struct {
		name string
		node *corev1.Node
		want string
	}{
		{"no status", &corev1.Node{}, "no status yet"},
		{"ready in the second of the start", node(corev1.ConditionTrue, started.Truncate(time.Second)), ""},
		{"ready before", node(corev1.ConditionTrue, started.Add(-2*time.Second)), "no status since its container was started"},
		{"not ready", node(corev1.ConditionFalse, started.Add(time.Second)), "KubeletNotReady: cni plugin not initialized"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := notReady(tc.node, started); got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}

func TestKnownCures(t *testing.T) {
	log := plainLines("\x1b[0;1;31mFailed to allocate manager object: Too many open files\x1b[0m\r\nToo many open files\n")
	if want := "Failed to allocate manager object: Too many open files\nToo many open files\n"; log != want {
		t.Errorf("got %q, want %q", log, want)
	}
	cures := knownCures(log)
	if len(cures) != 1 || !strings.Contains(cures[0], "max_user_instances") {
		t.Errorf("got %q", cures)
	}
	if cures := knownCures("all is well"); len(cures) != 0 {
		t.Errorf("got %q", cures)
	}
}

// An engine that goes away between two questions is no cluster without nodes:
// its state directory would be removed under it.
func TestContainersOfAnEngineThatGoesAway(t *testing.T) {
	for _, tc := range []struct {
		name, inspect string
		want          int // containers; -1: an error
	}{
		{"all are there", `echo '[{"Id":"a"},{"Id":"b"}]'`, 2},
		{"one has gone meanwhile", `echo '[{"Id":"a"}]'; echo 'Error: No such container: b' >&2; exit 1`, 1},
		{"the engine has gone", `echo '[]'; echo 'Cannot connect to the Docker daemon' >&2; exit 1`, -1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := t.TempDir()
			script := "#!/bin/sh\ncase $1 in\nps) echo a; echo b ;;\ninspect) " + tc.inspect + " ;;\nesac\n"
			if err := os.WriteFile(filepath.Join(dir, "docker"), []byte(script), 0o755); err != nil { //nolint:gosec // a program
				t.Fatal(err)
			}
			t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
			got, err := engine{&host.Engine{Kind: "docker"}}.containers(t.Context(), "demo")
			if (err != nil) != (tc.want < 0) || err == nil && len(got) != tc.want {
				t.Errorf("got %d containers, %v; want %d", len(got), err, tc.want)
			}
		})
	}
}

func TestInterruptedCommandsOfKind(t *testing.T) {
	for script, want := range map[string]bool{"kill -INT $$": true, "exit 130": true, "kill -TERM $$": false, "exit 1": false} {
		inner := exec.Command("sh", "-c", script).Run()
		err := fmt.Errorf("start control plane: %w", &kindexec.RunError{Command: []string{"docker"}, Inner: inner})
		if got := interrupted(err); got != want {
			t.Errorf("after %q (%v): %t, want %t", script, inner, got, want)
		}
	}
	if interrupted(nil) || interrupted(errors.New("no command")) {
		t.Error("an error of no command is taken for an interrupt")
	}
}
