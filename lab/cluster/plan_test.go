package cluster_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/kind/pkg/apis/config/v1alpha4"
	"sigs.k8s.io/yaml"

	"github.com/dra-lab/dra-lab/driver/driverroot"
	"github.com/dra-lab/dra-lab/lab/cluster"
	"github.com/dra-lab/dra-lab/lab/host"
	"github.com/dra-lab/dra-lab/lab/host/gpu"
	"github.com/dra-lab/dra-lab/lab/internal/ui"
	"github.com/dra-lab/dra-lab/lab/nodeimage"
	"github.com/dra-lab/dra-lab/lab/passthrough"
)

var update = flag.Bool("update", false, "write the golden files")

const planDir = "/state/clusters/demo"

// built is an image as the lab builds it, pulled one as kind publishes it.
func built(kubernetes, kubelet string) nodeimage.Image {
	ref := "dra-lab/node:" + kubernetes
	if kubelet != kubernetes {
		ref += "-kubelet-" + kubelet
	}
	return nodeimage.Image{Ref: ref, Kubernetes: kubernetes, Kubelet: kubelet, Built: true}
}

func pulled(version string) nodeimage.Image {
	return nodeimage.Image{
		Ref: "kindest/node:" + version, Kubernetes: version, Kubelet: version, DefaultCNI: true, DefaultStorage: true,
	}
}

func byRef(images ...nodeimage.Image) map[string]nodeimage.Image {
	m := make(map[string]nodeimage.Image)
	for _, i := range images {
		m[i.Ref] = i
	}
	return m
}

func parse(t *testing.T, body string) *v1alpha4.Cluster {
	t.Helper()
	config, err := cluster.ParseConfig([]byte(configHead + body))
	if err != nil {
		t.Fatal(err)
	}
	return config
}

// Each case is a file in testdata/plan: the config that kind gets, what the user
// is told, and the files that nodes get. Run with -update after a change that is
// meant, and read the difference.
func TestPlanGolden(t *testing.T) {
	restricted := host.Restrictions{CapSysResource: true, CgroupV1: true}
	for _, tc := range []struct {
		name string
		in   cluster.PlanInput
	}{
		// The common case: an ordinary host, the newest version, a pulled image.
		{"ordinary-host-pulled-image", cluster.PlanInput{Image: pulled("v1.37.2")}},
		{"ordinary-host-built-image", cluster.PlanInput{Image: built("v1.37.2", "v1.37.2")}},
		{"restricted-host-built-image", cluster.PlanInput{Image: built("v1.37.2", "v1.37.2"), Restrictions: restricted}},
		{"restricted-host-pulled-old-image", cluster.PlanInput{Image: pulled("v1.34.4"), Restrictions: restricted}},
		{"user-namespace-old-image", cluster.PlanInput{Image: pulled("v1.36.3"), Restrictions: host.Restrictions{UserNamespace: true}}},
		// Two kubelets side by side: what upstream issues are reproduced on.
		{"mixed-kubelets", cluster.PlanInput{
			Image:  built("v1.37.2", "v1.37.2"),
			Images: byRef(built("v1.37.2", "v1.36.3"), built("v1.37.2", "v1.34.4")),
			Config: parse(t, `
featureGates: {DRADerivedAttributes: true}
nodes:
- role: control-plane
- role: worker
- role: worker
  image: dra-lab/node:v1.37.2-kubelet-v1.36.3
- role: worker
  image: dra-lab/node:v1.37.2-kubelet-v1.34.4
- role: worker
  image: dra-lab/node:v1.37.2-kubelet-v1.34.4
`),
		}},
		{"mixed-kubelets-user-namespace", cluster.PlanInput{
			Image: built("v1.37.2", "v1.37.2"), Images: byRef(built("v1.37.2", "v1.36.3")),
			Restrictions: host.Restrictions{UserNamespace: true},
			Config: parse(t, `
nodes:
- role: control-plane
- role: worker
  image: dra-lab/node:v1.37.2-kubelet-v1.36.3
`),
		}},
		// What a user set stays as it is, and comes before what the lab adds.
		{"user-settings-stay", cluster.PlanInput{
			Image: built("v1.36.3", "v1.36.3"), Restrictions: restricted,
			Config: parse(t, `
name: ignored
featureGates: {ResourceHealthStatus: false, KubeletInUserNamespace: false}
runtimeConfig: {resource.k8s.io/v1beta2: "true"}
kubeadmConfigPatches: ["kind: ClusterConfiguration\nclusterName: mine\n"]
containerdConfigPatches: ["version = 2\n"]
networking: {podSubnet: 10.99.0.0/16, apiServerPort: 6443}
nodes:
- role: control-plane
  extraPortMappings: [{containerPort: 30080, hostPort: 8080}]
  extraMounts: [{hostPath: /data, containerPath: /data}]
`),
		}},
		// Three GPUs for two workers, and none for the control plane.
		{"passthrough", cluster.PlanInput{Image: pulled("v1.37.2"), GPUs: hostGPUs(t, 3)}},
		{"passthrough-more-nodes-than-gpus", cluster.PlanInput{Image: pulled("v1.37.2"), GPUs: hostGPUs(t, 1)}},
		{"passthrough-one-node", cluster.PlanInput{Image: pulled("v1.37.2"), GPUs: hostGPUs(t, 1), Config: parse(t, "")}},
		{"user-brings-network", cluster.PlanInput{
			Image: built("v1.37.2", "v1.37.2"), Config: parse(t, "networking: {disableDefaultCNI: true}\n"),
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tc.in.Name, tc.in.Dir = "demo", planDir
			before := tc.in.Config.DeepCopy()
			config, additions, err := cluster.Plan(tc.in)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(before, tc.in.Config); diff != "" {
				t.Errorf("Plan changed its input (-before +after):\n%s", diff)
			}
			got := describePlan(t, config, additions)
			golden := filepath.Join("testdata", "plan", tc.name+".golden")
			if *update {
				if err := os.WriteFile(golden, []byte(got), 0o644); err != nil { //nolint:gosec // a test file
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), got); diff != "" {
				t.Errorf("plan (-want +got):\n%s", diff)
			}
		})
	}
}

