package plugin_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	drav1 "k8s.io/kubelet/pkg/apis/dra/v1"

	"github.com/dra-lab/dra-lab/driver/api"
	"github.com/dra-lab/dra-lab/driver/internal/plugin"
)

// randomClaims are claims that compete for the four GPUs of a node and the
// partitions of the last of them, by name.
func randomClaims() map[string][]string {
	return map[string][]string{
		"r0": {"gpu-0"}, "r1": {"gpu-1"}, "r2": {"gpu-2"}, "r3": {"gpu-3"},
		"again0": {"gpu-0"}, "again1": {"gpu-1"},
		"low": {"gpu-0", "gpu-1"}, "high": {"gpu-2", "gpu-3"}, "middle": {"gpu-1", "gpu-2"},
		"all":  {"gpu-0", "gpu-1", "gpu-2", "gpu-3"},
		"half": {upperHalf}, "tiny": {fifth}, "two": {first, fifth}, "mixed": {"gpu-2", first},
	}
}

func randomVictimClaims() []*resourceapi.ResourceClaim {
	var claims []*resourceapi.ResourceClaim
	for name, devices := range randomClaims() {
		claims = append(claims, claim(name, devices...))
	}
	return claims
}

// knowledge is what a kubelet can know of a claim.
type knowledge int

const (
	free     knowledge = iota // never prepared, or unprepared for certain
	prepared                  // the driver said so
	cutOff                    // a call about it ended with the driver
)

// model is a kubelet that calls whatever driver runs, and what it may expect.
type model struct {
	*machine
	random *rand.Rand
	known  map[string]knowledge
	names  []string

	operations, kills int
}

// A driver is killed again and again while claims that compete for the same
// devices come and go: at its points, between them, and while it is idle. The
// kubelet repeats what it got no answer to, or changes its mind. No device is
// ever given to two claims, no claim gets stuck, and nothing is left.
func TestRandomKills(t *testing.T) {
	t.Parallel()
	operations, kills := 1000, 200
	if testing.Short() || raceDetector {
		operations, kills = 60, 12
	}
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	m := &model{machine: newMIGMachine(t), random: rand.New(rand.NewPCG(seed, 0)), known: map[string]knowledge{}}
	for name := range randomClaims() {
		m.names = append(m.names, name)
	}
	slices.Sort(m.names)
	for m.operations < operations || m.kills < kills {
		m.life(t)
		if t.Failed() {
			t.Fatalf("after %d operations and %d kills", m.operations, m.kills)
		}
	}
	// The last driver finds everything in order, and can clear it away.
	last := m.victim(t, "")
	k := m.register(t, "")
	m.checkNode(t)
	k.unprepare(t, m.names...)
	if err := last.end(); err != nil {
		t.Error(err)
	}
	same(t, "specs", []string{}, m.specs(t))
	same(t, "reservations", []string{}, m.reservations(t))
	same(t, "partitions", []string{}, m.instances(t))
	t.Logf("%d operations, %d kills", m.operations, m.kills)
}

// life is that of one driver, which ends violently.
func (m *model) life(t *testing.T) {
	t.Helper()
	var point plugin.Point
	if m.random.IntN(2) == 0 {
		points := append(plugin.Points(), plugin.PreparePartitioned, plugin.UnprepareDissolved)
		point = points[m.random.IntN(len(points))]
	}
	v := m.victim(t, point)
	k := m.register(t, "")
	defer k.Close()
	m.checkNode(t)
	for rest := m.random.IntN(10); ; rest-- {
		kill := point == "" && rest <= 0
		if kill && m.random.IntN(4) == 0 {
			_ = v.cmd.Process.Kill() // while it is idle
			break
		}
		if kill {
			time.AfterFunc(time.Duration(m.random.IntN(3000))*time.Microsecond, func() { _ = v.cmd.Process.Kill() })
		}
		died := m.operate(t, k)
		if kill || died || t.Failed() {
			break
		}
		if rest < -20 { // the point is one that the operations did not come to
			_ = v.cmd.Process.Kill()
			break
		}
	}
	v.killed(t)
	m.kills++
	if err := os.Remove(m.registration("")); err != nil {
		t.Fatal(err)
	}
}

