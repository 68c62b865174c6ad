package simulated_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/dra-lab/dra-lab/driver/api"
	"github.com/dra-lab/dra-lab/driver/internal/device"
	"github.com/dra-lab/dra-lab/driver/internal/gpu"
	"github.com/dra-lab/dra-lab/driver/internal/gpu/simulated"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// node is a machine with simulated GPUs, seen through the same eyes as a real
// one.
type node struct {
	*gpu.GPUs
	sim *simulated.Simulator
	dir string
}

func start(t *testing.T, inventory string) node {
	t.Helper()
	dir := t.TempDir()
	if inventory != "" {
		inv, err := api.ParseGPUs(inventory)
		if err != nil {
			t.Fatal(err)
		}
		content, err := json.Marshal(inv)
		if err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(dir, api.InventoryName), string(content))
	}
	return boot(t, dir)
}

func boot(t *testing.T, dir string) node {
	t.Helper()
	sim, err := simulated.New(simulated.Config{Node: "node", Dir: dir, OnError: func(err error) { t.Log(err) }})
	if err != nil {
		t.Fatal(err)
	}
	if ret := sim.Init(); ret != nvml.SUCCESS {
		t.Fatal(ret)
	}
	t.Cleanup(func() { sim.Shutdown() })
	g, err := gpu.Discover(sim, sim.Sysfs())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := g.Close(); err != nil {
			t.Error(err)
		}
	})
	return node{GPUs: g, sim: sim, dir: dir}
}

// write replaces a file as a whole.
func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path+".tmp", []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".tmp", path); err != nil {
		t.Fatal(err)
	}
}

func (n node) inject(t *testing.T, index int, faults ...api.Fault) {
	t.Helper()
	data, err := api.Faults{Faults: faults}.Encode()
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(n.dir, api.DeviceName(index), api.FaultsName), string(data))
}

// next waits for an event.
func (n node) next(t *testing.T) device.Event {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); {
		e, ok, err := n.Next(time.Second)
		if err != nil {
			t.Fatal(err)
		}
		if ok {
			return e
		}
	}
	t.Fatal("no event came")
	return device.Event{}
}

// quiet checks that no event comes.
func (n node) quiet(t *testing.T) {
	t.Helper()
	if e, ok, err := n.Next(20 * time.Millisecond); ok || err != nil {
		t.Errorf("got %+v, %v", e, err)
	}
}

// eventually reads the GPU until the answer is right.
func (n node) eventually(t *testing.T, index int, what string, right func(device.Reading) bool) {
	t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for !right(n.Read(index)) {
		if time.Now().After(deadline) {
			t.Fatalf("%s: still %+v", what, n.Read(index))
		}
		time.Sleep(time.Millisecond)
	}
}

func TestDefaultInventory(t *testing.T) {
	got := start(t, "").List()
	if len(got) != 4 {
		t.Fatalf("%d GPUs, want 4", len(got))
	}
	for i, g := range got {
		if !regexp.MustCompile(`^GPU-[0-9a-f]{8}-[0-9a-f]{4}-8[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`).MatchString(g.UUID) {
			t.Errorf("UUID %q", g.UUID)
		}
		want := device.GPU{
			Index: i, Minor: i, Name: api.DeviceName(i), UUID: g.UUID, PCIBusID: fmt.Sprintf("0000:1%d:00.0", i),
			PCIeRoot: fmt.Sprintf("pci0000:0%d", i/2), NUMANode: device.Known(0),
			Product: "NVIDIA H100 80GB HBM3", Brand: "NVIDIA", Architecture: "Hopper", ComputeMajor: 9,
			MemoryBytes: 81559 << 20, DriverVersion: "580.95.05", CUDAVersion: "13.0",
		}
		if diff := cmp.Diff(want, g); diff != "" {
			t.Errorf("GPU %d (-want +got):\n%s", i, diff)
		}
	}
}

func TestEveryProfileIsComplete(t *testing.T) {
	for _, profile := range api.Profiles() {
		t.Run(profile, func(t *testing.T) {
			n := start(t, profile+":1")
			g := n.List()[0]
			if g.Problem != "" || g.Product == "" || g.Architecture == "Unknown" || g.MemoryBytes == 0 || g.ComputeMajor == 0 {
				t.Errorf("GPU is %+v", g)
			}
			r := n.Read(0)
			if r.Lost || r.Detail != "" || !r.Recovery.Known || !r.UsedBytes.Known || r.Temperature.V >= r.TemperatureLimit.V {
				t.Errorf("reading is %+v", r)
			}
		})
	}
}