// hostGPUs are what a host with a number of GPUs gives to nodes.
func hostGPUs(t *testing.T, count int) *passthrough.Source {
	t.Helper()
	f := gpu.Facts{Root: "/", Driver: "570.86.15",
		Nodes: map[string]driverroot.Node{"/dev/nvidiactl": {}, "/dev/nvidia-uvm": {}, "/dev/nvidia-uvm-tools": {}},
		Libraries: []gpu.Library{
			{Soname: "libcuda.so.1", Path: "/usr/lib/x86_64-linux-gnu/libcuda.so.570.86.15"},
			{Soname: "libnvidia-ml.so.1", Path: "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.570.86.15"},
		},
	}
	for minor := range count {
		f.GPUs = append(f.GPUs, gpu.GPU{Minor: minor})
	}
	source, err := passthrough.New(f, f.GPUs)
	if err != nil {
		t.Fatal(err)
	}
	return source
}

func describePlan(t *testing.T, config *v1alpha4.Cluster, additions []cluster.Addition) string {
	t.Helper()
	data, err := yaml.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	b.WriteString("# What the user is told\n")
	for _, a := range additions {
		fmt.Fprintf(&b, "%s\n", a)
	}
	fmt.Fprintf(&b, "\n# What kind gets\n%s", data)
	for _, a := range additions {
		for _, f := range a.Files {
			fmt.Fprintf(&b, "\n# %s %#o\n%s", f.Path, f.Mode, f.Data)
		}
	}
	return b.String()
}

// The plan is what kind's own strict parser takes.
func TestPlanIsAKindConfig(t *testing.T) {
	config, _, err := cluster.Plan(cluster.PlanInput{
		Name: "demo", Dir: planDir, Image: built("v1.36.3", "v1.36.3"),
		Restrictions: host.Restrictions{CapSysResource: true, CgroupV1: true},
	})
	if err != nil {
		t.Fatal(err)
	}
	data, err := yaml.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := cluster.ParseConfig(data)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(config, parsed); diff != "" {
		t.Errorf("written and read (-want +got):\n%s", diff)
	}
}

