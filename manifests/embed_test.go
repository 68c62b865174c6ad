package manifests_test

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"github.com/dra-lab/dra-lab/manifests"
)

func values() manifests.Values {
	return manifests.Values{
		DriverImage:     "docker.io/dra-lab/driver:0123",
		ControllerImage: "docker.io/dra-lab/controller:89ab",
		TrainerImage:    "docker.io/dra-lab/trainer:4567",
		GPUs:            "simulated=h100:4",
	}
}

func objects(t *testing.T) []*unstructured.Unstructured {
	t.Helper()
	found, err := manifests.Objects(values())
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func TestEveryObjectIsValid(t *testing.T) {
	// The API server would drop or refuse a misspelt field only once the lab
	// runs; the strict decoder finds it here.
	decoder := serializer.NewCodecFactory(scheme.Scheme, serializer.EnableStrict).UniversalDeserializer()
	for _, object := range objects(t) {
		if object.GetKind() == "CustomResourceDefinition" {
			continue // lab/install compares it with the types that it is for
		}
		data, err := json.Marshal(object)
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := decoder.Decode(data, nil, nil); err != nil {
			t.Errorf("%s %s: %v", object.GetKind(), object.GetName(), err)
		}
	}
}

func TestNamespaceComesFirstAndProgramsAfterWhatTheyUse(t *testing.T) {
	var kinds []string
	for _, object := range objects(t) {
		kinds = append(kinds, object.GetKind())
	}
	defined, driver := slices.Index(kinds, "CustomResourceDefinition"), slices.Index(kinds, "DaemonSet")
	if kinds[0] != "Namespace" || defined > driver || kinds[len(kinds)-1] != "Deployment" {
		t.Errorf("order %v, want the namespace first, the driver after what it uses, and the controller last", kinds)
	}
}

func TestValuesAreFilledIn(t *testing.T) {
	all := objects(t)
	i := slices.IndexFunc(all, func(o *unstructured.Unstructured) bool { return o.GetKind() == "DaemonSet" })
	data, err := json.Marshal(all[i])
	if err != nil {
		t.Fatal(err)
	}
	var driver appsv1.DaemonSet
	if err := json.Unmarshal(data, &driver); err != nil {
		t.Fatal(err)
	}
	if got, want := driver.Spec.Template.Spec.Containers[0].Image, values().DriverImage; got != want {
		t.Errorf("driver image %q, want %q", got, want)
	}
	if got, want := driver.Spec.Template.Annotations["gpu.lab.example/gpus"], values().GPUs; got != want {
		t.Errorf("annotation %q, want %q", got, want)
	}
}

func TestIncompleteValuesAreRefused(t *testing.T) {
	cases := map[string]struct {
		change func(*manifests.Values)
		want   string
	}{
		"missing":             {func(v *manifests.Values) { v.TrainerImage = "" }, `no value for variable "TRAINER_IMAGE"`},
		"more than one word":  {func(v *manifests.Values) { v.GPUs = "a: b" }, `variable "GPUS" has the value "a: b"`},
		"a mapping":           {func(v *manifests.Values) { v.DriverImage = "driver:" }, `variable "DRIVER_IMAGE"`},
		"a quote":             {func(v *manifests.Values) { v.TaintEffects = `x"` }, `variable "TAINT_EFFECTS"`},
		"an escape":           {func(v *manifests.Values) { v.IgnoredXIDs = `1\n3` }, `variable "IGNORED_XIDS"`},
		"another YAML object": {func(v *manifests.Values) { v.DriverImage = "a\n---\n" }, `variable "DRIVER_IMAGE"`},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			v := values()
			c.change(&v)
			_, err := manifests.Objects(v)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want one with %q", err, c.want)
			}
		})
	}
}

