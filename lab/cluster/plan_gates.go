package cluster

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
	"sigs.k8s.io/kind/pkg/apis/config/v1alpha4"

	"github.com/dra-lab/dra-lab/lab/cluster/gates"
	"github.com/dra-lab/dra-lab/lab/internal/ui"
)

// addGates sets the feature gates. Those of the config go to all components, so
// they are for the version of the control plane; a kubelet of another version
// gets what is different for it through a patch of its own configuration.
func (p *plan) addGates() error {
	control := p.controlPlane()
	for i, n := range p.nodes {
		if p.config.Nodes[i].Role == v1alpha4.ControlPlaneRole && n.image.Kubernetes != control.image.Kubernetes {
			return ui.WithHint(
				fmt.Errorf("control planes %s and %s differ: %s and %s", control.name, n.name, control.image.Kubernetes, n.image.Kubernetes),
				"give all nodes with the role control-plane the same image; kubelets may differ")
		}
		if err := checkSkew(n, control.image.Kubernetes); err != nil {
			return err
		}
	}
	table, err := tableFor(control.image.Kubernetes)
	if err != nil {
		return err
	}
	user := gates.Set(p.config.FeatureGates)
	if err := checkGates(table, user, control.image.Kubernetes); err != nil {
		return err
	}
	all := maps.Clone(user)
	if all == nil {
		all = gates.Set{}
	}
	for _, c := range table.Decide(user) {
		all[c.Name] = c.On
		p.add(Addition{What: fmt.Sprintf("feature gate %s=%t", c.Name, c.On), Why: c.Why})
	}
	if len(all) > 0 {
		p.config.FeatureGates = all
	}
	if err := p.addAPIs(table, all); err != nil {
		return err
	}
	kubeletOnly := p.addKubeletGates(table, all)
	return p.addOtherKubelets(table, user, kubeletOnly)
}

// addAPIs has the API server serve what gates need.
func (p *plan) addAPIs(table *gates.Table, set gates.Set) error {
	for _, api := range table.APIs(set) {
		switch value, ok := p.config.RuntimeConfig[api]; {
		case ok && value == "false":
			return ui.WithHint(
				fmt.Errorf("runtimeConfig has %s off, which a feature gate needs: the control plane would wait for it forever", api),
				"remove it, or set the gate that needs it to false (%s)", describeSet(set))
		case ok:
			continue
		}
		if p.config.RuntimeConfig == nil {
			p.config.RuntimeConfig = make(map[string]string)
		}
		p.config.RuntimeConfig[api] = "true"
		p.add(Addition{What: "API " + api, Why: "a feature gate that is on needs it, and it is off by default"})
	}
	return nil
}

func describeSet(set gates.Set) string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(set)) {
		parts = append(parts, fmt.Sprintf("%s=%t", name, set[name]))
	}
	return "gates set: " + strings.Join(parts, ", ")
}

// addKubeletGates adds the gates that only kubelets get, and returns all that a
// kubelet of the control plane's version has set.
func (p *plan) addKubeletGates(table *gates.Table, all gates.Set) gates.Set {
	set := maps.Clone(all)
	if extra := p.userNamespaceGates(table, all); len(extra) > 0 {
		maps.Copy(set, extra)
		p.config.KubeadmConfigPatches = append(p.config.KubeadmConfigPatches,
			mustYAML(map[string]any{"kind": "KubeletConfiguration", "featureGates": extra}))
		for _, name := range slices.Sorted(maps.Keys(extra)) {
			p.add(Addition{What: fmt.Sprintf("feature gate %s=%t, kubelet only", name, extra[name]), Why: whyUserNamespace})
		}
	}
	return set
}

// userNamespaceGates returns the gate that a kubelet in a user namespace needs, if
// it is off by default and nobody has set it. Elsewhere it has no effect.
func (p *plan) userNamespaceGates(table *gates.Table, set gates.Set) gates.Set {
	const gate = "KubeletInUserNamespace"
	if _, ok := set[gate]; ok || !p.in.Restrictions.UserNamespace || !table.Knows(gate) || table.On(set, gate) {
		return nil
	}
	return gates.Set{gate: true}
}

// addOtherKubelets gives kubelets of other versions than the control plane's a
// patch, so that no gate reaches one that does not know it. Base is what such a
// kubelet would otherwise have set.
func (p *plan) addOtherKubelets(control *gates.Table, user, base gates.Set) error {
	written := make(map[string]bool)
	for i, n := range p.nodes {
		table, err := tableFor(n.image.Kubelet)
		if err != nil {
			return err
		}
		if table.Minor() == control.Minor() {
			continue
		}
		want, dropped, err := p.kubeletGates(table, user, n.image.Kubelet)
		if err != nil {
			return err
		}
		patch := gatesPatch(base, want)
		if len(patch) == 0 {
			continue
		}
		if err := refuseOwnPatches(p.config, i); err != nil {
			return err
		}
		dir := "patches/kubelet-" + table.Minor()
		node := &p.config.Nodes[i]
		for _, kind := range []string{"InitConfiguration", "JoinConfiguration"} {
			node.KubeadmConfigPatches = append(node.KubeadmConfigPatches,
				mustYAML(map[string]any{"kind": kind, "patches": map[string]any{"directory": nodeFilesDir + "/" + dir}}))
		}
		a := Addition{
			What: fmt.Sprintf("kubelet %s on %s: %s", n.image.Kubelet, n.name, describePatch(patch)),
			Why:  fmt.Sprintf("its gates are not those of the control plane, which is %s", p.controlPlane().image.Kubernetes),
		}
		if len(dropped) > 0 {
			a.Why += fmt.Sprintf("; it does not know %s", strings.Join(dropped, ", "))
		}
		if !written[dir] {
			written[dir] = true
			data, err := json.Marshal(map[string]any{"featureGates": patch})
			if err != nil {
				return err
			}
			a.Files = []File{{
				Path: p.hostPath(dir + "/kubeletconfiguration0+merge.json"), Data: string(data) + "\n", Mode: 0o644,
			}}
		}
		p.add(a)
	}
	return nil
}

