package gates_test

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/dra-lab/dra-lab/lab/cluster/gates"
	"github.com/dra-lab/dra-lab/lab/cluster/gates/internal/source"
)

func table(t *testing.T, version string) *gates.Table {
	t.Helper()
	tab, err := gates.For(version)
	if err != nil {
		t.Fatal(err)
	}
	return tab
}

// The tables say what the sources say. Where the module cache has the sources,
// they are read again.
func TestTablesMatchSource(t *testing.T) {
	out, err := exec.Command("go", "env", "GOMODCACHE").Output()
	if err != nil {
		t.Skipf("SKIPPED, tables not compared with the sources: no Go command: %v", err)
	}
	modcache := strings.TrimSpace(string(out))
	for minor, version := range map[string]string{"1.34": "v1.34.4", "1.35": "v1.35.4", "1.36": "v1.36.3", "1.37": "v1.37.2"} {
		t.Run(version, func(t *testing.T) {
			read, err := source.Read(modcache, version)
			if errors.Is(err, fs.ErrNotExist) {
				t.Skipf("SKIPPED, table not compared with its source: %v", err)
			}
			if err != nil {
				t.Fatal(err)
			}
			var want bytes.Buffer
			if err := source.Write(&want, version, read); err != nil {
				t.Fatal(err)
			}
			got, err := os.ReadFile(filepath.Join("tables", minor+".txt"))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want.String(), string(got)); diff != "" {
				t.Errorf("the table is not what the source says, run go generate (-source +table):\n%s", diff)
			}
		})
	}
}

func TestTablesAreComplete(t *testing.T) {
	if diff := cmp.Diff([]string{"1.34", "1.35", "1.36", "1.37"}, gates.Minors()); diff != "" {
		t.Errorf("minors (-want +got):\n%s", diff)
	}
	for _, minor := range gates.Minors() {
		tab := table(t, "v"+minor+".0")
		for _, g := range tab.All() {
			if g.Stage != gates.Alpha && g.Stage != gates.Beta && g.Stage != gates.GA && g.Stage != gates.Deprecated {
				t.Errorf("%s: gate %s has stage %q", minor, g.Name, g.Stage)
			}
			for _, required := range g.Requires {
				if _, ok := tab.Gate(required); !ok {
					t.Errorf("%s: gate %s requires %s, which is not there", minor, g.Name, required)
				}
			}
		}
	}
}

func TestForUnsupportedVersion(t *testing.T) {
	for _, version := range []string{"v1.33.6", "v1.38.0", "v2.37.0", "1", "latest", ""} {
		if _, err := gates.For(version); !errors.Is(err, gates.ErrUnsupported) {
			t.Errorf("For(%q): got error %v, want ErrUnsupported", version, err)
		}
	}
	// A pre-release has the gates of its minor version.
	if got := table(t, "v1.37.0-rc.1").Minor(); got != "1.37" {
		t.Errorf("minor of v1.37.0-rc.1 is %q", got)
	}
}

// Without any wish of the user, all gates of dynamic resource allocation that are
// beta or GA are on, and so is device health.
func TestDecideWithoutUserSettings(t *testing.T) {
	for _, tc := range []struct {
		version string
		want    []gates.Choice
		apis    []string
	}{
		{"v1.34.4", []gates.Choice{
			{Name: "ResourceHealthStatus", On: true, Why: "alpha in 1.34 and off by default"},
		}, nil},
		{"v1.35.4", []gates.Choice{
			{Name: "ResourceHealthStatus", On: true, Why: "alpha in 1.35 and off by default"},
		}, nil},
		{"v1.36.3", []gates.Choice{
			{Name: "DRADeviceTaintRules", On: true, Why: "beta in 1.36 and off by default"},
		}, []string{"resource.k8s.io/v1beta2"}},
		{"v1.37.2", []gates.Choice{
			// Beta, but off unless components are told to forget the version before.
			{Name: "DRAFractionalCapacityRange", On: true, Why: "beta in 1.37 and off by default"},
			{Name: "DRAWorkloadResourceClaims", On: true, Why: "beta in 1.37 and off by default"},
			{Name: "GenericWorkload", On: true, Why: "needed by DRAWorkloadResourceClaims"},
		}, []string{"scheduling.k8s.io/v1beta1"}},
	} {
		t.Run(tc.version, func(t *testing.T) {
			tab := table(t, tc.version)
			choices := tab.Decide(nil)
			if diff := cmp.Diff(tc.want, choices); diff != "" {
				t.Errorf("choices (-want +got):\n%s", diff)
			}
			set := gates.Set{}
			for _, c := range choices {
				set[c.Name] = c.On
			}
			if diff := cmp.Diff(tc.apis, tab.APIs(set)); diff != "" {
				t.Errorf("APIs (-want +got):\n%s", diff)
			}
			for _, g := range tab.All() {
				wanted := strings.HasPrefix(g.Name, "DRA") && (g.Stage == gates.Beta || g.Stage == gates.GA) ||
					strings.HasPrefix(g.Name, "ResourceHealthStatus")
				if wanted && !tab.On(set, g.Name) {
					t.Errorf("%s is off", g.Name)
				}
				if g.Locked && set[g.Name] {
					t.Errorf("%s is locked and set without need", g.Name)
				}
			}
		})
	}
}