func TestPlanRefuses(t *testing.T) {
	image := built("v1.37.2", "v1.37.2")
	for _, tc := range []struct {
		name      string
		in        cluster.PlanInput
		err, hint string
	}{
		{
			"an unknown gate", cluster.PlanInput{Image: image, Config: parse(t, "featureGates: {DRADeviceTaint: true}\n")},
			`plan cluster "demo": featureGates: "DRADeviceTaint" cannot be set on Kubernetes v1.37.2: there is no such gate in this version`,
			`did you mean "DRADeviceTaints"?`,
		},
		{
			"a gate of a newer version",
			cluster.PlanInput{Image: pulled("v1.35.4"), Config: parse(t, "featureGates: {DRADerivedAttributes: true}\n")},
			`"DRADerivedAttributes" cannot be set on Kubernetes v1.35.4`, "use a Kubernetes version that has it",
		},
		{
			"a locked gate that an older kubelet could set",
			cluster.PlanInput{Image: image, Config: parse(t, "featureGates: {DRAAdminAccess: false}\n")},
			`"DRAAdminAccess" cannot be set on Kubernetes v1.37.2: this version has it locked to true`, "remove it",
		},
		{
			"a version that is too old", cluster.PlanInput{Image: pulled("v1.33.6")},
			`unsupported Kubernetes version "v1.33.6"`, "this lab knows Kubernetes 1.34 to 1.37",
		},
		{
			"a kubelet that is newer than the control plane",
			cluster.PlanInput{Image: built("v1.36.3", "v1.37.2")},
			"kubelet v1.37.2 of node demo-control-plane does not go with control plane v1.36.3", "never newer",
		},
		{
			"two control planes of different versions",
			cluster.PlanInput{
				Image: image, Images: byRef(built("v1.36.3", "v1.36.3")),
				Config: parse(t, "nodes:\n- role: control-plane\n- role: control-plane\n  image: dra-lab/node:v1.36.3\n"),
			},
			"control planes demo-control-plane and demo-control-plane2 differ: v1.37.2 and v1.36.3", "the same image",
		},
		{
			"an image that nobody looked into",
			cluster.PlanInput{Image: image, Config: parse(t, "nodes:\n- image: some/image:1\n")},
			`nothing is known of node image "some/image:1"`, "",
		},
		{"no image", cluster.PlanInput{}, "no node image was given", ""},
		{
			"IPv6 without a network in the image",
			cluster.PlanInput{Image: image, Config: parse(t, "networking: {ipFamily: dual}\n")},
			`networking.ipFamily is "dual", and node image "dra-lab/node:v1.37.2" brings no Pod network`, "ipFamily: ipv4",
		},
		{
			"a mount that hides the shared directory",
			cluster.PlanInput{Image: image, Config: parse(t, "nodes:\n- extraMounts: [{hostPath: /x, containerPath: /var/lib/dra-lab/shared/}]\n")},
			"nodes[0] mounts /var/lib/dra-lab/shared/, which the lab needs itself", "mount /x somewhere else",
		},
		{
			"a mount where GPUs are to be",
			cluster.PlanInput{Image: image, GPUs: hostGPUs(t, 1), Config: parse(t, "nodes:\n- extraMounts: [{hostPath: /x, containerPath: /opt/dra-lab/driver/lib}]\n")},
			"nodes[0] mounts /opt/dra-lab/driver/lib, which the lab needs for GPUs", "mount /x somewhere else",
		},
		{
			"an API that a gate needs is off",
			cluster.PlanInput{Image: built("v1.36.3", "v1.36.3"), Config: parse(t, "runtimeConfig: {resource.k8s.io/v1beta2: \"false\"}\n")},
			"runtimeConfig has resource.k8s.io/v1beta2 off, which a feature gate needs", "DRADeviceTaintRules=true",
		},
		{
			"kubeadm patches of the user's own beside an older kubelet",
			cluster.PlanInput{
				Image: image, Images: byRef(built("v1.37.2", "v1.36.3")),
				Config: parse(t, "nodes:\n- role: control-plane\n- role: worker\n  image: dra-lab/node:v1.37.2-kubelet-v1.36.3\n"+
					"  kubeadmConfigPatches: [\"kind: JoinConfiguration\\npatches: {directory: /p}\\n\"]\n"),
			},
			"nodes[1] has its own kubeadm patches in /p", "remove patches.directory",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tc.in.Name, tc.in.Dir = "demo", planDir
			_, _, err := cluster.Plan(tc.in)
			if err == nil {
				t.Fatal("got no error")
			}
			if !strings.Contains(err.Error(), tc.err) {
				t.Errorf("got error %q, want %q in it", err, tc.err)
			}
			if !strings.Contains(ui.Hint(err), tc.hint) {
				t.Errorf("got hint %q, want %q in it", ui.Hint(err), tc.hint)
			}
		})
	}
}

func TestCheckName(t *testing.T) {
	for _, name := range []string{"dra-lab", "a", "lab2.test", strings.Repeat("a", 48)} {
		if err := cluster.CheckName(name); err != nil {
			t.Errorf("refused %q: %v", name, err)
		}
	}
	for _, name := range []string{"", "-a", "a-", "A", "a b", "a/b", "../x", ".", "é", strings.Repeat("a", 49)} {
		if err := cluster.CheckName(name); err == nil {
			t.Errorf("took %q", name)
		}
	}
}
