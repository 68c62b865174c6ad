package recovery

import (
	"regexp"
	"slices"
	"strings"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/utils/ptr"

	"github.com/dra-lab/dra-lab/driver/api"
	"github.com/dra-lab/dra-lab/driver/api/v1alpha1"
	"github.com/dra-lab/dra-lab/driver/internal/operation"
)

// State is everything that is decided upon.
type State struct {
	Slices     []*resourceapi.ResourceSlice
	Claims     []*resourceapi.ResourceClaim
	Operations map[string]*v1alpha1.DeviceOperation // on devices of nodes, by name
	Nodes      map[string]bool                      // that exist
}

// All decides about every device. The writes of one device are together, and
// those of different devices do not depend on each other. again is when to look
// once more even if nothing changes, 0 for never.
func All(p Policy, s State, now time.Time) (actions [][]operation.Action, again time.Duration) {
	devices, complete := s.devices()
	known := map[string]bool{}
	for _, d := range devices {
		name := v1alpha1.OperationName(d.Pool, d.Name)
		known[name] = true
		writes, wait := Decide(p, d, s.Operations[name], now)
		if len(writes) > 0 {
			actions = append(actions, writes)
		}
		if wait > 0 && (again == 0 || wait < again) {
			again = wait
		}
	}
	for name, op := range s.Operations {
		switch {
		case known[name]:
		case !s.Nodes[op.Spec.Node]:
			actions = append(actions, []operation.Action{{Verb: operation.Delete, Operation: op, IfGone: op.Spec.Node}})
		case complete[op.Spec.Pool]:
			// The node no longer has the device.
			actions = append(actions, []operation.Action{{Verb: operation.Delete, Operation: op}})
		}
	}
	return actions, again
}

// physical is the GPU that a device is, or is a part of.
var physical = regexp.MustCompile(`^gpu-\d+`)

// devices are the GPUs that nodes publish, in order, with the taints of all
// their parts; complete says of which pools all of them are known.
func (s State) devices() (all []Device, complete map[string]bool) {
	held := s.held()
	newest, have := map[string]int64{}, map[string]int64{}
	for _, slice := range s.Slices {
		pool := slice.Spec.Pool
		if pool.Generation > newest[pool.Name] {
			newest[pool.Name], have[pool.Name] = pool.Generation, 0
		}
		if pool.Generation == newest[pool.Name] {
			have[pool.Name]++
		}
	}
	complete = map[string]bool{}
	byName := map[string]*Device{}
	for _, slice := range s.Slices {
		pool := slice.Spec.Pool
		if slice.Spec.Driver != api.DriverName || slice.Spec.NodeName == nil || pool.Generation < newest[pool.Name] {
			continue
		}
		complete[pool.Name] = have[pool.Name] >= pool.ResourceSliceCount
		for _, d := range slice.Spec.Devices {
			gpu := physical.FindString(d.Name)
			if gpu == "" {
				continue
			}
			key := pool.Name + "/" + gpu
			if byName[key] == nil {
				byName[key] = &Device{Node: *slice.Spec.NodeName, Pool: pool.Name, Name: gpu}
			}
			known := byName[key]
			known.Held = known.Held || held[pool.Name+"/"+d.Name]
			for _, t := range d.Taints {
				taint := Taint{Key: t.Key, Value: t.Value}
				if ours(t) && !slices.Contains(known.Taints, taint) {
					known.Taints = append(known.Taints, taint)
				}
			}
		}
	}
	for _, d := range byName {
		all = append(all, *d)
	}
	slices.SortFunc(all, func(a, b Device) int { return strings.Compare(a.Pool+"/"+a.Name, b.Pool+"/"+b.Name) })
	return all, complete
}

// ours says whether a taint is the driver's word about something that is wrong.
// One without an effect is for information.
func ours(t resourceapi.DeviceTaint) bool {
	return strings.HasPrefix(t.Key, api.DriverName+"/") &&
		(t.Effect == resourceapi.DeviceTaintEffectNoSchedule || t.Effect == resourceapi.DeviceTaintEffectNoExecute)
}

// held are the devices that claims hold, as pool/device.
func (s State) held() map[string]bool {
	held := map[string]bool{}
	for _, c := range s.Claims {
		if c.Status.Allocation == nil {
			continue
		}
		for _, r := range c.Status.Allocation.Devices.Results {
			if r.Driver == api.DriverName && !ptr.Deref(r.AdminAccess, false) {
				held[r.Pool+"/"+r.Device] = true
			}
		}
	}
	return held
}
