package install

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"

	"github.com/dra-lab/dra-lab/driver/driverroot"
	"github.com/dra-lab/dra-lab/lab/internal/ui"
)

// passedScript lists the device nodes that a node was given, if any.
const passedScript = `if [ -d "$1" ]; then ls "$1"; fi`

// passed finds which of the nodes have GPUs of the host, and how many each. The
// nodes themselves say so: they were made with their device nodes.
func (i installer) passed(ctx context.Context, names []string) (with []string, count map[string]int, err error) {
	count = map[string]int{}
	for _, n := range i.nodes {
		if !slices.Contains(names, n.Name()) {
			continue
		}
		out, err := n.Exec(ctx, nil, "sh", "-c", passedScript, "sh", driverroot.Device(driverroot.Dir, ""))
		if err != nil {
			return nil, nil, fmt.Errorf("list GPUs of node %q: %w", n.Name(), err)
		}
		for name := range strings.FieldsSeq(string(out)) {
			number, ok := strings.CutPrefix(name, "nvidia")
			if ok && number != "" && strings.Trim(number, "0123456789") == "" {
				count[n.Name()]++
			}
		}
		if count[n.Name()] > 0 {
			with = append(with, n.Name())
		}
	}
	if len(with) == 0 {
		return nil, nil, ui.WithHint(errors.New("no node has a GPU of the host"), "nodes get them when they are made: lab down, then lab up --gpus passthrough")
	}
	slices.Sort(with)
	return with, count, nil
}

// giveHardware changes the driver's DaemonSet so that it works with the host's
// GPUs. The manifest is for simulated ones, which need no privileges.
func giveHardware(object *unstructured.Unstructured) error {
	if object.GetKind() != "DaemonSet" {
		return nil
	}
	var set appsv1.DaemonSet
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &set); err != nil {
		return fmt.Errorf("read DaemonSet %s: %w", object.GetName(), err)
	}
	pod := &set.Spec.Template.Spec
	kind := -1
	if len(pod.Containers) == 1 {
		kind = slices.IndexFunc(pod.Containers[0].Args, func(arg string) bool { return strings.HasPrefix(arg, "-gpus=") })
	}
	if kind < 0 {
		return fmt.Errorf("give DaemonSet %s hardware: it is not the driver of GPUs", object.GetName())
	}
	pod.NodeSelector[gpuLabel] = string(Passthrough)
	c := &pod.Containers[0]
	c.Args[kind] = "-gpus=" + string(Passthrough)
	c.Args = append(c.Args, "-driver-root="+driverroot.Dir)
	// NVML opens the device nodes, which only a privileged container may.
	c.SecurityContext = &corev1.SecurityContext{
		RunAsUser: ptr.To(int64(0)), Privileged: ptr.To(true), ReadOnlyRootFilesystem: ptr.To(true),
	}
	const volume = "driver-root"
	c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: volume, MountPath: driverroot.Dir, ReadOnly: true})
	pod.Volumes = append(pod.Volumes, corev1.Volume{Name: volume, VolumeSource: corev1.VolumeSource{
		HostPath: &corev1.HostPathVolumeSource{Path: driverroot.Dir, Type: ptr.To(corev1.HostPathDirectory)},
	}})
	changed, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&set)
	if err != nil {
		return fmt.Errorf("write DaemonSet %s: %w", object.GetName(), err)
	}
	delete(changed, "status") // the server's
	object.Object = changed
	return nil
}