// What the user set stays, and what depends on it follows.
func TestDecideWithUserSettings(t *testing.T) {
	for _, tc := range []struct {
		name, version string
		user          gates.Set
		want          []gates.Choice
	}{
		{
			name: "device health is off: so is its message", version: "v1.36.3",
			user: gates.Set{"ResourceHealthStatus": false},
			want: []gates.Choice{
				{Name: "DRADeviceTaintRules", On: true, Why: "beta in 1.36 and off by default"},
				{Name: "ResourceHealthStatusMessage", On: false, Why: "needs ResourceHealthStatus, which is off"},
			},
		},
		{
			name: "taints are off: taint rules are not turned on", version: "v1.36.3",
			user: gates.Set{"DRADeviceTaints": false},
			want: []gates.Choice{},
		},
		{
			name: "an alpha gate brings what it needs", version: "v1.37.2",
			user: gates.Set{"DRAPartitionableDevicesType": true, "DRAWorkloadResourceClaims": false, "DRAFractionalCapacityRange": false},
			want: []gates.Choice{
				{Name: "DRAResourcePoolStatus", On: true, Why: "needed by DRAPartitionableDevicesType"},
			},
		},
		{
			name: "the requirement of a wanted gate is off", version: "v1.37.2",
			user: gates.Set{"GenericWorkload": false, "DRAConsumableCapacity": false},
			want: []gates.Choice{},
		},
		{
			name: "all beta gates are off", version: "v1.36.3",
			user: gates.Set{"AllBeta": false},
			want: []gates.Choice{},
		},
		{
			name: "what needs nothing more", version: "v1.37.2",
			user: gates.Set{"DRAPartitionableDevices": false, "DRAResourceClaimDeviceStatus": true, "DRAFractionalCapacityRange": true, "DRAWorkloadResourceClaims": true},
			want: []gates.Choice{
				{Name: "GenericWorkload", On: true, Why: "needed by DRAWorkloadResourceClaims"},
			},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tab := table(t, tc.version)
			if err := tab.Check(tc.user); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, tab.Decide(tc.user)); diff != "" {
				t.Errorf("choices (-want +got):\n%s", diff)
			}
		})
	}
}

func TestCheckRefuses(t *testing.T) {
	for _, tc := range []struct {
		name, version string
		user          gates.Set
		gate, problem string
		cure          string
	}{
		{
			name: "a gate of a newer version", version: "v1.34.4",
			user: gates.Set{"DRADerivedAttributes": true},
			gate: "DRADerivedAttributes", problem: "there is no such gate in this version",
			cure: "remove it, or use a Kubernetes version that has it",
		},
		{
			name: "a typing mistake", version: "v1.37.2",
			user: gates.Set{"DRADeviceTaint": true},
			gate: "DRADeviceTaint", problem: "there is no such gate in this version",
			cure: `did you mean "DRADeviceTaints"? Otherwise remove it, or use a Kubernetes version that has it`,
		},
		{
			name: "against a lock", version: "v1.37.2",
			user: gates.Set{"DynamicResourceAllocation": false},
			gate: "DynamicResourceAllocation", problem: "this version has it locked to true", cure: "remove it",
		},
		{
			name: "two that contradict each other", version: "v1.36.3",
			user: gates.Set{"ResourceHealthStatusMessage": true, "ResourceHealthStatus": false},
			gate: "ResourceHealthStatusMessage", problem: "it needs ResourceHealthStatus, which is set to false",
			cure: "set ResourceHealthStatus to true, or remove ResourceHealthStatusMessage",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var conflict *gates.Conflict
			if err := table(t, tc.version).Check(tc.user); !errors.As(err, &conflict) {
				t.Fatalf("got error %v, want a conflict", err)
			}
			if conflict.Gate != tc.gate || conflict.Problem != tc.problem || conflict.Cure != tc.cure {
				t.Errorf("got %+v", conflict)
			}
		})
	}
}

// What every version refuses, decide never proposes: over many settings, the
// result is one that components start with.
func TestDecideNeverContradictsItself(t *testing.T) {
	for _, minor := range gates.Minors() {
		tab := table(t, "v"+minor+".0")
		for _, g := range tab.All() {
			for _, on := range []bool{true, false} {
				user := gates.Set{g.Name: on}
				if tab.Check(user) != nil {
					continue
				}
				set := gates.Set{g.Name: on}
				for _, c := range tab.Decide(user) {
					if _, ok := user[c.Name]; ok {
						t.Errorf("%s: %v: sets what the user has set", minor, user)
					}
					set[c.Name] = c.On
				}
				if err := tab.Check(set); err != nil {
					t.Errorf("%s: %v becomes %v: %v", minor, user, set, err)
				}
				for _, h := range tab.All() {
					for _, required := range h.Requires {
						if tab.On(set, h.Name) && !tab.On(set, required) {
							t.Errorf("%s: %v becomes %v: %s is on without %s", minor, user, set, h.Name, required)
						}
					}
				}
			}
		}
	}
}