func TestGPUsAreSpreadOverTheMachine(t *testing.T) {
	gpus := start(t, "t4:402").List()
	for i, want := range map[int]string{
		0: "0000:10:00.0 pci0000:00 0", 7: "0000:17:00.0 pci0000:03 1", 8: "0000:18:00.0 pci0000:04 0",
		199: "0000:d7:00.0 pci0000:63 1", 200: "0001:10:00.0 pci0001:00 0", 401: "0002:11:00.0 pci0002:00 0",
	} {
		g := gpus[i]
		if got := fmt.Sprintf("%s %s %d", g.PCIBusID, g.PCIeRoot, g.NUMANode.V); got != want || !g.NUMANode.Known {
			t.Errorf("GPU %d is at %s, want %s", i, got, want)
		}
	}
}

func TestUUIDsStayAndDiffer(t *testing.T) {
	n := start(t, "h100:3")
	seen := map[string]bool{}
	for i, g := range boot(t, n.dir).List() {
		if g.UUID != n.List()[i].UUID {
			t.Errorf("GPU %d has another UUID after a restart", i)
		}
		seen[g.UUID] = true
	}
	if len(seen) != 3 {
		t.Errorf("%d different UUIDs", len(seen))
	}
}

func TestThousandGPUs(t *testing.T) {
	n := start(t, "t4:1000")
	buses := map[string]bool{}
	for _, g := range n.List() {
		buses[g.PCIBusID] = true
	}
	if len(buses) != 1000 {
		t.Errorf("%d different PCI addresses", len(buses))
	}
}

func TestXIDArrivesOnce(t *testing.T) {
	n := start(t, "h100:2")
	// When a fault is injected from outside,
	began := time.Now()
	n.inject(t, 1, api.Fault{ID: "a", Kind: api.FaultXID, Code: 79})
	// then its event comes at once,
	if got := n.next(t); got != (device.Event{Index: 1, Kind: device.EventXID, Code: 79}) {
		t.Errorf("got %+v", got)
	}
	t.Logf("injection to event: %s", time.Since(began))
	// followed by the wish to be recovered,
	if got := n.next(t); got != (device.Event{Index: 1, Kind: device.EventRecovery}) {
		t.Errorf("got %+v", got)
	}
	if got := n.Read(1).Recovery; got != device.Known(device.RecoveryNodeReboot) {
		t.Errorf("recovery is %+v", got)
	}
	// and does not come again when another fault is added.
	n.inject(t, 1, api.Fault{ID: "a", Kind: api.FaultXID, Code: 79}, api.Fault{ID: "b", Kind: api.FaultECCSingle})
	if got := n.next(t); got.Kind != device.EventECCSingle {
		t.Errorf("got %+v", got)
	}
	n.quiet(t)
	// When the faults are cleared, then the GPU is recovered and says so.
	n.inject(t, 1)
	if got := n.next(t); got.Kind != device.EventRecovery {
		t.Errorf("got %+v", got)
	}
	if got := n.Read(1).Recovery; got != device.Known(device.RecoveryNone) {
		t.Errorf("recovery is %+v", got)
	}
	n.quiet(t)
}

func TestApplicationErrorNeedsNoRecovery(t *testing.T) {
	n := start(t, "h100:1")
	n.inject(t, 0, api.Fault{ID: "a", Kind: api.FaultXID, Code: 31})
	n.next(t)
	n.quiet(t)
	if got := n.Read(0).Recovery; got != device.Known(device.RecoveryNone) {
		t.Errorf("recovery is %+v", got)
	}
}

func TestFaultThatEndsByItself(t *testing.T) {
	n := start(t, "h100:1")
	until := time.Now().Add(time.Second) // a busy machine has to see it before
	n.inject(t, 0, api.Fault{ID: "a", Kind: api.FaultXID, Code: 48, Until: &until})
	for _, want := range []device.EventKind{device.EventXID, device.EventRecovery, device.EventRecovery} {
		if got := n.next(t); got.Kind != want {
			t.Errorf("got %+v, want %v", got, want)
		}
	}
	if got := n.Read(0).Recovery; got != device.Known(device.RecoveryNone) {
		t.Errorf("recovery is %+v", got)
	}
}

