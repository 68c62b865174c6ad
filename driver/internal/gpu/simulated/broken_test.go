package simulated_test

import (
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/dra-lab/dra-lab/driver/api"
	"github.com/dra-lab/dra-lab/driver/internal/device"
	"github.com/dra-lab/dra-lab/driver/internal/gpu"
	"github.com/dra-lab/dra-lab/driver/internal/gpu/simulated"
)

func TestPowerSupplyAndFabric(t *testing.T) {
	n := start(t, "h100:1,t4:1")
	if r := n.Read(0); r.PowerBraked != device.Known(false) || r.FabricError != device.Known("") {
		t.Errorf("a GPU that is well says %+v", r)
	}
	if r := n.Read(1); r.FabricError.Known || r.Detail != "" {
		t.Errorf("a GPU without a fabric says %+v", r)
	}
	n.inject(t, 0, api.Fault{ID: "a", Kind: api.FaultPower}, api.Fault{ID: "b", Kind: api.FaultFabric})
	n.eventually(t, 0, "power and fabric", func(r device.Reading) bool {
		return r.PowerBraked == device.Known(true) && r.FabricError.V != ""
	})
	n.inject(t, 0)
	n.eventually(t, 0, "cleared", func(r device.Reading) bool {
		return r.PowerBraked == device.Known(false) && r.FabricError == device.Known("")
	})
}

func TestPCIeGenerationIsToldUnderLoadOnly(t *testing.T) {
	n := start(t, "h100:1")
	n.inject(t, 0, api.Fault{ID: "a", Kind: api.FaultPCIeGeneration, Code: 3})
	if r := n.Read(0); r.PCIeGeneration.Known {
		t.Errorf("an idle GPU says %+v", r)
	}
	f := process(t, n, 0, "p.json", api.Process{PID: 42, Bytes: 1 << 30})
	defer f.Close()
	n.eventually(t, 0, "generation", func(r device.Reading) bool {
		return r.PCIeGeneration == device.Known(3) && r.PCIeGenerationMax == device.Known(5)
	})
}

func TestLeakedMemoryBelongsToNoProcess(t *testing.T) {
	n := start(t, "h100:1")
	before := n.Read(0).UsedBytes.V
	n.inject(t, 0, api.Fault{ID: "a", Kind: api.FaultMemoryLeak, Code: 100})
	n.eventually(t, 0, "leak", func(r device.Reading) bool { return r.UsedBytes.V == before+100<<20 })
	usage, err := n.Usage(0)
	if err != nil || len(usage.Processes) > 0 {
		t.Errorf("usage is %+v, %v", usage, err)
	}
	n.inject(t, 0)
	n.eventually(t, 0, "cleared", func(r device.Reading) bool { return r.UsedBytes.V == before })
}

// hung waits until reading the GPU does not return, and gives where it will.
func hung(t *testing.T, n node) <-chan device.Reading {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); {
		read := make(chan device.Reading, 1)
		go func() { read <- n.Read(0) }()
		select {
		case <-read:
		case <-time.After(100 * time.Millisecond):
			return read
		}
	}
	t.Fatal("reading never hangs")
	return nil
}

func TestCallsHangUntilTheFaultIsOver(t *testing.T) {
	n := start(t, "h100:2")
	n.inject(t, 0, api.Fault{ID: "a", Kind: api.FaultHang})
	read := hung(t, n)
	// Others answer.
	if r := n.Read(1); !r.Answered() {
		t.Errorf("the other GPU says %+v", r)
	}
	// A driver that starts now lists it nevertheless.
	again := boot(t, n.dir)
	if g := again.List(); len(g) != 2 || g[0].UUID != n.List()[0].UUID || g[0].Problem == "" || g[1].Problem != "" {
		t.Errorf("found %+v", g)
	}
	n.inject(t, 0)
	select {
	case r := <-read:
		if !r.Answered() {
			t.Errorf("afterwards it says %+v", r)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("the call did not return when the fault was cleared")
	}
}

func TestEndOfTheLibraryEndsItsCalls(t *testing.T) {
	n := start(t, "h100:1")
	sim, err := simulated.New(simulated.Config{Node: "node", Dir: n.dir})
	if err != nil {
		t.Fatal(err)
	}
	if ret := sim.Init(); ret != nvml.SUCCESS {
		t.Fatal(ret)
	}
	g, err := gpu.Discover(sim, sim.Sysfs())
	if err != nil {
		t.Fatal(err)
	}
	n.inject(t, 0, api.Fault{ID: "a", Kind: api.FaultHang})
	read := hung(t, node{GPUs: g, sim: sim, dir: n.dir})
	if err := g.Close(); err != nil {
		t.Fatal(err)
	}
	sim.Shutdown()
	select {
	case <-read:
	case <-time.After(10 * time.Second):
		t.Fatal("a call hangs longer than the library lives")
	}
	n.inject(t, 0)
}

func TestFaultThatFlapsRaisesItsEventEachTime(t *testing.T) {
	n := start(t, "h100:1")
	until := time.Now().Add(4 * time.Second)
	n.inject(t, 0, api.Fault{ID: "a", Kind: api.FaultXID, Code: 79, Since: time.Now(), Until: &until, Flap: time.Second})
	// There, away, there, gone: each time the GPU says so.
	for i, want := range []device.EventKind{
		device.EventXID, device.EventRecovery, device.EventRecovery,
		device.EventXID, device.EventRecovery, device.EventRecovery,
	} {
		if got := n.next(t); got.Kind != want {
			t.Errorf("event %d is %+v, want %v", i, got, want)
		}
	}
	n.quiet(t)
}

func TestFaultsOfOthersAreNoneOfAGPU(t *testing.T) {
	n := start(t, "h100:1")
	n.inject(t, 0, api.Fault{ID: "a", Kind: api.FaultPrepareFails})
	n.quiet(t)
	if r := n.Read(0); !r.Answered() {
		t.Errorf("reading is %+v", r)
	}
}
