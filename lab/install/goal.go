package install

import (
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"

	"github.com/dra-lab/dra-lab/driver/api"
)

// goal is when the driver serves.
type goal struct {
	nodes      []string       // each of which has to have a ready driver and slices
	devices    int            // on each node
	passed     map[string]int // devices by node, where nodes differ; nil: as devices says
	image      string         // that the driver's Pods run
	generation int64          // of the DaemonSet, which its controller has to have seen
}

// scene is what the API server shows of the driver.
type scene struct {
	driver    *appsv1.DaemonSet // nil: not there yet
	revisions []*appsv1.ControllerRevision
	pods      []*corev1.Pod
	slices    []*resourcev1.ResourceSlice
}

// current is the hash of the DaemonSet's newest revision, which its new Pods
// carry; empty while the DaemonSet's controller has not looked at it.
func (g goal) current(s scene) string {
	if s.driver == nil || s.driver.Status.ObservedGeneration < g.generation {
		return ""
	}
	var hash string
	var newest int64
	for _, r := range s.revisions {
		if r.Revision > newest {
			hash, newest = r.Labels[appsv1.DefaultDaemonSetUniqueLabelKey], r.Revision
		}
	}
	return hash
}

// verdict compares scene and goal. missing says what is not as it has to be,
// one phrase a node at most; it is empty when all is. A Pod that will not
// start, however long one waits, is an error.
func (g goal) verdict(s scene) (missing []string, err error) {
	current := g.current(s)
	for _, node := range g.nodes {
		var fresh, old []*corev1.Pod
		for _, pod := range podsOn(node, s.pods) {
			if g.isNew(pod, current) {
				fresh = append(fresh, pod)
			} else {
				old = append(old, pod)
			}
		}
		for _, pod := range fresh {
			if hopeless(pod) {
				return nil, &podError{node: node, pod: pod}
			}
		}
		if state := podState(fresh, old); state != "" {
			missing = append(missing, node+": "+state)
		} else if state := g.sliceState(node, s.slices); state != "" {
			missing = append(missing, node+": "+state)
		}
	}
	if state := g.rolloutState(s.driver); state != "" && len(missing) == 0 {
		missing = append(missing, state)
	}
	return missing, nil
}

// podsOn lists the driver's Pods on node that are not on their way out.
func podsOn(node string, pods []*corev1.Pod) []*corev1.Pod {
	return slices.DeleteFunc(slices.Clone(pods), func(p *corev1.Pod) bool {
		return p.Spec.NodeName != node || p.DeletionTimestamp != nil
	})
}

// isNew tells a Pod of the DaemonSet as it is from one as it was.
func (g goal) isNew(pod *corev1.Pod, current string) bool {
	return current != "" && pod.Labels[appsv1.DefaultDaemonSetUniqueLabelKey] == current &&
		len(pod.Spec.Containers) > 0 && pod.Spec.Containers[0].Image == g.image
}

// podState is empty when the only Pod that is left on a node is new and ready.
func podState(fresh, old []*corev1.Pod) string {
	for _, pod := range fresh {
		if !podReady(pod) {
			return describe(pod)
		}
	}
	switch {
	case len(old) > 0:
		return "the old driver Pod is still there"
	case len(fresh) == 0:
		return "no driver Pod yet"
	}
	return ""
}

func podReady(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// rolloutState catches changes of the DaemonSet that the Pods' image does not
// show.
func (g goal) rolloutState(driver *appsv1.DaemonSet) string {
	switch {
	case driver == nil || driver.Status.ObservedGeneration < g.generation:
		return "the DaemonSet has not been looked at yet"
	case driver.Status.UpdatedNumberScheduled < driver.Status.DesiredNumberScheduled:
		return fmt.Sprintf("%d of %d driver Pods are new", driver.Status.UpdatedNumberScheduled, driver.Status.DesiredNumberScheduled)
	}
	return ""
}

// sliceState is empty when the node's pool is complete: all slices of its
// newest generation are there and have all devices.
func (g goal) sliceState(node string, all []*resourcev1.ResourceSlice) string {
	pool := newest(node, all)
	if len(pool) == 0 {
		return "no ResourceSlice yet"
	}
	if want := int(pool[0].Spec.Pool.ResourceSliceCount); len(pool) != want {
		return fmt.Sprintf("%d of %d ResourceSlices", len(pool), want)
	}
	devices := 0
	for _, s := range pool {
		for _, d := range s.Spec.Devices {
			// How many partitions a GPU in MIG mode has is its own affair.
			if !partition(d) {
				devices++
			}
		}
	}
	want := g.devices
	if g.passed != nil {
		want = g.passed[node]
	}
	if devices != want {
		return fmt.Sprintf("%d of %d devices", devices, want)
	}
	return ""
}

// partition says whether a device is a part of another one, a GPU in MIG mode.
func partition(d resourcev1.Device) bool { return text(d, api.AttributeType) == api.TypeMIG }

// newest returns the driver's slices on node that have the highest generation
// of their pool, by name.
func newest(node string, all []*resourcev1.ResourceSlice) []*resourcev1.ResourceSlice {
	var found []*resourcev1.ResourceSlice
	for _, s := range all {
		if s.Spec.Driver != api.DriverName || s.Spec.NodeName == nil || *s.Spec.NodeName != node {
			continue
		}
		switch {
		case len(found) == 0 || s.Spec.Pool.Generation > found[0].Spec.Pool.Generation:
			found = []*resourcev1.ResourceSlice{s}
		case s.Spec.Pool.Generation == found[0].Spec.Pool.Generation:
			found = append(found, s)
		}
	}
	slices.SortFunc(found, func(a, b *resourcev1.ResourceSlice) int { return strings.Compare(a.Name, b.Name) })
	return found
}