func TestFaultsOutliveTheDriver(t *testing.T) {
	n := start(t, "h100:1")
	n.inject(t, 0, api.Fault{ID: "a", Kind: api.FaultXID, Code: 48})
	n.next(t)
	n.next(t)
	// After a restart the event is history, as with real hardware, but the GPU
	// still wants to be recovered.
	again := boot(t, n.dir)
	again.quiet(t)
	if got := again.Read(0).Recovery; got != device.Known(device.RecoveryGPUReset) {
		t.Errorf("recovery is %+v", got)
	}
}

func TestOtherFaults(t *testing.T) {
	n := start(t, "h100:1")
	for _, tc := range []struct {
		fault api.Fault
		right func(device.Reading) bool
	}{
		{api.Fault{Kind: api.FaultTemperature, Code: 95}, func(r device.Reading) bool { return r.Temperature.V == 95 }},
		{api.Fault{Kind: api.FaultPCIeWidth, Code: 4}, func(r device.Reading) bool { return r.PCIeWidth.V == 4 && r.PCIeWidthMax.V == 16 }},
		{api.Fault{Kind: api.FaultLost}, func(r device.Reading) bool { return r.Lost }},
		{api.Fault{Kind: api.FaultUnreadable}, func(r device.Reading) bool { return !r.Lost && !r.Answered() }},
		{api.Fault{Kind: api.FaultECCDouble}, func(r device.Reading) bool {
			return r.UncorrectedECC.V == 1 && r.Recovery.V == device.RecoveryGPUReset
		}},
	} {
		tc.fault.ID = "a"
		n.inject(t, 0, tc.fault)
		n.eventually(t, 0, tc.fault.Kind, tc.right)
		n.inject(t, 0)
		n.eventually(t, 0, tc.fault.Kind+" cleared", func(r device.Reading) bool {
			return r.Answered() && r.Temperature.V < 40 && r.PCIeWidth.V == 16 && r.Recovery == device.Known(device.RecoveryNone)
		})
	}
}

func TestLostGPUDoesNotSayWhichItIs(t *testing.T) {
	n := start(t, "h100:3")
	n.inject(t, 1, api.Fault{ID: "a", Kind: api.FaultLost})
	if got := n.next(t); got != (device.Event{Index: -1, Kind: device.EventUnavailable}) {
		t.Errorf("got %+v", got)
	}
	for i := range 3 {
		if lost := n.Read(i).Lost; lost != (i == 1) {
			t.Errorf("GPU %d lost: %v", i, lost)
		}
	}
	if _, err := n.Usage(1); err == nil || errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("use of a lost GPU gives %v", err)
	}
}

func TestFaultsFileThatCannotBeReadChangesNothing(t *testing.T) {
	n := start(t, "h100:1")
	n.inject(t, 0, api.Fault{ID: "a", Kind: api.FaultXID, Code: 48})
	n.next(t)
	n.next(t)
	write(t, filepath.Join(n.dir, "gpu-0", api.FaultsName), `{"faults":[{"id":"a","kind":"fire"}]}`)
	n.quiet(t)
	if got := n.Read(0).Recovery; got != device.Known(device.RecoveryGPUReset) {
		t.Errorf("recovery is %+v", got)
	}
}

