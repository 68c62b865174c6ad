package cluster_test

import (
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/kind/pkg/apis/config/v1alpha4"

	"github.com/dra-lab/dra-lab/lab/cluster"
	"github.com/dra-lab/dra-lab/lab/internal/ui"
)

const configHead = "kind: Cluster\napiVersion: kind.x-k8s.io/v1alpha4\n"

func TestParseConfigOfThisRepository(t *testing.T) {
	data, err := os.ReadFile("../../kind-config.yaml")
	if err != nil {
		t.Fatal(err)
	}
	config, err := cluster.ParseConfig(data)
	if err != nil {
		t.Fatal(err)
	}
	var roles []v1alpha4.NodeRole
	for _, n := range config.Nodes {
		roles = append(roles, n.Role)
	}
	want := []v1alpha4.NodeRole{v1alpha4.ControlPlaneRole, v1alpha4.WorkerRole, v1alpha4.WorkerRole}
	if diff := cmp.Diff(want, roles); diff != "" {
		t.Errorf("roles (-want +got):\n%s", diff)
	}
}

// Everything that kind's format has is taken as it is, and nothing is filled in.
func TestParseConfigTakesAllFields(t *testing.T) {
	config, err := cluster.ParseConfig([]byte(configHead + `
name: demo
featureGates: {DRAAdminAccess: true}
runtimeConfig: {"api/alpha": "false"}
kubeadmConfigPatches:
- |
  kind: KubeletConfiguration
containerdConfigPatches: ["version = 2"]
networking: {ipFamily: ipv4, apiServerPort: 6443, podSubnet: 10.1.0.0/16, dnsSearch: [lab.example]}
nodes:
- role: control-plane
  labels: {a: b}
  extraPortMappings: [{containerPort: 80, hostPort: 8080, protocol: tcp}]
- role: worker
  image: node:old
  extraMounts: [{hostPath: /tmp, containerPath: /data, readOnly: true, propagation: None}]
`))
	if err != nil {
		t.Fatal(err)
	}
	search := []string{"lab.example"}
	want := &v1alpha4.Cluster{
		TypeMeta:                v1alpha4.TypeMeta{Kind: "Cluster", APIVersion: "kind.x-k8s.io/v1alpha4"},
		Name:                    "demo",
		FeatureGates:            map[string]bool{"DRAAdminAccess": true},
		RuntimeConfig:           map[string]string{"api/alpha": "false"},
		KubeadmConfigPatches:    []string{"kind: KubeletConfiguration\n"},
		ContainerdConfigPatches: []string{"version = 2"},
		Networking: v1alpha4.Networking{
			IPFamily: v1alpha4.IPv4Family, APIServerPort: 6443, PodSubnet: "10.1.0.0/16", DNSSearch: &search,
		},
		Nodes: []v1alpha4.Node{
			{
				Role: v1alpha4.ControlPlaneRole, Labels: map[string]string{"a": "b"},
				ExtraPortMappings: []v1alpha4.PortMapping{{ContainerPort: 80, HostPort: 8080, Protocol: v1alpha4.PortMappingProtocolTCP}},
			},
			{
				Role: v1alpha4.WorkerRole, Image: "node:old",
				ExtraMounts: []v1alpha4.Mount{{
					HostPath: "/tmp", ContainerPath: "/data", Readonly: true, Propagation: v1alpha4.MountPropagationNone,
				}},
			},
		},
	}
	if diff := cmp.Diff(want, config); diff != "" {
		t.Errorf("config (-want +got):\n%s", diff)
	}
}

