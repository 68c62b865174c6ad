package plugin_test

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	drav1 "k8s.io/kubelet/pkg/apis/dra/v1"

	"github.com/dra-lab/dra-lab/driver/api"
	"github.com/dra-lab/dra-lab/driver/internal/checkpoint"
	"github.com/dra-lab/dra-lab/driver/internal/plugin"
)

// victimClaims are the claims in every cluster of a victim.
func victimClaims() []*resourceapi.ResourceClaim {
	return slices.Concat(randomVictimClaims(), partitionClaims(),
		[]*resourceapi.ResourceClaim{claim("a", "gpu-0", "gpu-1"), claim("thief", "gpu-1"), claim("bystander", "gpu-2")})
}

// victim is a driver in a process of its own.
type victim struct {
	cmd   *exec.Cmd
	stdin io.Closer
}

func (m *machine) victim(t *testing.T, point plugin.Point) *victim {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), envRoot+"="+m.root, envPoint+"="+string(point))
	cmd.Stderr = t.Output()
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	v := &victim{cmd: cmd, stdin: stdin}
	t.Cleanup(func() { v.end() })
	return v
}

// end asks the driver to stop, and waits.
func (v *victim) end() error {
	_ = v.stdin.Close()
	if v.cmd.ProcessState != nil {
		return nil
	}
	return v.cmd.Wait()
}

// killed waits for the driver's violent death.
func (v *victim) killed(t *testing.T) {
	t.Helper()
	if err := v.cmd.Wait(); err == nil || !strings.Contains(err.Error(), "killed") {
		t.Errorf("the driver was not killed: %v", err)
	}
}

// A driver is killed after every single step of prepare and unprepare. Whatever
// the step, the kubelet's repeated call to the next driver finds the node
// whole, no device is given away in between, and in the end nothing is left.
func TestKilledAtEveryPoint(t *testing.T) {
	for _, point := range plugin.Points() {
		t.Run(string(point), func(t *testing.T) {
			t.Parallel()
			m := newMachine(t)
			// Given a claim of a Pod that nobody troubles,
			v := m.victim(t, point)
			k := m.register(t, "")
			if !strings.HasPrefix(string(point), "prepare/") {
				k.prepare(t, "bystander", "a")
			}
			// when the driver is killed at the point,
			claims := []*drav1.Claim{reference("a")}
			var err error
			if strings.HasPrefix(string(point), "prepare/") {
				_, err = k.Prepare(t.Context(), &drav1.NodePrepareResourcesRequest{Claims: claims})
			} else {
				_, err = k.Unprepare(t.Context(), &drav1.NodeUnprepareResourcesRequest{Claims: claims})
			}
			if err == nil {
				t.Fatal("the driver answered")
			}
			v.killed(t)
			if err := os.Remove(m.registration("")); err != nil {
				t.Fatal(err)
			}
			next := m.victim(t, "")
			k = m.register(t, "")

			// then its device is still the claim's, unless the claim had not
			// got it yet or was done with it.
			_, failed := k.prepare(t, "thief")
			held := point != plugin.PrepareResolved && point != plugin.UnprepareForgotten
			if got := failed["thief"] != ""; got != held {
				t.Errorf("another claim is refused: %v (%s), want %v", got, failed["thief"], held)
			}
			if !held {
				k.unprepare(t, "thief")
			}
			// The kubelet repeats what it was not told to be done.
			if strings.HasPrefix(string(point), "prepare/") {
				ids, failed := k.prepare(t, "a")
				if len(failed) > 0 || len(ids["a"]) != 2 {
					t.Fatalf("prepare again: %v, %v", ids, failed)
				}
				same(t, "specs", []string{"a"}, m.specs(t))
				same(t, "reservations", []string{"gpu-0/a", "gpu-1/a"}, m.reservations(t))
			}
			k.unprepare(t, "a")
			if _, failed := k.prepare(t, "thief"); len(failed) > 0 {
				t.Errorf("the device is not free: %v", failed)
			}
			k.unprepare(t, "thief", "bystander")
			if err := next.end(); err != nil {
				t.Error(err)
			}
			same(t, "specs", []string{}, m.specs(t))
			same(t, "reservations", []string{}, m.reservations(t))
			store, err := checkpoint.Open(t.Context(), filepath.Join(m.pluginDir(), api.CheckpointName), "boot-1")
			if err != nil {
				t.Fatal(err)
			}
			defer store.Close()
			if left, err := store.List(t.Context()); err != nil || len(left) > 0 {
				t.Errorf("checkpoint has %v, %v", left, err)
			}
		})
	}
}