// kubeletGates returns what a kubelet of a table's version is to have set, and
// which of the user's gates it does not know.
func (p *plan) kubeletGates(table *gates.Table, user gates.Set, version string) (want gates.Set, dropped []string, err error) {
	want = gates.Set{}
	for _, name := range slices.Sorted(maps.Keys(user)) {
		if table.Knows(name) {
			want[name] = user[name]
		} else {
			dropped = append(dropped, name)
		}
	}
	if err := checkGates(table, want, version); err != nil {
		return nil, nil, err
	}
	for _, c := range table.Decide(want) {
		want[c.Name] = c.On
	}
	maps.Copy(want, p.userNamespaceGates(table, want))
	return want, dropped, nil
}

// gatesPatch returns the JSON merge patch that makes base into want.
func gatesPatch(base, want gates.Set) map[string]any {
	patch := make(map[string]any)
	for name := range base {
		if _, ok := want[name]; !ok {
			patch[name] = nil
		}
	}
	for name, on := range want {
		if had, ok := base[name]; !ok || had != on {
			patch[name] = on
		}
	}
	return patch
}

func describePatch(patch map[string]any) string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(patch)) {
		if patch[name] == nil {
			parts = append(parts, "no feature gate "+name)
		} else {
			parts = append(parts, fmt.Sprintf("feature gate %s=%t", name, patch[name]))
		}
	}
	return strings.Join(parts, ", ")
}

// refuseOwnPatches refuses a config that already uses kubeadm's patch directory
// for a node: there can be one only.
func refuseOwnPatches(config *v1alpha4.Cluster, node int) error {
	for _, text := range slices.Concat(config.KubeadmConfigPatches, config.Nodes[node].KubeadmConfigPatches) {
		var patch struct {
			Patches struct {
				Directory string `yaml:"directory"`
			} `yaml:"patches"`
		}
		// A patch that cannot be read is for kind to refuse.
		if err := yaml.Unmarshal([]byte(text), &patch); err == nil && patch.Patches.Directory != "" {
			return ui.WithHint(
				fmt.Errorf("nodes[%d] has its own kubeadm patches in %s, and its kubelet needs the lab's", node, patch.Patches.Directory),
				"give the node an image with the control plane's kubelet version, or remove patches.directory")
		}
	}
	return nil
}

// tableFor returns the gates of a version that the lab supports.
func tableFor(version string) (*gates.Table, error) {
	table, err := gates.For(version)
	if errors.Is(err, gates.ErrUnsupported) {
		minors := gates.Minors()
		return nil, ui.WithHint(err, "this lab knows Kubernetes %s to %s", minors[0], minors[len(minors)-1])
	}
	return table, err
}

// checkGates is Table.Check with the cure as a hint.
func checkGates(table *gates.Table, set gates.Set, version string) error {
	err := table.Check(set)
	var conflict *gates.Conflict
	if errors.As(err, &conflict) {
		err = fmt.Errorf("featureGates: %q cannot be set on Kubernetes %s: %s", conflict.Gate, version, conflict.Problem)
		return ui.WithHint(err, "%s", conflict.Cure)
	}
	return err
}

// checkSkew refuses kubelets that Kubernetes does not support beside a control
// plane: newer ones, and those more than three minor versions older.
func checkSkew(n plannedNode, control string) error {
	kubelet, ok1 := minorNumber(n.image.Kubelet)
	server, ok2 := minorNumber(control)
	if !ok1 || !ok2 {
		return nil // tableFor says what is wrong
	}
	if kubelet > server || kubelet+3 < server {
		return ui.WithHint(
			fmt.Errorf("kubelet %s of node %s does not go with control plane %s", n.image.Kubelet, n.name, control),
			"a kubelet may be up to three minor versions older than the control plane, and never newer")
	}
	return nil
}

func minorNumber(version string) (int, bool) {
	minor, ok := gates.Minor(version)
	if !ok {
		return 0, false
	}
	_, number, _ := strings.Cut(minor, ".")
	n, err := strconv.Atoi(number)
	return n, err == nil
}

// mustYAML writes a value that is made of maps, strings and bools.
func mustYAML(value any) string {
	data, err := yaml.Marshal(value)
	if err != nil {
		panic(err) // such values cannot fail
	}
	return string(data)
}