func TestOptionalValues(t *testing.T) {
	v := values()
	v.PullPolicy, v.NodeLabel, v.NodeLabelValue = "Never", "kubernetes.io/os", "linux"
	v.KubeletDir, v.IgnoredXIDs, v.TaintEffects = "/var/lib/k0s/kubelet", "13,31", "temperature=NoExecute"
	for _, c := range []struct {
		values         manifests.Values
		policy         corev1.PullPolicy
		selector       map[string]string
		dir            string
		xids, reaction string
	}{
		{values(), corev1.PullIfNotPresent, map[string]string{"gpu.lab.example/gpus": "simulated"}, "/var/lib/kubelet", "default", "default"},
		{v, corev1.PullNever, map[string]string{"kubernetes.io/os": "linux"}, "/var/lib/k0s/kubelet", "13,31", "temperature=NoExecute"},
	} {
		all, err := manifests.Objects(c.values)
		if err != nil {
			t.Fatal(err)
		}
		pod := podOf(t, all[slices.IndexFunc(all, func(o *unstructured.Unstructured) bool { return o.GetKind() == "DaemonSet" })])
		driver := pod.Containers[0]
		if driver.ImagePullPolicy != c.policy {
			t.Errorf("pull policy %q", driver.ImagePullPolicy)
		}
		if !maps.Equal(pod.NodeSelector, c.selector) {
			t.Errorf("node selector %v", pod.NodeSelector)
		}
		for _, arg := range []string{"-gpus=simulated=h100:4", "-kubelet-dir=" + c.dir, "-ignored-xids=" + c.xids, "-taint-effects=" + c.reaction} {
			if !slices.Contains(driver.Args, arg) {
				t.Errorf("arguments %q have no %s", driver.Args, arg)
			}
		}
		// The kubelet finds the sockets where the driver makes them.
		for _, m := range driver.VolumeMounts {
			i := slices.IndexFunc(pod.Volumes, func(v corev1.Volume) bool { return v.Name == m.Name })
			if got := pod.Volumes[i].HostPath.Path; got != m.MountPath {
				t.Errorf("%s is %s on the node and %s in the container", m.Name, got, m.MountPath)
			}
			if (m.Name == "plugin" || m.Name == "registry") && !strings.HasPrefix(m.MountPath, c.dir+"/plugins") {
				t.Errorf("%s is mounted at %s", m.Name, m.MountPath)
			}
		}
	}
}

// podOf gives what a DaemonSet or Deployment runs.
func podOf(t *testing.T, o *unstructured.Unstructured) corev1.PodSpec {
	t.Helper()
	data, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	var workload appsv1.DaemonSet // a Deployment has its template in the same place
	if err := json.Unmarshal(data, &workload); err != nil {
		t.Fatal(err)
	}
	return workload.Spec.Template.Spec
}

// What a container may do is what its work needs. Only the driver has parts of
// its node, and only these.
func TestNoContainerMayMoreThanItsWorkNeeds(t *testing.T) {
	hostPaths := map[string][]string{"driver": {
		"/var/lib/kubelet/plugins_registry", "/var/lib/kubelet/plugins/gpu.lab.example", "/var/run/cdi", "/var/lib/dra-lab/hardware",
	}}
	workloads := 0
	for _, o := range objects(t) {
		if o.GetKind() != "DaemonSet" && o.GetKind() != "Deployment" {
			continue
		}
		workloads++
		name, pod := o.GetName(), podOf(t, o)
		if pod.HostNetwork || pod.HostPID || pod.HostIPC {
			t.Errorf("%s: shares a namespace with its node", name)
		}
		var paths []string
		for _, v := range pod.Volumes {
			if v.HostPath != nil {
				paths = append(paths, v.HostPath.Path)
			}
		}
		if !slices.Equal(paths, hostPaths[name]) {
			t.Errorf("%s: has %q of its node, want %q", name, paths, hostPaths[name])
		}
		for _, c := range slices.Concat(pod.InitContainers, pod.Containers) {
			s := c.SecurityContext
			if s == nil || s.Capabilities == nil {
				t.Errorf("%s: container %s has no security context with capabilities", name, c.Name)
				continue
			}
			for what, ok := range map[string]bool{
				"is privileged":              !ptr.Deref(s.Privileged, false),
				"can gain privileges":        s.AllowPrivilegeEscalation != nil && !*s.AllowPrivilegeEscalation,
				"can write its root":         ptr.Deref(s.ReadOnlyRootFilesystem, false),
				"has no seccomp profile":     profileOf(pod, s) == corev1.SeccompProfileTypeRuntimeDefault,
				"keeps capabilities":         slices.Equal(s.Capabilities.Drop, []corev1.Capability{"ALL"}),
				"has capabilities":           len(s.Capabilities.Add) == 0 || name == "driver" && slices.Equal(s.Capabilities.Add, []corev1.Capability{"DAC_OVERRIDE", "FOWNER"}),
				"runs as root without cause": name == "driver" || nonRoot(pod, s),
			} {
				if !ok {
					t.Errorf("%s: container %s %s", name, c.Name, what)
				}
			}
		}
	}
	if workloads == 0 {
		t.Error("no workload was looked at")
	}
}

