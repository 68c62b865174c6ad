package passthrough_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/dra-lab/dra-lab/driver/driverroot"
	"github.com/dra-lab/dra-lab/lab/host/gpu"
	"github.com/dra-lab/dra-lab/lab/passthrough"
)

// facts are those of a host with a number of GPUs.
func facts(root string, count int) gpu.Facts {
	f := gpu.Facts{Root: root, Driver: "570.86.15",
		Nodes:     map[string]driverroot.Node{"/dev/nvidiactl": {}, "/dev/nvidia-uvm": {}, "/dev/nvidia-modeset": {}},
		Libraries: []gpu.Library{{Soname: "libcuda.so.1", Path: "/usr/lib/libcuda.so.570.86.15"}},
	}
	for i := range count {
		g := gpu.GPU{BusID: fmt.Sprintf("0000:%02x:00.0", i), Minor: i, Model: "NVIDIA T4"}
		f.GPUs = append(f.GPUs, g)
		f.Nodes[g.Node()] = driverroot.Node{}
	}
	return f
}

func TestSplit(t *testing.T) {
	for _, tc := range []struct {
		gpus, nodes int
		want        string // minors by node
	}{
		{1, 1, "0"}, {1, 2, "0|"}, {2, 2, "0|1"}, {3, 2, "01|2"}, {8, 3, "012|345|67"}, {5, 4, "01|2|3|4"}, {2, 4, "0|1||"}, {0, 2, "|"},
	} {
		f := facts("/", tc.gpus)
		source, err := passthrough.New(f, f.GPUs)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, share := range source.Split(tc.nodes) {
			minors := ""
			for _, g := range share.GPUs {
				minors += fmt.Sprint(g.Minor)
			}
			got = append(got, minors)
			if (len(share.GPUs) == 0) != (len(share.Mounts) == 0) {
				t.Errorf("%d GPUs and %d mounts", len(share.GPUs), len(share.Mounts))
			}
		}
		if s := strings.Join(got, "|"); s != tc.want {
			t.Errorf("%d GPUs on %d nodes: %s, want %s", tc.gpus, tc.nodes, s, tc.want)
		}
	}
}

func TestMounts(t *testing.T) {
	f := facts("/host", 2)
	// Given that only the second of two GPUs is to be passed,
	source, err := passthrough.New(f, f.GPUs[1:])
	if err != nil {
		t.Fatal(err)
	}
	// then the node has that GPU's device node, the shared ones that are there,
	// and the libraries by the names that programs ask for.
	want := []passthrough.Share{{GPUs: f.GPUs[1:], Mounts: []passthrough.Mount{
		{Host: "/host/dev/nvidia1", Node: "/opt/dra-lab/driver/dev/nvidia1"},
		{Host: "/host/dev/nvidiactl", Node: "/opt/dra-lab/driver/dev/nvidiactl"},
		{Host: "/host/dev/nvidia-uvm", Node: "/opt/dra-lab/driver/dev/nvidia-uvm"},
		{Host: "/host/usr/lib/libcuda.so.570.86.15", Node: "/opt/dra-lab/driver/lib/libcuda.so.1", ReadOnly: true},
	}}}
	if diff := cmp.Diff(want, source.Split(1)); diff != "" {
		t.Errorf("share (-want +got):\n%s", diff)
	}
	if s := source.String(); s != "1 with NVIDIA driver 570.86.15 (NVIDIA T4)" {
		t.Errorf("it is called %q", s)
	}
}

func TestPathThatNoEngineTakes(t *testing.T) {
	f := facts("/a:b", 1)
	if _, err := passthrough.New(f, f.GPUs); err == nil || !strings.Contains(err.Error(), `"/a:b/`) {
		t.Errorf("error %v, want one that names the path", err)
	}
}