// operate makes one call about a few claims, and checks the answers.
func (m *model) operate(t *testing.T, k *kubelet) (died bool) {
	t.Helper()
	m.operations++
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	names := m.choose()
	if m.random.IntN(3) == 0 {
		req := &drav1.NodeUnprepareResourcesRequest{}
		for _, n := range names {
			req.Claims = append(req.Claims, reference(n))
		}
		resp, err := k.Unprepare(ctx, req)
		for _, n := range names {
			switch {
			case err != nil && m.known[n] != free:
				m.known[n] = cutOff
			case err == nil && resp.Claims["uid-"+n].GetError() != "":
				t.Errorf("unprepare %s: %s", n, resp.Claims["uid-"+n].Error)
			case err == nil:
				m.known[n] = free
			}
		}
		return err != nil
	}
	req := &drav1.NodePrepareResourcesRequest{}
	for _, n := range names {
		req.Claims = append(req.Claims, reference(n))
	}
	resp, err := k.Prepare(ctx, req)
	for _, n := range names {
		if err != nil {
			if m.known[n] == free {
				m.known[n] = cutOff // a prepared one stays that
			}
			continue
		}
		m.prepareAnswered(t, n, resp.Claims["uid-"+n])
	}
	return err != nil
}

// choose takes claims that do not compete with each other: which of two wins
// that do would be chance.
func (m *model) choose() []string {
	var names []string
	for range 1 + m.random.IntN(3) {
		name := m.names[m.random.IntN(len(m.names))]
		if !slices.ContainsFunc(names, func(n string) bool { return competes(n, name) }) {
			names = append(names, name)
		}
	}
	return names
}

func competes(a, b string) bool {
	return slices.ContainsFunc(randomClaims()[a], func(d string) bool {
		return slices.ContainsFunc(randomClaims()[b], func(other string) bool { return overlap(d, other) })
	})
}

// overlap says whether two devices cannot be in use at the same time.
func overlap(a, b string) bool {
	return a == b || strings.HasPrefix(a, b+"-mig-") || strings.HasPrefix(b, a+"-mig-") ||
		a == upperHalf && b == fifth || a == fifth && b == upperHalf
}

func (m *model) prepareAnswered(t *testing.T, name string, answer *drav1.NodePrepareResourceResponse) {
	t.Helper()
	var holders, perhaps []string
	for _, other := range m.names {
		if other == name || !competes(other, name) {
			continue
		}
		switch m.known[other] {
		case prepared:
			holders = append(holders, other)
		case cutOff:
			perhaps = append(perhaps, other)
		}
	}
	switch {
	case answer == nil:
		t.Errorf("prepare %s: no answer", name)
	case answer.Error == "":
		if len(holders) > 0 {
			t.Errorf("prepare %s: it got devices that %v have", name, holders)
		}
		if len(answer.Devices) != len(randomClaims()[name]) {
			t.Errorf("prepare %s: it got %d devices", name, len(answer.Devices))
		}
		m.known[name] = prepared
		for _, other := range perhaps {
			m.known[other] = free // else this one could not have got them
		}
	case len(holders)+len(perhaps) == 0:
		t.Errorf("prepare %s: refused though nobody has its devices: %s", name, answer.Error)
	case m.known[name] == prepared:
		t.Errorf("prepare %s again: %s", name, answer.Error)
	case m.known[name] == cutOff && len(perhaps) == 0:
		m.known[name] = free // somebody else got them
	}
}

// checkNode looks at the files when a driver has just come up: what is prepared
// is whole, what is not was never, or is somebody's who was cut off.
func (m *model) checkNode(t *testing.T) {
	t.Helper()
	specs, bound := m.specs(t), m.reservations(t)
	owners := map[string]string{}
	for _, b := range bound {
		device, owner, _ := strings.Cut(b, "/")
		if other := owners[device]; other != "" {
			t.Errorf("%s is bound for %s and %s", device, other, owner)
		}
		owners[device] = owner
		for other, name := range owners {
			if name != owner && overlap(device, other) {
				t.Errorf("%s is bound for %s, and %s for %s", device, owner, other, name)
			}
		}
		if m.known[owner] == free {
			t.Errorf("%s is bound for %s, which is not prepared", device, owner)
		}
	}
	for _, name := range m.names {
		switch m.known[name] {
		case prepared:
			if !slices.Contains(specs, name) {
				t.Errorf("%s is prepared and has no CDI spec", name)
			}
			for _, device := range randomClaims()[name] {
				if owners[device] != name {
					t.Errorf("%s is prepared, and %s is bound for %q", name, device, owners[device])
				}
			}
		case free:
			if slices.Contains(specs, name) {
				t.Errorf("%s is not prepared and has a CDI spec", name)
			}
		}
	}
	for _, dir := range m.instances(t) {
		// One that belongs to nobody is gone when a driver has come up.
		if !slices.ContainsFunc(m.names, func(n string) bool {
			return m.known[n] != free && slices.Contains(randomClaims()[n], partitionOf(dir))
		}) {
			t.Errorf("%s is there for nobody", partitionOf(dir))
		}
	}
	if extra, err := os.ReadDir(m.cdiDir()); err != nil || slices.ContainsFunc(extra, func(e os.DirEntry) bool {
		return !strings.HasPrefix(e.Name(), "k8s."+api.DriverName)
	}) {
		t.Errorf("CDI directory has %v, %v", fmt.Sprint(extra), err)
	}
}
