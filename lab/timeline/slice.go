package timeline

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	resourcev1 "k8s.io/api/resource/v1"

	"github.com/dra-lab/dra-lab/driver/api"
)

// sliceChange says what it means that a ResourceSlice was old and is now. old is
// nil for a new slice, now is nil for one that is gone.
func sliceChange(old, now *resourcev1.ResourceSlice, at time.Time) []Event {
	if now == nil {
		return []Event{{
			Time: at, Source: SourceWatch, Component: APIServer, Kind: SliceGone, Node: sliceNode(old),
			Text: fmt.Sprintf("ResourceSlice %s is gone", old.Name),
		}}
	}
	var events []Event
	if old == nil {
		events = append(events, Event{
			Time: at, Source: SourceWatch, Component: APIServer, Kind: SlicePublished, Node: sliceNode(now),
			Text: fmt.Sprintf("ResourceSlice %s is new, %d devices", now.Name, len(now.Spec.Devices)),
		})
		old = &resourcev1.ResourceSlice{}
	}
	taint := func(kind Kind, device string, t resourcev1.DeviceTaint, verb string) {
		detail := fmt.Sprintf("%s=%s:%s", t.Key, t.Value, t.Effect)
		events = append(events, Event{
			Time: at, Source: SourceWatch, Component: APIServer, Kind: kind, Node: sliceNode(now), Device: device, Detail: detail,
			Text: fmt.Sprintf("%s is %s in the ResourceSlice: %s", device, verb, detail),
		})
	}
	for _, device := range now.Spec.Devices {
		if t := device.Attributes[api.AttributeType].StringValue; t != nil && *t == api.TypeMIG {
			// Whatever taints a partition taints the GPU: once is enough.
			continue
		}
		before := taintsOf(old, device.Name)
		for _, t := range device.Taints {
			if !contains(before, t) {
				taint(DeviceTainted, device.Name, t, "tainted")
			}
		}
		for _, t := range before {
			if !contains(device.Taints, t) {
				taint(DeviceUntaint, device.Name, t, "untainted")
			}
		}
	}
	return events
}

func taintsOf(s *resourcev1.ResourceSlice, device string) []resourcev1.DeviceTaint {
	for _, d := range s.Spec.Devices {
		if d.Name == device {
			return d.Taints
		}
	}
	return nil
}

// contains ignores the time at which a taint was added: a slice that is
// published anew sets it.
func contains(taints []resourcev1.DeviceTaint, t resourcev1.DeviceTaint) bool {
	return slices.ContainsFunc(taints, func(o resourcev1.DeviceTaint) bool {
		return o.Key == t.Key && o.Value == t.Value && o.Effect == t.Effect
	})
}

func sliceNode(s *resourcev1.ResourceSlice) string {
	if s.Spec.NodeName == nil {
		return s.Spec.Pool.Name
	}
	return cmp.Or(*s.Spec.NodeName, s.Spec.Pool.Name)
}
