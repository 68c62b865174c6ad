package fault

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dra-lab/dra-lab/driver/api"
	"github.com/dra-lab/dra-lab/lab/internal/ui"
)

// localNode runs a node's commands on this machine: the scripts are the real
// ones, only the directory is another.
type localNode struct {
	name string
	down bool
	path string // where programs are looked for first
}

func (n localNode) Name() string       { return n.name }
func (n localNode) ControlPlane() bool { return strings.HasSuffix(n.name, "control-plane") }

func (n localNode) Restart(ctx context.Context) error {
	_, err := n.Exec(ctx, nil, "systemctl", "reboot")
	return err
}

func (n localNode) Exec(ctx context.Context, stdin io.Reader, argv ...string) ([]byte, error) {
	if n.down {
		return nil, errors.New("node is down")
	}
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Stdin = stdin
	if n.path != "" {
		cmd.Env = append(os.Environ(), "PATH="+n.path+":"+os.Getenv("PATH"))
		if found := filepath.Join(n.path, argv[0]); fileExists(found) {
			cmd.Path = found
		}
	}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return out, fmt.Errorf("run %s: %w: %s", argv[0], err, stderr.String())
	}
	return out, nil
}

func fileExists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// start is when every test begins.
func start() time.Time { return time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC) }

// newLab makes a lab whose nodes have GPUs as the map says; "" means no
// simulated GPUs.
func newLab(t *testing.T, nodes map[string]string) lab {
	t.Helper()
	l := lab{now: start}
	for name, gpus := range nodes {
		directory := t.TempDir()
		if gpus != "" {
			inventory, err := api.ParseGPUs(gpus)
			if err != nil {
				t.Fatal(err)
			}
			data, err := json.Marshal(inventory)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(directory, api.InventoryName), data, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		l.stores = append(l.stores, store{node: localNode{name: name}, directory: directory})
	}
	return l
}

func xid(code int) api.Fault {
	return api.Fault{ID: fmt.Sprintf("xid-%d", code), Kind: api.FaultXID, Code: code, Since: start()}
}

func (l lab) directory(t *testing.T, node string) string {
	t.Helper()
	for _, s := range l.stores {
		if s.node.Name() == node {
			return s.directory
		}
	}
	t.Fatalf("no node %q", node)
	return ""
}

func TestInjectedFaultIsListedUntilCleared(t *testing.T) {
	ctx := t.Context()
	// Given two nodes with GPUs and a control plane without,
	l := newLab(t, map[string]string{"control-plane": "", "worker": "h100:4", "worker2": "h100:1,t4:1"})

	// when two GPUs are broken,
	if err := l.inject(ctx, Target{"worker", "gpu-3"}, xid(79)); err != nil {
		t.Fatal(err)
	}
	hot := api.Fault{ID: "hot", Kind: api.FaultTemperature, Code: 101, Message: "fan", Since: start().Add(time.Second)}
	if err := l.inject(ctx, Target{"worker2", "gpu-1"}, hot); err != nil {
		t.Fatal(err)
	}

	// then both are listed, and the driver can read the file,
	want := []Active{{"worker", "gpu-3", xid(79)}, {"worker2", "gpu-1", hot}}
	got, err := l.list(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("list (-want +got):\n%s", diff)
	}
	data, err := os.ReadFile(filepath.Join(l.directory(t, "worker"), "gpu-3", api.FaultsName))
	if err != nil {
		t.Fatal(err)
	}
	faults, err := api.ParseFaults(data)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]api.Fault{xid(79)}, faults.Faults); diff != "" {
		t.Errorf("file (-want +got):\n%s", diff)
	}

	// and when the faults of one node are cleared, the other's stays.
	cleared, err := l.clear(ctx, Filter{Node: "worker"})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want[:1], cleared); diff != "" {
		t.Errorf("cleared (-want +got):\n%s", diff)
	}
	if got, err = l.list(ctx); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want[1:], got); diff != "" {
		t.Errorf("list after clear (-want +got):\n%s", diff)
	}
}

