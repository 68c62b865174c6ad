package cluster_test

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
	watchtools "k8s.io/client-go/tools/watch"

	"github.com/dra-lab/dra-lab/lab/cluster"
	"github.com/dra-lab/dra-lab/lab/cluster/gates"
	"github.com/dra-lab/dra-lab/lab/host"
	"github.com/dra-lab/dra-lab/lab/internal/ui"
	"github.com/dra-lab/dra-lab/lab/nodeimage"
)

// The tests in this file need a container engine, and all but the first a node
// image. Where those are missing they are skipped, unless this is set.
const requireEnv = "DRA_LAB_REQUIRE_ENGINE"

// testPrefix begins the names of all clusters that tests make.
const testPrefix = "dra-lab-t-"

func skip(t *testing.T, format string, a ...any) {
	t.Helper()
	if os.Getenv(requireEnv) != "" {
		t.Fatalf(requireEnv+" is set, but: "+format, a...)
	}
	t.Skipf("SKIPPED, no real cluster tested: "+format, a...)
}

// live is an engine with state of the test's own.
type live struct {
	*testing.T
	engine *host.Engine
	ui     *ui.UI
	log    *bytes.Buffer
	home   string
}

func newLive(t *testing.T) *live {
	t.Helper()
	if testing.Short() {
		t.Skip("SKIPPED: -short")
	}
	engine, err := host.FindEngine(t.Context())
	if err != nil {
		skip(t, "%v", err)
	}
	for _, entry := range engine.Env() {
		key, value, _ := strings.Cut(entry, "=")
		t.Setenv(key, value)
	}
	l := &live{T: t, engine: engine, log: &bytes.Buffer{}, home: t.TempDir()}
	// The user's kubeconfig and the lab's state are the test's own; the cache of
	// node images is the real one.
	cache, err := host.CacheDir()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("DRA_LAB_CACHE", cache)
	t.Setenv("DRA_LAB_STATE", filepath.Join(l.home, "state"))
	t.Setenv("HOME", l.home)
	t.Setenv("KUBECONFIG", "")
	l.ui = ui.New(io.Discard, io.MultiWriter(l.log, testWriter{t}), 1)
	return l
}

type testWriter struct{ t *testing.T }

func (w testWriter) Write(p []byte) (int, error) {
	w.t.Logf("%s", bytes.TrimRight(p, "\n"))
	return len(p), nil
}

func (l *live) image() nodeimage.Image {
	l.Helper()
	images, err := nodeimage.List(l.Context(), l.engine)
	if err != nil {
		l.Fatal(err)
	}
	i := slices.IndexFunc(images, func(i nodeimage.Image) bool { return i.Kubelet == i.Kubernetes })
	if i < 0 {
		skip(l.T, "no node image: lab node-image build")
	}
	return images[i]
}

func (l *live) options(name string) cluster.Options {
	return cluster.Options{
		Name:  fmt.Sprintf("%s%s-%d", testPrefix, name, os.Getpid()),
		Image: l.image(), Restrictions: l.engine.Restrictions,
	}
}

// cleanUp removes the cluster when the test is over, however it ends.
func (l *live) cleanUp(name string) {
	l.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(l.Context()), time.Minute)
		defer cancel()
		if err := cluster.Remove(ctx, name, l.ui); err != nil && !errors.Is(err, cluster.ErrForeign) {
			l.Errorf("remove cluster: %v", err)
		}
	})
}

