package fault

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dra-lab/dra-lab/driver/api"
	"github.com/dra-lab/dra-lab/lab/internal/ui"
)

// programs are those of a node that faults run, and what they were told. Rules
// are kept as iptables does.
const (
	fakeSystemd  = "#!/bin/sh\necho \"${0##*/} $*\" | head -n 1 >>\"${0%/*}/log\"\n[ ! -e \"${0%/*}/fails\" ]\n"
	fakeIPTables = `#!/bin/sh
# -w 10 -S|-C|-I|-D CHAIN RULE
log=${0%/*}/log rules=${0%/*}/rules.${0##*/}
touch "$rules"
action=$3 chain=$4
shift 4
case $action in
-S) exit 0 ;;
-I) shift; echo "$chain $*" >>"$rules"; echo "${0##*/} $chain cut" >>"$log" ;;
-C) grep -qxF "$chain $*" "$rules" ;;
-D) grep -qxF "$chain $*" "$rules" || exit 1
	grep -vxF "$chain $*" "$rules" >"$rules.new"; mv "$rules.new" "$rules"; echo "${0##*/} $chain mended" >>"$log" ;;
esac
`
)

// newNode is a lab with one worker whose programs are others.
func newNode(t *testing.T) (l lab, said func() string, programs string) {
	t.Helper()
	programs = t.TempDir()
	for name, content := range map[string]string{
		"systemctl": fakeSystemd, "systemd-run": fakeSystemd, "iptables": fakeIPTables, "ip6tables": fakeIPTables,
	} {
		if err := os.WriteFile(filepath.Join(programs, name), []byte(content), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	l = newLab(t, map[string]string{"worker": "h100:1"})
	l.stores[0].node = localNode{name: "worker", path: programs}
	return l, func() string {
		data, err := os.ReadFile(filepath.Join(programs, "log"))
		if err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		_ = os.Remove(filepath.Join(programs, "log"))
		return string(data)
	}, programs
}

func nodeFault(kind string) api.Fault { return api.Fault{ID: "n", Kind: kind, Since: start()} }

func TestFaultsOfANodeAreDoneListedAndUndone(t *testing.T) {
	for _, c := range []struct{ kind, done, undone string }{
		{api.FaultKubeletStop, "systemctl stop kubelet\n", "systemctl start kubelet\n"},
		{
			api.FaultNetworkCut,
			"iptables OUTPUT cut\niptables FORWARD cut\nip6tables OUTPUT cut\nip6tables FORWARD cut\n",
			"iptables OUTPUT mended\niptables FORWARD mended\nip6tables OUTPUT mended\nip6tables FORWARD mended\n",
		},
	} {
		t.Run(c.kind, func(t *testing.T) {
			ctx := t.Context()
			l, said, _ := newNode(t)
			if err := l.inject(ctx, Target{}, nodeFault(c.kind)); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.done, said()); diff != "" {
				t.Errorf("done (-want +got):\n%s", diff)
			}
			want := []Active{{"worker", "node", nodeFault(c.kind)}}
			if got, err := l.list(ctx); err != nil || cmp.Diff(want, got) != "" {
				t.Errorf("list %v, %v", got, err)
			}
			// Twice the same would be undone by half.
			again := nodeFault(c.kind)
			again.ID = "again"
			if err := l.inject(ctx, Target{}, again); err == nil || !strings.Contains(ui.Hint(err), "lab fault clear --id n") {
				t.Errorf("again: %v, hint %q", err, ui.Hint(err))
			}
			got, err := l.clear(ctx, Filter{})
			if err != nil || cmp.Diff(want, got) != "" {
				t.Errorf("cleared %v, %v", got, err)
			}
			if diff := cmp.Diff(c.undone, said()); diff != "" {
				t.Errorf("undone (-want +got):\n%s", diff)
			}
			if got, err := l.list(ctx); err != nil || len(got) > 0 {
				t.Errorf("list %v, %v", got, err)
			}
		})
	}
}

func TestMomentsAreOverWhenTheyHaveHappened(t *testing.T) {
	for kind, done := range map[string]string{
		api.FaultKubeletRestart:    "systemctl restart kubelet\n",
		api.FaultKubeletKill:       "systemctl kill --signal=KILL kubelet\n",
		api.FaultContainerdRestart: "systemctl restart containerd\n",
		api.FaultNodeReboot:        "systemctl reboot\n",
	} {
		l, said, _ := newNode(t)
		if err := l.inject(t.Context(), Target{}, nodeFault(kind)); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(done, said()); diff != "" {
			t.Errorf("done (-want +got):\n%s", diff)
		}
		if got, err := l.list(t.Context()); err != nil || len(got) > 0 {
			t.Errorf("list %v, %v", got, err)
		}
	}
}

// Whoever injects is killed between the record and the deed, or after it.
func TestRecordedFaultIsUndoneWhateverWasDone(t *testing.T) {
	ctx := t.Context()
	l, said, programs := newNode(t)
	f := nodeFault(api.FaultNetworkCut)
	hw, err := l.stores[0].read(ctx)
	if err != nil {
		t.Fatal(err)
	}
	record := func([]api.Fault) ([]api.Fault, bool) { return []api.Fault{f}, true }
	if err := l.stores[0].update(ctx, hw, "node", record); err != nil {
		t.Fatal(err)
	}
	if got, err := l.list(ctx); err != nil || len(got) != 1 {
		t.Errorf("list %v, %v", got, err)
	}
	if got, err := l.clear(ctx, Filter{}); err != nil || len(got) != 1 {
		t.Errorf("cleared %v, %v", got, err)
	}
	if text := said(); text != "" {
		t.Errorf("undone what was not done: %s", text)
	}
	// When undoing fails the fault is still listed.
	if err := l.inject(ctx, Target{}, nodeFault(api.FaultKubeletStop)); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(programs, "fails"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := l.clear(ctx, Filter{}); err == nil || len(got) > 0 {
		t.Errorf("cleared %v, %v", got, err)
	}
	if got, err := l.list(ctx); err != nil || len(got) != 1 {
		t.Errorf("list %v, %v", got, err)
	}
}

func TestFaultThatCannotBeDoneLeavesNoRecord(t *testing.T) {
	ctx := t.Context()
	l, _, programs := newNode(t)
	if err := os.WriteFile(filepath.Join(programs, "iptables"), []byte("#!/bin/sh\n[ \"$3\" = -S ]\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := l.inject(ctx, Target{}, nodeFault(api.FaultNetworkCut)); err == nil {
		t.Error("no error")
	}
	if got, err := l.list(ctx); err != nil || len(got) > 0 {
		t.Errorf("list %v, %v", got, err)
	}
}

func TestTimeOfANodesFaultIsKeptByTheNode(t *testing.T) {
	ctx := t.Context()
	l, said, _ := newNode(t)
	until := start().Add(20 * time.Second)
	f := nodeFault(api.FaultKubeletStop)
	f.Until = &until
	if err := l.inject(ctx, Target{}, f); err != nil {
		t.Fatal(err)
	}
	timer, done, _ := strings.Cut(said(), "\n")
	for _, want := range []string{"systemd-run ", "--unit=dra-lab-fault-n ", "--on-active=20.000 "} {
		if !strings.Contains(timer, want) {
			t.Errorf("the timer %q has no %q", timer, want)
		}
	}
	if done != "systemctl stop kubelet\n" {
		t.Errorf("done: %s", done)
	}
	if _, err := l.clear(ctx, Filter{}); err != nil {
		t.Fatal(err)
	}
	if got := said(); got != "systemctl start kubelet\nsystemctl stop dra-lab-fault-n.timer\n" {
		t.Errorf("undone: %s", got)
	}
}

func TestRebootEndsOtherFaultsOfTheNode(t *testing.T) {
	ctx := t.Context()
	l, _, _ := newNode(t)
	cut := nodeFault(api.FaultNetworkCut)
	cut.ID = "cut"
	for _, f := range []api.Fault{cut, nodeFault(api.FaultNodeReboot)} {
		if err := l.inject(ctx, Target{}, f); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := l.list(ctx); err != nil || len(got) > 0 {
		t.Errorf("list %v, %v", got, err)
	}
}

func TestTargetsOfDriverAndNode(t *testing.T) {
	ctx := t.Context()
	l := newLab(t, map[string]string{"control-plane": "", "worker": "t4:1,h100:1"})
	for _, c := range []struct {
		name       string
		target     Target
		kind       string
		want, hint string
	}{
		{"which node", Target{}, api.FaultKubeletStop, "several nodes to choose from: ", "add --node "},
		{"unknown node", Target{Node: "wroker"}, api.FaultKubeletStop, `unknown node "wroker"`, "worker"},
		{"cut off from itself", Target{Node: "control-plane"}, api.FaultNetworkCut, "cannot be cut off", "choose a worker"},
		{"driver without simulated GPUs", Target{Node: "control-plane"}, api.FaultPrepareFails, "has no simulated GPUs", "only simulated"},
		{"driver of a GPU", Target{"worker", "gpu-0"}, api.FaultPrepareFails, `unknown device "gpu-0"`, "one of driver"},
		{"no fabric", Target{"worker", "gpu-0"}, api.FaultFabric, "gpu-0 has no NVLink fabric", "one of gpu-1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := l.inject(ctx, c.target, nodeFault(c.kind))
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
	// The only node with simulated GPUs needs no name, and its driver none.
	if err := l.inject(ctx, Target{}, nodeFault(api.FaultPrepareFails)); err != nil {
		t.Error(err)
	}
	if got, err := l.clear(ctx, Filter{Device: "driver"}); err != nil || len(got) != 1 || got[0].Device != "driver" {
		t.Errorf("cleared %v, %v", got, err)
	}
}