func TestClearChoosesByID(t *testing.T) {
	ctx := t.Context()
	l := newLab(t, map[string]string{"worker": "h100:1"})
	lost := api.Fault{ID: "lost", Kind: api.FaultLost, Since: start()}
	for _, f := range []api.Fault{xid(79), xid(48), lost} {
		if err := l.inject(ctx, Target{}, f); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		filter Filter
		want   []Active
	}{
		{Filter{ID: "other"}, nil},
		{Filter{ID: "xid-48"}, []Active{{"worker", "gpu-0", xid(48)}}},
		{Filter{ID: "lost"}, []Active{{"worker", "gpu-0", lost}}},
		{Filter{}, []Active{{"worker", "gpu-0", xid(79)}}},
		{Filter{}, nil},
	} {
		got, err := l.clear(ctx, c.filter)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("cleared by %+v (-want +got):\n%s", c.filter, diff)
		}
	}
}

func TestFaultWhoseTimeIsOverIsGone(t *testing.T) {
	ctx := t.Context()
	l := newLab(t, map[string]string{"worker": "h100:1"})
	until := start().Add(time.Minute)
	short := api.Fault{ID: "short", Kind: api.FaultLost, Since: start(), Until: &until}
	if err := l.inject(ctx, Target{}, short); err != nil {
		t.Fatal(err)
	}

	l.now = func() time.Time { return until }
	got, err := l.list(ctx)
	if err != nil || len(got) != 0 {
		t.Errorf("list %v, %v, want none", got, err)
	}

	// The next injection takes it out of the file.
	if err := l.inject(ctx, Target{}, xid(79)); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(filepath.Join(l.directory(t, "worker"), "gpu-0", api.FaultsName))
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(data), "short") {
		t.Errorf("file still has the fault: %s", data)
	}
}

func TestConcurrentInjectionsAllCount(t *testing.T) {
	ctx := t.Context()
	l := newLab(t, map[string]string{"worker": "h100:1"})

	// When many inject into one GPU at once,
	const writers = 16
	var group sync.WaitGroup
	for i := range writers {
		group.Go(func() {
			if err := l.inject(ctx, Target{}, xid(100+i)); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()

	// then no injection is lost.
	got, err := l.list(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != writers {
		t.Errorf("%d faults, want %d", len(got), writers)
	}
}

func TestWriteThatIsCutOffChangesNothing(t *testing.T) {
	ctx := t.Context()
	l := newLab(t, map[string]string{"worker": "h100:1"})
	if err := l.inject(ctx, Target{}, xid(79)); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(l.directory(t, "worker"), "gpu-0", api.FaultsName)
	before, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}

	// When the writer dies before it has said everything,
	s := l.stores[0]
	s.node = cuttingNode{localNode{name: "worker"}}
	err = s.replace(ctx, "gpu-0", before, []byte(`{"faults":[]}`))

	// then that is an error, and file and directory are as before.
	if err == nil || !strings.Contains(err.Error(), "cut off") {
		t.Errorf("error %v, want one that says cut off", err)
	}
	after, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(before, after) {
		t.Errorf("file changed from %s to %s", before, after)
	}
	if left, _ := filepath.Glob(filepath.Join(filepath.Dir(file), ".faults.json.*")); len(left) > 0 {
		t.Errorf("temporary files left: %v", left)
	}
}

type cuttingNode struct{ localNode }

func (n cuttingNode) Exec(ctx context.Context, stdin io.Reader, argv ...string) ([]byte, error) {
	return n.localNode.Exec(ctx, io.LimitReader(stdin, 5), argv...)
}

func TestWrongTargetsAreNamedWithTheRightOnes(t *testing.T) {
	ctx := t.Context()
	l := newLab(t, map[string]string{"control-plane": "", "worker": "h100:2"})
	for _, c := range []struct {
		name       string
		target     Target
		want, hint string
	}{
		{"unknown node", Target{"wroker", "gpu-0"}, `unknown node "wroker"`, "one of worker"},
		{"unknown device", Target{"worker", "gpu-7"}, `unknown device "gpu-7"`, "one of gpu-0, gpu-1"},
		{"several devices", Target{"worker", ""}, "several devices to choose from: gpu-0, gpu-1", "add --device gpu-0"},
		{"device of another kind", Target{"worker", "driver"}, `unknown device "driver"`, "one of gpu-0, gpu-1"},
		{"node without simulated GPUs", Target{"control-plane", "gpu-0"}, `node "control-plane" has no simulated GPUs`, "only simulated GPUs"},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := l.inject(ctx, c.target, xid(79))
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want one with %q", err, c.want)
			}
			if hint := ui.Hint(err); !strings.Contains(hint, c.hint) {
				t.Errorf("hint %q, want one with %q", hint, c.hint)
			}
			if got := ui.Status(err); got != ui.StatusUsage {
				t.Errorf("exit status %d, want %d", got, ui.StatusUsage)
			}
		})
	}
	if _, err := l.clear(ctx, Filter{Device: "gpu-7"}); err == nil || !strings.Contains(err.Error(), `unknown device "gpu-7"`) {
		t.Errorf("clear: error %v, want one that names gpu-7", err)
	}
}