func (l *live) run(args ...string) string {
	l.Helper()
	out, err := l.engine.Command(l.Context(), args...).CombinedOutput()
	if err != nil {
		l.Fatalf("%s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out))
}

// A kind cluster that somebody else made is refused by everything, and left as it
// is. It takes no node image to show that: its container only has to exist.
func TestLiveForeignClusterIsRefused(t *testing.T) {
	l := newLive(t)
	foreign := fmt.Sprintf("%sforeign-%d", testPrefix, os.Getpid())
	image := "dra-lab-test/foreign:" + foreign
	load := l.engine.Command(t.Context(), "import", "-", image)
	load.Stdin = bytes.NewReader(make([]byte, 1024)) // an empty tar archive
	if out, err := load.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	t.Cleanup(func() { _ = l.engine.Command(context.WithoutCancel(t.Context()), "rmi", image).Run() })

	for _, tc := range []struct{ name, mount, err string }{
		{"made by kind", "", "is in a kind cluster of that name"},
		{"made by another lab", filepath.Join(l.home, "other/clusters", foreign, "shared"), "belongs to the lab whose state is in " + filepath.Join(l.home, "other")},
	} {
		t.Run(tc.name, func(t *testing.T) {
			args := []string{
				"create", "--name", foreign + "-control-plane",
				"--label", "io.x-k8s.kind.cluster=" + foreign, "--label", "io.x-k8s.kind.role=control-plane",
			}
			if tc.mount != "" {
				if err := os.MkdirAll(tc.mount, 0o755); err != nil {
					t.Fatal(err)
				}
				args = append(args, "--volume="+tc.mount+":"+cluster.SharedDir)
			}
			id := l.run(append(args, image, "/none")...)
			t.Cleanup(func() { _ = l.engine.Command(context.WithoutCancel(t.Context()), "rm", "-f", "-v", id).Run() })

			options := cluster.Options{
				Name: foreign, Image: nodeimage.Image{Ref: image, Kubernetes: "v1.37.2", Kubelet: "v1.37.2", DefaultCNI: true},
			}
			for verb, do := range map[string]func() error{
				"Open":   func() error { _, err := cluster.Open(t.Context(), foreign); return err },
				"Create": func() error { _, err := cluster.Create(t.Context(), options, l.ui); return err },
				"Ensure": func() error { _, err := cluster.Ensure(t.Context(), options, l.ui); return err },
				"Remove": func() error { return cluster.Remove(t.Context(), foreign, l.ui) },
			} {
				err := do()
				if !errors.Is(err, cluster.ErrForeign) || !strings.Contains(err.Error(), tc.err) {
					t.Errorf("%s: got error %v, want ErrForeign with %q", verb, err, tc.err)
				}
				if !strings.Contains(ui.Hint(err), "--name") {
					t.Errorf("%s: got hint %q", verb, ui.Hint(err))
				}
			}
			ours, err := cluster.List(t.Context())
			if err != nil || slices.Contains(ours, foreign) {
				t.Errorf("List: %v, %v", ours, err)
			}
			if got := l.run("inspect", "--format", "{{.Id}} {{.State.Status}}", id); got != id+" created" {
				t.Errorf("the foreign container is now %q", got)
			}
		})
	}
}

// One cluster, from nothing to nothing.
func TestLiveCluster(t *testing.T) {
	l := newLive(t)
	options := l.options("life")
	l.cleanUp(options.Name)
	networkBefore := l.run("network", "ls", "--no-trunc")

	// Given a user who has a kubeconfig already.
	if err := os.MkdirAll(filepath.Join(l.home, ".kube"), 0o755); err != nil {
		t.Fatal(err)
	}
	userConfig := filepath.Join(l.home, ".kube", "config")
	const mine = "apiVersion: v1\nkind: Config\ncurrent-context: mine\ncontexts:\n- name: mine\n  context: {cluster: c, user: u}\n" +
		"clusters:\n- name: c\n  cluster: {server: https://example.test}\nusers:\n- name: u\n  user: {token: t}\n"
	if err := os.WriteFile(userConfig, []byte(mine), 0o600); err != nil {
		t.Fatal(err)
	}

	// When a cluster is made.
	start := time.Now()
	c, err := cluster.Create(t.Context(), options, l.ui)
	if err != nil {
		t.Fatalf("%v\n%s", err, ui.Detail(err))
	}
	t.Logf("created in %s", time.Since(start))

	config, err := c.RESTConfig()
	if err != nil {
		t.Fatal(err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	nodes, err := c.Nodes(t.Context())
	if err != nil {
		t.Fatal(err)
	}

	t.Run("its nodes are ready", func(t *testing.T) {
		list, err := client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, n := range list.Items {
			names = append(names, n.Name)
			if n.Status.NodeInfo.KubeletVersion != options.Image.Kubelet {
				t.Errorf("%s has kubelet %s", n.Name, n.Status.NodeInfo.KubeletVersion)
			}
		}
		want := []string{options.Name + "-control-plane", options.Name + "-worker", options.Name + "-worker2"}
		if !slices.Equal(names, want) || len(nodes) != 3 || !nodes[0].ControlPlane() || nodes[1].ControlPlane() {
			t.Errorf("got nodes %v", names)
		}
	})

	t.Run("the gates that were planned are on, and the table is right", func(t *testing.T) {
		checkGates(t, client, nodes, options.Image.Kubernetes)
	})

	t.Run("the user's kubeconfig has its context, and so has its own", func(t *testing.T) {
		for _, path := range []string{userConfig, c.Kubeconfig()} {
			got, err := clientcmd.LoadFromFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if got.CurrentContext != "kind-"+options.Name || got.Contexts[got.CurrentContext] == nil {
				t.Errorf("%s: current context is %q", path, got.CurrentContext)
			}
		}
	})

	t.Run("files are written whole and commands run", func(t *testing.T) {
		checkNode(t, nodes[1])
	})

	t.Run("the shared directory is one for all nodes and the host", func(t *testing.T) {
		if _, err := nodes[1].Exec(t.Context(), strings.NewReader("step 7"), "/bin/sh", "-c", "cat >"+cluster.SharedDir+"/checkpoint"); err != nil {
			t.Fatal(err)
		}
		out, err := nodes[2].Exec(t.Context(), nil, "cat", cluster.SharedDir+"/checkpoint")
		if err != nil || string(out) != "step 7" {
			t.Errorf("the other node read %q, %v", out, err)
		}
		host, err := os.ReadFile(filepath.Join(c.SharedDir(), "checkpoint"))
		if err != nil || string(host) != "step 7" {
			t.Errorf("the host read %q, %v", host, err)
		}
	})

	probes := newProbes(t, client, nodes)
	t.Run("Pods reach Pods, names, Services and the outside", probes.check)

	t.Run("a second Ensure uses it", func(t *testing.T) {
		start := time.Now()
		again, err := cluster.Ensure(t.Context(), options, l.ui)
		if err != nil {
			t.Fatal(err)
		}
		if took := time.Since(start); again.Name() != c.Name() || took > 5*time.Second {
			t.Errorf("got %s after %s", again.Name(), took)
		}
	})

	t.Run("a second Create, and another plan, are refused", func(t *testing.T) {
		if _, err := cluster.Create(t.Context(), options, l.ui); !errors.Is(err, cluster.ErrExists) {
			t.Errorf("Create: got error %v, want ErrExists", err)
		}
		other := options
		other.Config = &cluster.Config{FeatureGates: map[string]bool{"DRAPartitionableDevices": false}}
		_, err := cluster.Ensure(t.Context(), other, l.ui)
		if err == nil || !strings.Contains(err.Error(), "another plan") || !strings.Contains(ui.Hint(err), "lab down") {
			t.Errorf("Ensure: got error %v", err)
		}
	})

	t.Run("the network is there again after a node was restarted", func(t *testing.T) {
		l.run("restart", "--time=1", nodes[1].Name())
		l.run("stop", "--time=1", nodes[2].Name())
		// Ensure starts what does not run and waits for it.
		if _, err := cluster.Ensure(t.Context(), options, l.ui); err != nil {
			t.Fatal(err)
		}
		probes.check(t)
	})

	t.Run("all of it comes back after the host was restarted", func(t *testing.T) {
		l.run("stop", "--time=1", nodes[0].Name(), nodes[1].Name(), nodes[2].Name())
		start := time.Now()
		if _, err := cluster.Ensure(t.Context(), options, l.ui); err != nil {
			t.Fatalf("%v\n%s", err, ui.Detail(err))
		}
		t.Logf("back in %s", time.Since(start))
		probes.check(t)
	})

	t.Run("what helps to find a fault can be collected", func(t *testing.T) {
		dir := t.TempDir()
		if err := c.CollectLogs(t.Context(), dir); err != nil {
			t.Fatal(err)
		}
		for _, file := range []string{
			"objects.yaml", "events.txt", "docker-info.txt",
			nodes[0].Name() + "/journal.log", nodes[1].Name() + "/kubelet.log", nodes[1].Name() + "/dra.txt",
		} {
			if info, err := os.Stat(filepath.Join(dir, file)); err != nil || info.Size() == 0 {
				t.Errorf("%s is missing or empty: %v", file, err)
			}
		}
	})

	t.Run("it is listed and can be opened by name", func(t *testing.T) {
		ours, err := cluster.List(t.Context())
		if err != nil || !slices.Contains(ours, options.Name) {
			t.Errorf("List: %v, %v", ours, err)
		}
		opened, err := cluster.Open(t.Context(), options.Name)
		if err != nil || opened.Kubernetes() != options.Image.Kubernetes {
			t.Errorf("Open: %v, %v", opened, err)
		}
	})

	// When it is deleted, nothing of it is left.
	volumes := strings.Fields(l.run("inspect", "--format", `{{range .Mounts}}{{if eq .Type "volume"}}{{.Name}} {{end}}{{end}}`,
		nodes[0].Name(), nodes[1].Name(), nodes[2].Name()))
	if len(volumes) < 3 {
		t.Errorf("nodes have volumes %v", volumes)
	}
	if err := c.Delete(t.Context()); err != nil {
		t.Fatal(err)
	}
	if left := l.run("ps", "--all", "--quiet", "--filter", "label=io.x-k8s.kind.cluster="+options.Name); left != "" {
		t.Errorf("containers are left: %s", left)
	}
	for _, left := range strings.Fields(l.run("volume", "ls", "--quiet")) {
		if slices.Contains(volumes, left) {
			t.Errorf("volume %s is left", left)
		}
	}
	if got := l.run("network", "ls", "--no-trunc"); got != networkBefore {
		t.Errorf("networks before:\n%s\nafter:\n%s", networkBefore, got)
	}
	if entries, err := os.ReadDir(filepath.Join(l.home, "state")); err == nil && len(entries) > 0 {
		t.Errorf("state is left: %v", entries)
	}
	after, err := clientcmd.LoadFromFile(userConfig)
	if err != nil || after.CurrentContext != "mine" || len(after.Contexts) != 1 || len(after.Clusters) != 1 || len(after.AuthInfos) != 1 {
		t.Errorf("the user's kubeconfig is now %+v, %v", after, err)
	}
	if _, err := cluster.Open(t.Context(), options.Name); !errors.Is(err, cluster.ErrNotFound) || errors.Is(err, cluster.ErrIncomplete) {
		t.Errorf("Open: got error %v, want ErrNotFound", err)
	}
	// Removing what is not there is no error.
	if err := cluster.Remove(t.Context(), options.Name, l.ui); err != nil {
		t.Error(err)
	}
}

// A kubelet that does not start: the error says what it said, and nothing of the
// cluster is left but the journals.
func TestLiveKubeletDoesNotStart(t *testing.T) {
	l := newLive(t)
	options := l.options("broken")
	l.cleanUp(options.Name)
	options.Config = parse(t, `
kubeadmConfigPatches:
- |
  kind: KubeletConfiguration
  featureGates: {NoSuchGate: true}
- |
  kind: InitConfiguration
  timeouts: {kubeletHealthCheck: 5s, controlPlaneComponentHealthCheck: 5s, kubernetesAPICall: 5s}
`)
	start := time.Now()
	_, err := cluster.Create(t.Context(), options, l.ui)
	t.Logf("failed in %s: %v\nhint: %s", time.Since(start), err, ui.Hint(err))
	if err == nil {
		t.Fatal("got no error")
	}
	for _, want := range []string{options.Name, "init node with kubeadm", "node " + options.Name + "-control-plane: ", "unrecognized feature gate: NoSuchGate"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in the error", want)
		}
	}
	if !strings.Contains(ui.Detail(err), "NoSuchGate") {
		t.Errorf("the detail is %q", ui.Detail(err))
	}
	l.checkNothingLeft(options.Name)
	log := filepath.Join(l.home, "state", "clusters", options.Name, "failure.log")
	if data, readErr := os.ReadFile(log); readErr != nil || !strings.Contains(string(data), "NoSuchGate") || !strings.Contains(ui.Hint(err), log) {
		t.Errorf("journals: %v, hint %q", readErr, ui.Hint(err))
	}
	if err := cluster.Remove(t.Context(), options.Name, l.ui); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(l.home, "state")); err == nil {
		if entries, _ := os.ReadDir(filepath.Join(l.home, "state")); len(entries) > 0 {
			t.Errorf("left in the state directory: %v", entries)
		}
	}
}

func (l *live) checkNothingLeft(name string) {
	l.Helper()
	if left := l.run("ps", "--all", "--quiet", "--filter", "label=io.x-k8s.kind.cluster="+name); left != "" {
		l.Errorf("containers are left: %s", left)
	}
	if _, err := cluster.Open(l.Context(), name); !errors.Is(err, cluster.ErrNotFound) || errors.Is(err, cluster.ErrIncomplete) {
		l.Errorf("Open: got error %v, want ErrNotFound", err)
	}
}

// interrupt ends a context when a text is written.
type interrupt struct {
	text   string
	cancel context.CancelCauseFunc
}

func (i interrupt) Write(p []byte) (int, error) {
	if strings.Contains(string(p), i.text) {
		i.cancel(errors.New("interrupted"))
	}
	return len(p), nil
}

// Ctrl-C in the middle: nothing is left, or with Retain what is left is made anew
// by the next call.
func TestLiveInterrupted(t *testing.T) {
	l := newLive(t)
	options := l.options("stopped")
	options.Config = parse(t, "")
	l.cleanUp(options.Name)
	create := func(at string) error {
		ctx, cancel := context.WithCancelCause(t.Context())
		defer cancel(nil)
		start := time.Now()
		_, err := cluster.Create(ctx, options, ui.New(io.Discard, io.MultiWriter(testWriter{t}, interrupt{at, cancel}), 0))
		t.Logf("%q: stopped in %s: %v\nhint: %s", at, time.Since(start), err, ui.Hint(err))
		if err == nil || !strings.Contains(err.Error(), "interrupted") {
			t.Fatalf("got error %v", err)
		}
		return err
	}
	for _, at := range []string{"• preparing nodes", "• starting control-plane"} {
		err := create(at)
		if !strings.Contains(ui.Hint(err), "nothing of the cluster is left") {
			t.Errorf("got hint %q", ui.Hint(err))
		}
		l.checkNothingLeft(options.Name)
	}

	options.Retain = true
	if err := create("• starting control-plane"); !strings.Contains(ui.Hint(err), options.Name+"-control-plane") {
		t.Errorf("got hint %q", ui.Hint(err))
	}
	if _, err := cluster.Open(t.Context(), options.Name); !errors.Is(err, cluster.ErrIncomplete) {
		t.Errorf("Open: got error %v, want ErrIncomplete", err)
	}
	ours, err := cluster.List(t.Context())
	if err != nil || !slices.Contains(ours, options.Name) {
		t.Errorf("List: %v, %v", ours, err)
	}

	options.Retain = false
	provider := cluster.NewProvider(options, l.ui)
	kubeconfig, err := provider.Create(t.Context())
	if err != nil {
		t.Fatalf("%v\n%s", err, ui.Detail(err))
	}
	if kubeconfig != provider.GetKubeconfig() || provider.GetKubectlContext() != "kind-"+options.Name || provider.KubernetesRestConfig() == nil {
		t.Errorf("provider: %q, %q", kubeconfig, provider.GetKubectlContext())
	}
	archive := filepath.Join(t.TempDir(), "probe.tar")
	if err := os.WriteFile(archive, probeArchive(t), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := provider.LoadImageArchive(t.Context(), archive); err != nil {
		t.Error(err)
	}
	if err := provider.Destroy(t.Context()); err != nil {
		t.Fatal(err)
	}
	l.checkNothingLeft(options.Name)
	if _, err := os.Stat(filepath.Join(l.home, ".kube")); err == nil {
		t.Error("the directory that was made for the user's kubeconfig is left")
	}
}

// kind's network is removed with the last cluster if it came with a cluster of
// ours, and never if it was there before.
func TestLiveNetworkGoesWithTheLastCluster(t *testing.T) {
	l := newLive(t)
	if l.engine.Kind != "docker" {
		skip(t, "kind lets its network be chosen with docker only, not %s", l.engine.Kind)
	}
	options := l.options("net")
	options.Config = parse(t, "")
	network := options.Name
	t.Setenv("KIND_EXPERIMENTAL_DOCKER_NETWORK", network)
	l.cleanUp(options.Name)
	list := func() string { return l.run("network", "ls", "--quiet", "--filter", "name=^"+network+"$") }
	t.Cleanup(func() { _ = l.engine.Command(context.WithoutCancel(t.Context()), "network", "rm", network).Run() })

	create := func() *cluster.Cluster {
		c, err := cluster.Create(t.Context(), options, l.ui)
		if err != nil {
			t.Fatalf("%v\n%s", err, ui.Detail(err))
		}
		return c
	}
	// Given that there was none, and something else uses it meanwhile, it stays.
	c := create()
	other := l.run("create", "--network="+network, "--label=dra-lab.temporary=true", options.Image.Ref)
	t.Cleanup(func() {
		_ = l.engine.Command(context.WithoutCancel(t.Context()), "rm", "--force", "--volumes", other).Run()
	})
	if err := c.Delete(t.Context()); err != nil {
		t.Fatal(err)
	}
	if list() == "" {
		t.Error("a network in use was removed")
	}
	// When nothing uses it any more, it goes with the next cluster.
	l.run("rm", "--force", "--volumes", other)
	if err := cluster.Remove(t.Context(), options.Name, l.ui); err != nil {
		t.Fatal(err)
	}
	if list() != "" {
		t.Error("the network is left")
	}
	// Given that it was there before, it stays.
	l.run("network", "create", network)
	if err := create().Delete(t.Context()); err != nil {
		t.Fatal(err)
	}
	if list() == "" {
		t.Error("somebody else's network was removed")
	}
}

// checkGates compares what the API server and a kubelet say about their gates
// with the table and the plan.
func checkGates(t *testing.T, client *kubernetes.Clientset, nodes []cluster.Node, version string) {
	t.Helper()
	table, err := gates.For(version)
	if err != nil {
		t.Fatal(err)
	}
	set := gates.Set{}
	for _, c := range table.Decide(nil) {
		set[c.Name] = c.On
	}
	for _, path := range []string{"/metrics", "/api/v1/nodes/" + nodes[1].Name() + "/proxy/metrics"} {
		metrics, err := client.CoreV1().RESTClient().Get().AbsPath(path).DoRaw(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		seen := 0
		for line := range strings.Lines(string(metrics)) {
			name, value, ok := featureMetric(line)
			// The last one is not for all components, so it is none of the table's.
			if !ok || slices.Contains([]string{"AllAlpha", "AllBeta", "ControllerManagerReleaseLeaderElectionLockOnExit"}, name) {
				continue
			}
			seen++
			if !table.Knows(name) {
				t.Errorf("%s: gate %s is not in the table", path, name)
			} else if on := table.On(set, name); on != (value == "1") {
				t.Errorf("%s: gate %s is %s, and the table says %t", path, name, value, on)
			}
		}
		if seen < 100 {
			t.Errorf("%s: only %d gates", path, seen)
		}
	}
}

// featureMetric reads kubernetes_feature_enabled{name="X",stage="BETA"} 1.
func featureMetric(line string) (name, value string, ok bool) {
	rest, ok := strings.CutPrefix(line, `kubernetes_feature_enabled{name="`)
	if !ok {
		return "", "", false
	}
	name, rest, _ = strings.Cut(rest, `"`)
	_, value, _ = strings.Cut(rest, "} ")
	return name, strings.TrimSpace(value), true
}

func checkNode(t *testing.T, n cluster.Node) {
	t.Helper()
	const file = "/var/lib/dra-lab/hardware/gpu 0/faults.json"
	for _, content := range []string{"{}", "", strings.Repeat("x", 1<<20)} {
		if err := n.WriteFile(t.Context(), file, []byte(content), 0o640); err != nil {
			t.Fatal(err)
		}
		out, err := n.Exec(t.Context(), nil, "cat", file)
		if err != nil || string(out) != content {
			t.Errorf("wrote %d bytes, read %d, %v", len(content), len(out), err)
		}
	}
	out, err := n.Exec(t.Context(), nil, "/bin/sh", "-c", "stat -c %a '"+file+"'; ls -A '"+filepath.Dir(file)+"'")
	if err != nil || string(out) != "640\nfaults.json\n" {
		t.Errorf("mode and directory: %q, %v", out, err)
	}
	_, err = n.Exec(t.Context(), nil, "/bin/sh", "-c", "echo first >&2; echo it broke >&2; exit 7")
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 7 || !strings.HasSuffix(err.Error(), "it broke") || !strings.Contains(err.Error(), n.Name()) {
		t.Errorf("got error %v", err)
	}
	stopped, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("enough"))
	if _, err := n.Exec(stopped, nil, "true"); err == nil || !strings.Contains(err.Error(), "enough") {
		t.Errorf("with a context that has ended: got error %v", err)
	}
}

// probes are Pods on all nodes that can be asked to fetch something.
type probes struct {
	client *kubernetes.Clientset
	pods   []corev1.Pod
}

const probeImage = "dra-lab-test/probe:1"

func newProbes(t *testing.T, client *kubernetes.Clientset, nodes []cluster.Node) *probes {
	t.Helper()
	archive := probeArchive(t)
	p := &probes{client: client}
	for i, n := range nodes {
		if err := n.LoadImageArchive(t.Context(), bytes.NewReader(archive)); err != nil {
			t.Fatal(err)
		}
		pod := corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("probe-%d", i), Labels: map[string]string{"app": "probe"}},
			Spec: corev1.PodSpec{
				NodeName: n.Name(),
				Containers: []corev1.Container{{
					Name: "probe", Image: probeImage, ImagePullPolicy: corev1.PullNever,
					Ports: []corev1.ContainerPort{{ContainerPort: 8080, HostPort: 8090}},
					Env: []corev1.EnvVar{{Name: "POD_NAME", ValueFrom: &corev1.EnvVarSource{
						FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.name"},
					}}},
					ReadinessProbe: &corev1.Probe{
						ProbeHandler:  corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/name", Port: intstr.FromInt32(8080)}},
						PeriodSeconds: 1,
					},
				}},
				Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
			},
		}
		if _, err := client.CoreV1().Pods("default").Create(t.Context(), &pod, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	service := corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "probe"},
		Spec: corev1.ServiceSpec{
			Selector: map[string]string{"app": "probe"}, Type: corev1.ServiceTypeNodePort,
			Ports: []corev1.ServicePort{{Port: 80, TargetPort: intstr.FromInt32(8080), NodePort: 30090}},
		},
	}
	if _, err := client.CoreV1().Services("default").Create(t.Context(), &service, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	return p
}

// wait waits until all probes and the DNS servers are ready, and remembers the
// probes' addresses, which are others after a restart.
func (p *probes) wait(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	last := make(map[string]corev1.Pod)
	lw := cache.NewListWatchFromClient(p.client.CoreV1().RESTClient(), "pods", "", fields.Everything())
	_, err := watchtools.UntilWithSync(ctx, lw, &corev1.Pod{}, nil, func(e watch.Event) (bool, error) {
		pod, ok := e.Object.(*corev1.Pod)
		if !ok || pod.Labels["app"] != "probe" && pod.Labels["k8s-app"] != "kube-dns" {
			return false, nil
		}
		last[pod.Name] = *pod
		ready, dns := 0, 0
		for _, seen := range last {
			i := slices.IndexFunc(seen.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == corev1.PodReady })
			if i < 0 || seen.Status.Conditions[i].Status != corev1.ConditionTrue {
				continue
			}
			if seen.Labels["app"] == "probe" {
				ready++
			} else {
				dns++
			}
		}
		return ready == 3 && dns == 2, nil
	})
	if err != nil {
		for _, pod := range last {
			t.Logf("%s: %+v", pod.Name, pod.Status)
		}
		t.Fatalf("wait for Pods: %v", err)
	}
	p.pods = nil
	for i := range 3 {
		p.pods = append(p.pods, last[fmt.Sprintf("probe-%d", i)])
	}
}

// fetch has a Pod fetch an address.
func (p *probes) fetch(t *testing.T, from corev1.Pod, address string) (string, error) {
	t.Helper()
	out, err := p.client.CoreV1().RESTClient().Get().
		AbsPath("/api/v1/namespaces/default/pods/"+from.Name+":8080/proxy/get").
		Param("url", address).DoRaw(t.Context())
	return string(out), err
}

// check has every Pod reach everything, and tries again for a while: after a
// restart the API goes on showing the addresses of before until the kubelets have
// reported the new ones.
func (p *probes) check(t *testing.T) {
	var problems []string
	for deadline := time.Now().Add(90 * time.Second); time.Now().Before(deadline); time.Sleep(time.Second) {
		p.wait(t)
		if problems = p.problems(t); len(problems) == 0 {
			return
		}
	}
	t.Error(strings.Join(problems, "\n"))
}

func (p *probes) problems(t *testing.T) []string {
	t.Helper()
	var problems []string
	for _, from := range p.pods {
		expect := func(what, address, want string) {
			if got, err := p.fetch(t, from, address); err != nil || !strings.HasPrefix(got, want) {
				problems = append(problems, fmt.Sprintf("%s to %s: got %q, %v, want %s...", from.Name, what, got, err, want))
			}
		}
		for _, to := range p.pods {
			// Pods see each other's own addresses: no NAT between them.
			expect(to.Name, "http://"+to.Status.PodIP+":8080/name", to.Name+" "+from.Status.PodIP+":")
			// More than one packet's worth: the MTU fits.
			if got, err := p.fetch(t, from, "http://"+to.Status.PodIP+":8080/big"); err != nil || len(got) != 8<<20 {
				problems = append(problems, fmt.Sprintf("%s to %s: got %d bytes, %v", from.Name, to.Name, len(got), err))
			}
		}
		expect("a Service by name", "http://probe.default.svc.cluster.local/name", "probe-")
		expect("a short name", "http://probe/name", "probe-")
		expect("a node port", "http://"+p.pods[0].Status.HostIP+":30090/name", "probe-")
		expect("a host port", "http://"+p.pods[1].Status.HostIP+":8090/name", "probe-1")
		// The probe does not trust the certificate: it got as far as to see it.
		if out, err := p.fetch(t, from, "https://kubernetes.default.svc/version"); err == nil || !strings.Contains(out, "certificate") {
			problems = append(problems, fmt.Sprintf("%s to the API server: got %q, %v", from.Name, out, err))
		}
	}
	return problems
}

// probeArchive builds the probe and an image that has nothing else.
func probeArchive(t *testing.T) []byte {
	t.Helper()
	program := filepath.Join(t.TempDir(), "probe")
	build := exec.Command("go", "build", "-o", program, "./testdata/probe")
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "HOME="+os.Getenv("DRA_LAB_CACHE"))
	if out, err := build.CombinedOutput(); err != nil {
		skip(t, "build the probe: %v: %s", err, out)
	}
	data, err := os.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	var layer bytes.Buffer
	w := tar.NewWriter(&layer)
	if err := w.WriteHeader(&tar.Header{Name: "probe", Mode: 0o755, Size: int64(len(data)), Typeflag: tar.TypeReg}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(data); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	content, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(layer.Bytes())), nil })
	if err != nil {
		t.Fatal(err)
	}
	image, err := mutate.AppendLayers(empty.Image, content)
	if err != nil {
		t.Fatal(err)
	}
	if image, err = mutate.Config(image, v1.Config{Entrypoint: []string{"/probe"}}); err != nil {
		t.Fatal(err)
	}
	var archive bytes.Buffer
	if err := tarball.Write(name.MustParseReference(probeImage), image, &archive); err != nil {
		t.Fatal(err)
	}
	return archive.Bytes()
}