// profileOf is the seccomp profile of a container, or that of its Pod.
func profileOf(pod corev1.PodSpec, s *corev1.SecurityContext) corev1.SeccompProfileType {
	switch {
	case s.SeccompProfile != nil:
		return s.SeccompProfile.Type
	case pod.SecurityContext != nil && pod.SecurityContext.SeccompProfile != nil:
		return pod.SecurityContext.SeccompProfile.Type
	}
	return ""
}

func nonRoot(pod corev1.PodSpec, s *corev1.SecurityContext) bool {
	if s.RunAsNonRoot != nil {
		return *s.RunAsNonRoot
	}
	return pod.SecurityContext != nil && ptr.Deref(pod.SecurityContext.RunAsNonRoot, false)
}

func TestYAMLIsWhatTheLabAppliesButForItsOwnNotes(t *testing.T) {
	v := values()
	v.TrainerImage = "" // nobody asks for it there
	text, err := manifests.YAML(v)
	if err != nil {
		t.Fatal(err)
	}
	var got, want []string
	for document := range strings.SplitSeq(text, "\n---\n") {
		var o unstructured.Unstructured
		if err := yaml.UnmarshalStrict([]byte(document+"\n"), &o.Object); err != nil {
			t.Fatal(err)
		}
		got = append(got, encode(t, &o))
	}
	for _, o := range objects(t) {
		if o.GetKind() != "ConfigMap" || o.GetName() != "lab" {
			want = append(want, encode(t, o))
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-lab +YAML):\n%s", diff)
	}
	if _, err := manifests.YAML(manifests.Values{}); err == nil {
		t.Error("no error without an image")
	}
}

func encode(t *testing.T, o *unstructured.Unstructured) string {
	t.Helper()
	data, err := o.MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// That it renders to the same as YAML is for Helm to say: scripts/chart.
func TestChart(t *testing.T) {
	chart, err := manifests.Chart(manifests.Values{GPUs: "simulated=t4:2", PullPolicy: "Always"})
	if err != nil {
		t.Fatal(err)
	}
	var defaults map[string]string
	if err := yaml.UnmarshalStrict([]byte(chart["values.yaml"]), &defaults); err != nil {
		t.Fatal(err)
	}
	want := map[string]string{
		"driverImage": "", "gpus": "simulated=t4:2", "pullPolicy": "Always",
		"nodeLabel": "gpu.lab.example/gpus", "nodeLabelValue": "simulated", "kubeletDir": "/var/lib/kubelet",
		"ignoredXIDs": "default", "taintEffects": "default",
	}
	if diff := cmp.Diff(want, defaults); diff != "" {
		t.Errorf("values (-want +got):\n%s", diff)
	}
	for name, text := range chart {
		if strings.Contains(text, "${") {
			t.Errorf("%s has a variable of the manifests", name)
		}
	}
	if _, err := manifests.Chart(manifests.Values{PullPolicy: "Now or never"}); err == nil || !strings.Contains(err.Error(), `variable "PULL_POLICY"`) {
		t.Errorf("a wrong default: %v", err)
	}
}