func TestLabWithoutSimulatedGPUs(t *testing.T) {
	l := newLab(t, map[string]string{"worker": ""})
	err := l.inject(t.Context(), Target{}, xid(79))
	if err == nil || !strings.Contains(err.Error(), "no node has simulated GPUs") {
		t.Errorf("error %v, want one that says that no node has simulated GPUs", err)
	}
}

func TestNodeThatIsDownIsNamedAndTheOthersAreServed(t *testing.T) {
	ctx := t.Context()
	l := newLab(t, map[string]string{"worker": "h100:1"})
	if err := l.inject(ctx, Target{}, xid(79)); err != nil {
		t.Fatal(err)
	}
	l.stores = append(l.stores, store{node: localNode{name: "worker2", down: true}, directory: t.TempDir()})

	got, err := l.list(ctx)
	if err == nil || !strings.Contains(err.Error(), `"worker2"`) {
		t.Errorf("error %v, want one that names worker2", err)
	}
	if len(got) != 1 {
		t.Errorf("list %v, want the fault of the other node", got)
	}

	// Nobody knows whether the only node that answers is the one that is meant.
	if err := l.inject(ctx, Target{Device: "gpu-0"}, xid(48)); err == nil || !strings.Contains(err.Error(), `"worker2"`) {
		t.Errorf("inject: error %v, want one that names worker2", err)
	}
	if _, err := l.clear(ctx, Filter{Device: "gpu-7"}); err == nil || !strings.Contains(err.Error(), `"worker2"`) {
		t.Errorf("clear of a GPU that worker2 may have: error %v, want one that names worker2", err)
	}

	cleared, err := l.clear(ctx, Filter{})
	if err == nil || !strings.Contains(err.Error(), `"worker2"`) {
		t.Errorf("clear: error %v, want one that names worker2", err)
	}
	if diff := cmp.Diff([]Active{{"worker", "gpu-0", xid(79)}}, cleared); diff != "" {
		t.Errorf("cleared (-want +got):\n%s", diff)
	}
	if got, _ := l.list(ctx); len(got) != 0 {
		t.Errorf("list after clear %v, want none", got)
	}
}