func TestParseConfigRefuses(t *testing.T) {
	for _, tc := range []struct{ name, data, err, hint string }{
		{"nothing", "", "it is empty", "kind: Cluster"},
		{"only a comment", "# nothing yet\n", "it is empty", "kind: Cluster"},
		{"an empty document", "---\n", "it is empty", "kind: Cluster"},
		{"no YAML", "kind: [", "line 1: did not find expected node content", "must be YAML"},
		{"no mapping", "- a\n", "line 1: it has no fields", "kind: Cluster"},
		{"no apiVersion", "kind: Cluster\n", "apiVersion is missing", "write apiVersion: kind.x-k8s.io/v1alpha4"},
		{
			"another apiVersion", "kind: Cluster\napiVersion: kind.x-k8s.io/v1alpha3\n",
			`line 2: apiVersion is "kind.x-k8s.io/v1alpha3", not "kind.x-k8s.io/v1alpha4"`, "write apiVersion",
		},
		{
			"another kind", "kind: Pod\napiVersion: kind.x-k8s.io/v1alpha4\n",
			`line 1: kind is "Pod", not "Cluster"`, "write kind: Cluster",
		},
		{"two documents", configHead + "---\n" + configHead, "line 4: there is a second document", "--name"},
		{"an unknown field", configHead + "featurGates: {}\n", `line 3: unknown field "featurGates"`, `did you mean "featureGates"?`},
		{
			"an unknown field in a node", configHead + "nodes:\n- role: worker\n- role: worker\n  extraMount: []\n",
			`line 6: unknown field "nodes[1].extraMount"`, `did you mean "extraMounts"?`,
		},
		{
			"an unknown field of a mount", configHead + "nodes:\n- extraMounts:\n  - source: /x\n",
			`line 5: unknown field "nodes[0].extraMounts[0].source"`, "fields here are containerPath, hostPath, propagation",
		},
		{
			"an unknown field that is merged in", configHead + "nodes:\n- <<: {imag: x}\n  role: control-plane\n",
			`line 4: unknown field "nodes[0].imag"`, `did you mean "image"?`,
		},
		{
			"an unknown field in one of two that are merged in", configHead + "nodes:\n- <<: [{role: worker}, {imag: x}]\n",
			`line 4: unknown field "nodes[0].imag"`, `did you mean "image"?`,
		},
		{"a field of ours", configHead + "gpus: 4\n", `line 3: unknown field "gpus"`, "fields here are apiVersion, containerdConfigPatches"},
		{"a value of the wrong type", configHead + "nodes: 3\n", "line 3: cannot unmarshal", configDocsHint},
		{"a gate that is no bool", configHead + "featureGates: {A: maybe}\n", "line 3: cannot unmarshal", configDocsHint},
		{"a field twice", configHead + "name: a\nname: b\n", `line 4: mapping key "name" already defined at line 3`, configDocsHint},
		{"an unknown role", configHead + "nodes:\n- role: workr\n", `nodes[0].role is "workr"`, `did you mean "worker"?`},
		{"only workers", configHead + "nodes:\n- role: worker\n", "no node has the role control-plane", "- role: control-plane"},
		{"an unknown IP family", configHead + "networking: {ipFamily: both}\n", `networking.ipFamily is "both"`, "it can be ipv4, ipv6, dual"},
		{"an unknown proxy mode", configHead + "networking: {kubeProxyMode: nftable}\n", `networking.kubeProxyMode is "nftable"`, `"nftables"`},
		{"an unknown propagation", configHead + "nodes:\n- extraMounts: [{propagation: Both}]\n", `Unknown MountPropagation: "Both"`, configDocsHint},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := cluster.ParseConfig([]byte(tc.data))
			if err == nil {
				t.Fatal("got no error")
			}
			if !strings.Contains(err.Error(), tc.err) || strings.Contains(err.Error(), "\n") {
				t.Errorf("got error %q, want one line with %q", err, tc.err)
			}
			if !strings.Contains(ui.Hint(err), tc.hint) {
				t.Errorf("got hint %q, want %q in it", ui.Hint(err), tc.hint)
			}
		})
	}
}

const configDocsHint = "https://kind.sigs.k8s.io/docs/user/configuration/"

// Whatever a file has, the parser does not panic, and takes nothing that has no
// type.
func FuzzParseConfig(f *testing.F) {
	f.Add([]byte(configHead))
	f.Add([]byte(configHead + "nodes:\n- &n {role: worker}\n- *n\n- <<: *n\n"))
	f.Add([]byte("&a [*a]"))
	f.Add([]byte(configHead + "nodes:\n- &n\n  <<: *n\n- &m {<<: [*m, {<<: *m}]}\n"))
	f.Add([]byte(configHead + "nodes: &n\n- extraMounts: *n\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		config, err := cluster.ParseConfig(data)
		if err == nil && config.Kind != "Cluster" {
			t.Errorf("took %q", data)
		}
	})
}
