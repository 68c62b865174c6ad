package main

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/dra-lab/dra-lab/driver/api"
	"github.com/dra-lab/dra-lab/driver/internal/figure"
)

// What one node may have, and what the driver may take for it.
const (
	manyDevices, manyClaims = 1000, 500
	fewDevices              = 8

	restartLimit    = time.Second // from the start of the process to registered
	manyMemoryLimit = 100.0       // MB
	fewMemoryLimit  = 45.0

	// restarts are made to measure one: whatever else runs on the machine makes
	// a restart slower, never faster, so the fastest counts.
	restarts = 5
	// atOnce is how many claims are prepared at a time.
	atOnce = 12
)

// The driver publishes a thousand devices, prepares five hundred claims, and
// comes back in time when it is killed with all of them: nothing is forgotten,
// and its memory stays within bounds.
func TestScale(t *testing.T) {
	if raceDetector {
		t.Skip("everything else is tested at the same time, and this measures time")
	}
	n := newNode(t, manyDevices)
	for i := range manyClaims {
		n.allocate(t, fmt.Sprint("c", i), api.DeviceName(i))
	}
	n.allocate(t, "thief", api.DeviceName(0))
	// Given a driver with many devices
	p := n.start(t)
	t.Logf("first start: registered after %s", p.registered.Round(time.Millisecond))
	eventually(t, "all devices are published", func() bool { return n.published() == manyDevices })
	n.checkSlices(t)
	// and claims,
	began := time.Now()
	n.each(t, func(claim string) error { return p.prepare(t.Context(), claim) })
	t.Logf("%d claims prepared, %d at a time, in %s", manyClaims, atOnce, time.Since(began).Round(time.Millisecond))

	// when it is killed and started again,
	fastest := time.Hour
	for range restarts {
		n.kill(t, p)
		p = n.start(t)
		fastest = min(fastest, p.registered)
	}
	// then it is back in time,
	figure.AtMost(t, fmt.Sprintf("restart to registered, %d devices and %d claims", manyDevices, manyClaims), fastest.Seconds(), restartLimit.Seconds(), "s")
	// knows every claim,
	if got := int(p.metric(t, "dra_lab_prepared_claims")); got != manyClaims {
		t.Errorf("%d claims are in the checkpoint, want %d", got, manyClaims)
	}
	if got := n.specs(t); got != manyClaims {
		t.Errorf("there are %d CDI specs, want %d", got, manyClaims)
	}
	if err := p.prepare(t.Context(), "thief"); err == nil {
		t.Error("another claim got a device that is held")
	}
	n.each(t, func(claim string) error { return p.prepare(t.Context(), claim) })
	// and has no more memory than it may have, now that every device was asked
	// how it is, and a kubelet was told.
	n.checkMemory(t, p, fmt.Sprintf("%d devices and %d claims", manyDevices, manyClaims), manyMemoryLimit)

	n.each(t, func(claim string) error { return p.unprepare(t.Context(), claim) })
	if got := n.specs(t); got != 0 {
		t.Errorf("%d CDI specs are left", got)
	}
	p.stop(t)
}

// With as many GPUs as a server has, the driver is small.
func TestMemoryOfFewDevices(t *testing.T) {
	if raceDetector {
		t.Skip("it is run with TestScale")
	}
	n := newNode(t, fewDevices)
	for i := range fewDevices {
		n.allocate(t, fmt.Sprint("c", i), api.DeviceName(i))
	}
	p := n.start(t)
	eventually(t, "all devices are published", func() bool { return n.published() == fewDevices })
	for i := range fewDevices {
		if err := p.prepare(t.Context(), fmt.Sprint("c", i)); err != nil {
			t.Fatal(err)
		}
	}
	n.checkMemory(t, p, fmt.Sprintf("%d devices", fewDevices), fewMemoryLimit)
	p.stop(t)
}

// each does something for all claims, several at a time.
func (n *node) each(t *testing.T, do func(claim string) error) {
	t.Helper()
	var group errgroup.Group
	group.SetLimit(atOnce)
	for i := range manyClaims {
		group.Go(func() error { return do(fmt.Sprint("c", i)) })
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
}

// checkMemory watches the health of all devices, as the kubelet does, for two
// rounds, and then looks at the memory.
func (n *node) checkMemory(t *testing.T, p *process, what string, limit float64) {
	t.Helper()
	stream, err := p.WatchHealth(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	for range 2 {
		if _, err := stream.Recv(); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%d MB at its peak", p.memory(t, "VmHWM")>>20)
	figure.AtMost(t, "resident memory, "+what, float64(p.memory(t, "VmRSS"))/(1<<20), limit, "MB")
}

// published counts the devices in the newest generation of the node's pool.
func (n *node) published() int {
	count, newest := 0, int64(-1)
	for _, s := range n.slices() {
		if s.Spec.Pool.Generation > newest {
			count, newest = 0, s.Spec.Pool.Generation
		}
		if s.Spec.Pool.Generation == newest {
			count += len(s.Spec.Devices)
		}
	}
	return count
}

// checkSlices checks what an API server checks of slices, as far as numbers
// decide it, and that the slices are one pool.
func (n *node) checkSlices(t *testing.T) {
	t.Helper()
	all := n.slices()
	names := map[string]bool{}
	for _, s := range all {
		if s.Spec.Driver != api.DriverName || s.Spec.NodeName == nil || *s.Spec.NodeName != nodeName || s.Spec.Pool.Name != nodeName {
			t.Errorf("slice %s is of driver %q, node %v, pool %q", s.Name, s.Spec.Driver, s.Spec.NodeName, s.Spec.Pool.Name)
		}
		if got := s.Spec.Pool.ResourceSliceCount; got != int64(len(all)) {
			t.Errorf("slice %s says that its pool has %d slices, there are %d", s.Name, got, len(all))
		}
		if s.Spec.Pool.Generation != all[0].Spec.Pool.Generation {
			t.Errorf("slice %s has generation %d, another one %d", s.Name, s.Spec.Pool.Generation, all[0].Spec.Pool.Generation)
		}
		// One device with a taint makes this the limit of the whole slice.
		if got := len(s.Spec.Devices); got > resourceapi.ResourceSliceMaxDevicesWithAdvancedFeatures {
			t.Errorf("slice %s has %d devices", s.Name, got)
		}
		for _, d := range s.Spec.Devices {
			if names[d.Name] {
				t.Errorf("device %s is published twice", d.Name)
			}
			names[d.Name] = true
			if got := len(d.Attributes) + len(d.Capacity); got > resourceapi.ResourceSliceMaxAttributesAndCapacitiesPerDevice {
				t.Errorf("device %s has %d attributes and capacities", d.Name, got)
			}
		}
	}
	if len(names) != manyDevices {
		t.Errorf("%d devices are published, want %d", len(names), manyDevices)
	}
}

// specs counts the CDI specs.
func (n *node) specs(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir(filepath.Clean(n.cdiDir()))
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}