func TestBrokenFileIsReported(t *testing.T) {
	ctx := t.Context()
	l := newLab(t, map[string]string{"worker": "h100:1"})
	directory := filepath.Join(l.directory(t, "worker"), "gpu-0")
	if err := os.MkdirAll(directory, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(directory, api.FaultsName), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := l.inject(ctx, Target{}, xid(79)); err == nil || !strings.Contains(err.Error(), `faults of gpu-0 on node "worker"`) {
		t.Errorf("error %v, want one that names the file's GPU", err)
	}
}

func TestNewChecksKindAndParameters(t *testing.T) {
	for _, c := range []struct {
		name, kind string
		params     Params
		want, hint string
	}{
		{"unknown kind", "xdi", Params{}, `unknown kind of fault "xdi"`, "ecc-double, ecc-single, fabric, gpu-hang, gpu-lost"},
		{"no step", api.FaultDriverKill, Params{}, "needs a step", "--step with one of prepare/resolved"},
		{"unknown step", api.FaultDriverKill, Params{Step: "prepare/none"}, `unknown step "prepare/none", have prepare/resolved`, ""},
		{"times where none belong", api.FaultXID, Params{Code: 79, Times: 2}, "kind xid takes no number of times", ""},
		{"flapping kubelet", api.FaultKubeletStop, Params{Flap: time.Second}, "kind kubelet-stop cannot flap", ""},
		{"flaps too fast", api.FaultPower, Params{Flap: time.Millisecond}, "flaps every 1ms, at least 100ms", ""},
		{"moment for a time", api.FaultKubeletKill, Params{For: time.Second}, "over as soon as it has happened", "lab fault inject kubelet-kill"},
		{"code missing", api.FaultXID, Params{}, "needs a code (XID)", "lab fault inject xid --code 79"},
		{"code out of range", api.FaultXID, Params{Code: 5000}, `fault "xid": code 5000, kind xid takes 1 to 999`, ""},
		{"code where none belongs", api.FaultLost, Params{Code: 1}, `fault "gpu-lost": kind gpu-lost takes no code`, ""},
		{"negative duration", api.FaultLost, Params{For: -time.Second}, "negative", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := New(c.kind, c.params)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("error %v, want one with %q", err, c.want)
			}
			if hint := ui.Hint(err); !strings.Contains(hint, c.hint) {
				t.Errorf("hint %q, want one with %q", hint, c.hint)
			}
			if got := ui.Status(err); got != ui.StatusUsage {
				t.Errorf("exit status %d, want %d", got, ui.StatusUsage)
			}
		})
	}
}

func TestNewFillsInDefaults(t *testing.T) {
	f, err := newFault(api.FaultTemperature, Params{For: time.Minute}, start())
	if err != nil {
		t.Fatal(err)
	}
	if f.Code != 105 || f.Since != start() || f.Until == nil || *f.Until != start().Add(time.Minute) {
		t.Errorf("fault %+v, want 105 degrees for a minute from now on", f)
	}
}

func TestKindsAreThoseOfTheHardware(t *testing.T) {
	var got []string
	for _, k := range Kinds() {
		got = append(got, k.Name)
		if k.Target != api.Target(k.Name) || (k.Target == api.TargetNode) != hasAction(k.Name) {
			t.Errorf("kind %s is one of a %s", k.Name, k.Target)
		}
	}
	slices.Sort(got)
	if diff := cmp.Diff(api.FaultKinds(), got); diff != "" {
		t.Errorf("kinds (-hardware +here):\n%s", diff)
	}
}

func hasAction(kind string) bool { _, ok := nodeActions()[kind]; return ok }

func TestText(t *testing.T) {
	until := start().Add(time.Hour)
	list := []Active{
		{"worker", "gpu-0", xid(79)},
		{"worker2", "gpu-10", api.Fault{ID: "hot", Kind: api.FaultTemperature, Code: 101, Message: "fan", Since: start(), Until: &until, Flap: 2 * time.Second}},
		{"worker2", "driver", api.Fault{ID: "kill", Kind: api.FaultDriverKill, Step: "prepare/bound", Times: 1, Since: start()}},
	}
	var b strings.Builder
	if err := WriteText(&b, list, start().Add(90*time.Second)); err != nil {
		t.Fatal(err)
	}
	want := `NODE      DEVICE   KIND          CODE   HOW                        AGE     ENDS           ID       MESSAGE
worker    gpu-0    xid           79     -                          1m30s   when cleared   xid-79   -
worker2   gpu-10   temperature   101    every other 2s             1m30s   in 58m30s      hot      "fan"
worker2   driver   driver-kill   -      after prepare/bound, 1 ×   1m30s   when cleared   kill     -
`
	if diff := cmp.Diff(want, b.String()); diff != "" {
		t.Errorf("text (-want +got):\n%s", diff)
	}
}

func TestJSONIsFlat(t *testing.T) {
	data, err := json.Marshal(Active{"worker", "gpu-0", xid(79)})
	if err != nil {
		t.Fatal(err)
	}
	want := `{"node":"worker","device":"gpu-0","id":"xid-79","kind":"xid","code":79,"since":"2026-01-02T03:04:05Z"}`
	if diff := cmp.Diff(want, string(data)); diff != "" {
		t.Errorf("JSON (-want +got):\n%s", diff)
	}
}