// process is one that uses a GPU, as api.Process says.
func process(t *testing.T, n node, index int, name string, p api.Process) *os.File {
	t.Helper()
	f, err := os.OpenFile(filepath.Join(n.dir, api.DeviceName(index), api.ProcessesName, name), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	data, err := p.Encode()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Write(data); err != nil {
		t.Fatal(err)
	}
	return f
}

func TestMemoryComesBackWithTheDeathOfAProcess(t *testing.T) {
	n := start(t, "h100:1")
	idle, err := n.Usage(0)
	if err != nil {
		t.Fatal(err)
	}
	if len(idle.Processes) != 0 || idle.UsedBytes == 0 || idle.TotalBytes != 81559<<20 {
		t.Errorf("idle GPU: %+v", idle)
	}
	f := process(t, n, 0, "p.json", api.Process{PID: 42, Bytes: 1 << 30, Name: "trainer"})
	busy, err := n.Usage(0)
	if err != nil {
		t.Fatal(err)
	}
	want := device.Usage{UsedBytes: idle.UsedBytes + 1<<30, TotalBytes: idle.TotalBytes, Processes: []device.Process{{PID: 42, Bytes: 1 << 30}}}
	if diff := cmp.Diff(want, busy); diff != "" {
		t.Errorf("busy GPU (-want +got):\n%s", diff)
	}
	if r := n.Read(0); r.Temperature.V < 60 || r.PowerMilliwatts.V < 400_000 {
		t.Errorf("a busy GPU is cold: %+v", r)
	}
	// The kernel lets go of the lock of a process that dies, however it dies.
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	after, err := n.Usage(0)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(idle, after); diff != "" {
		t.Errorf("afterwards (-idle +got):\n%s", diff)
	}
	if _, err := os.Stat(f.Name()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the file of a dead process is still there: %v", err)
	}
}

func TestContainersCannotMisleadTheDriver(t *testing.T) {
	n := start(t, "h100:1")
	dir := filepath.Join(n.dir, "gpu-0", api.ProcessesName)
	secret := filepath.Join(t.TempDir(), "secret.json")
	write(t, secret, `{"pid":1,"bytes":1}`)
	if err := os.Symlink(secret, filepath.Join(dir, "link.json")); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(filepath.Join(dir, "pipe.json"), 0o666); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "dir.json"), 0o777); err != nil {
		t.Fatal(err)
	}
	f := process(t, n, 0, "liar.json", api.Process{PID: 1, Bytes: 1 << 49})
	defer f.Close()
	empty, err := os.Create(filepath.Join(dir, "young.json"))
	if err != nil {
		t.Fatal(err)
	}
	defer empty.Close()

	usage, err := n.Usage(0)
	if err != nil {
		t.Fatal(err)
	}
	if len(usage.Processes) != 1 || usage.UsedBytes != usage.TotalBytes {
		t.Errorf("usage is %+v", usage)
	}
	for _, path := range []string{secret, empty.Name()} {
		if _, err := os.Stat(path); err != nil {
			t.Errorf("%s is gone: %v", filepath.Base(path), err)
		}
	}
}

func TestReservationsStayUntilTheyAreGivenBack(t *testing.T) {
	n := start(t, "h100:1")
	g := n.List()[0]
	used := func(n node) uint64 {
		u, err := n.Usage(0)
		if err != nil {
			t.Fatal(err)
		}
		return u.UsedBytes
	}
	mode := func(n node) nvml.ComputeMode {
		h, ret := n.sim.DeviceGetHandleByIndex(0)
		if ret != nvml.SUCCESS {
			t.Fatal(ret)
		}
		mode, ret := h.GetComputeMode()
		if ret != nvml.SUCCESS {
			t.Fatal(ret)
		}
		return mode
	}
	idle := used(n)
	for range 2 {
		if err := n.sim.Bind(g, "claim", device.Settings{Exclusive: true}); err != nil {
			t.Fatal(err)
		}
	}
	if got := used(n) - idle; got != 256<<20 {
		t.Errorf("a claim takes %d bytes", got)
	}
	// The death of the driver changes nothing.
	n = boot(t, n.dir)
	if got := mode(n); got != nvml.COMPUTEMODE_EXCLUSIVE_PROCESS {
		t.Errorf("the compute mode is %v with an exclusive claim", got)
	}
	if claims, err := n.sim.Bound(g); err != nil || len(claims) != 1 || claims[0] != "claim" {
		t.Errorf("claims are %v, %v", claims, err)
	}
	for range 2 {
		if err := n.sim.Unbind(g, "claim"); err != nil {
			t.Fatal(err)
		}
	}
	if got := used(n); got != idle {
		t.Errorf("%d bytes are used, %d before", got, idle)
	}
	if got := mode(n); got != nvml.COMPUTEMODE_DEFAULT {
		t.Errorf("the compute mode is %v without a claim", got)
	}
}

func TestInventoryThatCannotBeReadIsAnError(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, api.InventoryName), `{"gpus":[{"profile":"k80","count":1}]}`)
	if _, err := simulated.New(simulated.Config{Node: "node", Dir: dir}); err == nil || !strings.Contains(err.Error(), "k80") {
		t.Errorf("got %v", err)
	}
}
