package main

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/dra-lab/dra-lab/lab/host"
	"github.com/dra-lab/dra-lab/lab/host/ociruntime"
	"github.com/dra-lab/dra-lab/lab/nodeimage"
	"github.com/dra-lab/dra-lab/lab/plugin"
	"github.com/dra-lab/dra-lab/lab/probe/reach"
)

// The scripts in testdata run the lab as its users do, in a process of its own.
// Beside it they have two programs that put it into situations.
func TestMain(m *testing.M) {
	// Copies of the lab, under other names, are started by engines and in nodes.
	if len(os.Args) > 1 && slices.Contains([]string{ociruntime.Verb, plugin.RelayVerb, reach.AgentVerb}, os.Args[1]) {
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
// refuses, waitfor, tmpfs, weakengine, cures and driverroot, and the conditions
// live, built, root, mounts and packages: see the functions of those names.
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
			"driverroot": driverRoot,
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
	for _, program := range []string{"driver", "controller", "trainer", "scenarios.test", "reproduce"} {
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
	env.Setenv("SILENT", silent.Addr().String())
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
