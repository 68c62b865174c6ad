package slices_test

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/dra-lab/dra-lab/driver/internal/device"
	"github.com/dra-lab/dra-lab/driver/internal/health"
	"github.com/dra-lab/dra-lab/driver/internal/slices"
)

var update = flag.Bool("update", false, "write the golden files")

func h100(index int) device.GPU {
	return device.GPU{
		Index: index, Name: fmt.Sprintf("gpu-%d", index), UUID: fmt.Sprintf("GPU-%d", index),
		Product: "NVIDIA H100 80GB HBM3", Brand: "NVIDIA", Architecture: "Hopper",
		ComputeMajor: 9, MemoryBytes: 81559 << 20, PCIBusID: fmt.Sprintf("0000:%02x:00.0", 0x10+index%16),
		DriverVersion: "580.95.05", CUDAVersion: "13.0",
	}
}

func TestPoolGolden(t *testing.T) {
	placed := h100(0)
	placed.PCIeRoot, placed.NUMANode = "pci0000:0c", device.Known(0)
	gpus := []device.GPU{
		placed,
		h100(1),
		// One that could hardly be read is published with what is known.
		{Index: 2, Name: "gpu-2", Problem: "memory: GPU is lost"},
		// One whose memory is given away in parts.
		{Index: 3, Name: "gpu-3", UUID: "GPU-3", MemoryBytes: 15360 << 20, Shared: true},
	}
	taints := map[string][]health.Taint{"gpu-1": {{
		Key: "gpu.lab.example/xid", Value: "79", Effect: health.NoExecute,
		Since: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
	}}}
	got, err := json.MarshalIndent(slices.Pool("node", gpus, taints, true), "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	golden := filepath.Join("testdata", "pool.json")
	if *update {
		if err := os.WriteFile(golden, append(got, '\n'), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)+"\n"); diff != "" {
		t.Errorf("%s (-want +got):\n%s", golden, diff)
	}
}

func TestManyDevicesAreCutTheSameWayWhateverHappensToThem(t *testing.T) {
	var gpus []device.GPU
	for i := range 1000 {
		gpus = append(gpus, h100(i))
	}
	cuts := func(taints map[string][]health.Taint) (sizes []int) {
		for _, s := range slices.Pool("node", gpus, taints, true).Pools["node"].Slices {
			sizes = append(sizes, len(s.Devices))
		}
		return sizes
	}
	healthy := cuts(nil)
	ill := cuts(map[string][]health.Taint{"gpu-500": {{Key: "k", Effect: health.NoExecute}}})
	if diff := cmp.Diff(healthy, ill); diff != "" {
		t.Errorf("a taint changes the slices (-before +after):\n%s", diff)
	}
	total := 0
	for _, n := range healthy {
		total += n
		if n > resourceapi.ResourceSliceMaxDevicesWithAdvancedFeatures {
			t.Errorf("a slice has %d devices", n)
		}
	}
	if total != len(gpus) {
		t.Errorf("%d devices are published, want %d", total, len(gpus))
	}
}

func TestNodeWithoutDevicesHasAnEmptySlice(t *testing.T) {
	got := slices.Pool("node", nil, nil, true).Pools["node"].Slices
	if len(got) != 1 || len(got[0].Devices) != 0 {
		t.Errorf("got %v", got)
	}
}

func TestWhatTheAPIWouldRefuseIsMadeToFitOrLeftOut(t *testing.T) {
	g := h100(0)
	g.Product = string(make([]byte, 100))
	g.Brand = "x" + strings.Repeat("é", 40)
	g.DriverVersion = "not a version"
	g.CUDAVersion = "13"
	g.PCIBusID = "somewhere"
	attributes := slices.Device(g, nil, true).Attributes
	if n := len(*attributes["productName"].StringValue); n != 64 {
		t.Errorf("product name has %d bytes", n)
	}
	if brand := *attributes["brand"].StringValue; !utf8.ValidString(brand) || len(brand) != 63 {
		t.Errorf("brand is %q", brand)
	}
	for _, name := range []resourceapi.QualifiedName{"driverVersion", "cudaDriverVersion", "resource.kubernetes.io/pciBusID"} {
		if a, ok := attributes[name]; ok {
			t.Errorf("%s is %v", name, a)
		}
	}
}
