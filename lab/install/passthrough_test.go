package install

import (
	"context"
	"encoding/json"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/dra-lab/dra-lab/driver/driverroot"
	"github.com/dra-lab/dra-lab/lab/internal/ui"
)

// nodeWith has device nodes of the host in its driver root.
type nodeWith struct {
	node
	name, devices string
}

func (n nodeWith) Name() string { return n.name }
func (n nodeWith) Exec(context.Context, io.Reader, ...string) ([]byte, error) {
	return []byte(n.devices), nil
}

func TestNodesSayWhichGPUsTheyWereGiven(t *testing.T) {
	i := installer{nodes: []node{
		nodeWith{name: "two", devices: "nvidia-uvm\nnvidia1\nnvidia2\nnvidiactl\n"},
		nodeWith{name: "one", devices: "nvidia-uvm\nnvidia0\nnvidiactl\n"}, nodeWith{name: "three"},
		nodeWith{name: "control", devices: "nvidia7\n"},
	}}
	with, count, err := i.passed(t.Context(), []string{"one", "two", "three"})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"one", "two"}, with); diff != "" {
		t.Errorf("nodes (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(map[string]int{"one": 1, "two": 2}, count); diff != "" {
		t.Errorf("GPUs (-want +got):\n%s", diff)
	}
	if _, _, err := i.passed(t.Context(), []string{"three"}); err == nil || ui.Hint(err) == "" {
		t.Errorf("no node with a GPU: %v, hint %q", err, ui.Hint(err))
	}
}

func TestGoalCountsTheGPUsOfEachNode(t *testing.T) {
	g := goal{devices: 4, passed: map[string]int{"one": 1}}
	if state := g.sliceState("one", []*resourcev1.ResourceSlice{slice("one", "a", 1, 1, "gpu-0")}); state != "" {
		t.Errorf("one of one: %q", state)
	}
	g.passed["one"] = 2
	if state := g.sliceState("one", []*resourcev1.ResourceSlice{slice("one", "a", 1, 1, "gpu-0")}); state != "1 of 2 devices" {
		t.Errorf("one of two: %q", state)
	}
}

func TestDriverWithHardware(t *testing.T) {
	plain, hardware := driverSet(t, GPUs{}), driverSet(t, GPUs{mode: Passthrough})
	if security := plain.Spec.Template.Spec.Containers[0].SecurityContext; security.Privileged != nil && *security.Privileged {
		t.Errorf("the driver of simulated GPUs is privileged: %v", security)
	}
	pod := hardware.Spec.Template.Spec
	c := pod.Containers[0]
	if args := strings.Join(c.Args, " "); !strings.Contains(args, "-gpus=passthrough") || strings.Contains(args, "simulated") ||
		!strings.Contains(args, "-driver-root="+driverroot.Dir) {
		t.Errorf("arguments are %s", args)
	}
	if s := c.SecurityContext; s.Privileged == nil || !*s.Privileged || s.AllowPrivilegeEscalation != nil || s.Capabilities != nil {
		t.Errorf("security context %+v, which the API server refuses", s)
	}
	if pod.NodeSelector[gpuLabel] != "passthrough" || hardware.Spec.Template.Annotations[gpuLabel] != "passthrough" {
		t.Errorf("selects %v, annotated %v", pod.NodeSelector, hardware.Spec.Template.Annotations)
	}
	if got, want := len(c.VolumeMounts), len(plain.Spec.Template.Spec.Containers[0].VolumeMounts)+1; got != want || c.VolumeMounts[got-1].MountPath != driverroot.Dir {
		t.Errorf("mounts are %+v", c.VolumeMounts)
	}
}

// driverSet is the DaemonSet, and with it the last of the objects.
func driverSet(t *testing.T, gpus GPUs) appsv1.DaemonSet {
	t.Helper()
	built, err := build(artifacts(t))
	if err != nil {
		t.Fatal(err)
	}
	objects, err := installer{options: Options{GPUs: gpus}}.objects(built, []string{"one"})
	if err != nil {
		t.Fatal(err)
	}
	if labels := objects[0].GetLabels(); labels[gpuLabel] != string(gpus.Mode()) {
		t.Errorf("node has labels %v", labels)
	}
	i := slices.IndexFunc(objects, func(o *unstructured.Unstructured) bool { return o.GetKind() == "DaemonSet" })
	if i < 0 {
		t.Fatal("no DaemonSet")
	}
	var set appsv1.DaemonSet
	data, err := json.Marshal(objects[i])
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(data), `"status"`) {
		t.Errorf("it has a status: %s", data)
	}
	if err := json.Unmarshal(data, &set); err != nil {
		t.Fatal(err)
	}
	return set
}

func TestGiveHardwareRefusesOtherDaemonSets(t *testing.T) {
	object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&appsv1.DaemonSet{})
	if err != nil {
		t.Fatal(err)
	}
	u := &unstructured.Unstructured{Object: object}
	u.SetKind("DaemonSet")
	if err := giveHardware(u); err == nil {
		t.Error("took a DaemonSet without the driver")
	}
}

// A driver of real GPUs has no slots for simulated ones.
func TestNetworkAttachedGPUsAreOnlyWhereTheyCanBeAttached(t *testing.T) {
	built, err := build(artifacts(t))
	if err != nil {
		t.Fatal(err)
	}
	for mode, want := range map[Mode]string{Simulated: "-fabric-devices=4", Passthrough: "-fabric-devices=0"} {
		objects, err := installer{options: Options{GPUs: GPUs{mode: mode}}}.objects(built, []string{"one"})
		if err != nil {
			t.Fatal(err)
		}
		found := slices.ContainsFunc(objects, func(o *unstructured.Unstructured) bool {
			data, err := json.Marshal(o)
			return err == nil && o.GetKind() == "Deployment" && strings.Contains(string(data), `"`+want+`"`)
		})
		if !found {
			t.Errorf("%s: the controller has no %s", mode, want)
		}
	}
}
