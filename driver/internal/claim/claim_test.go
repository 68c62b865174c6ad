package claim_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/dra-lab/dra-lab/driver/internal/claim"
	"github.com/dra-lab/dra-lab/driver/internal/device"
)

type result = resourceapi.DeviceRequestAllocationResult

func allocated(results ...result) *resourceapi.ResourceClaim {
	c := &resourceapi.ResourceClaim{}
	c.UID = "00000000-0000-0000-0000-000000000001"
	c.Status.Allocation = &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{Results: results}}
	return c
}

func ours(request, device string) result {
	return result{Request: request, Driver: "gpu.lab.example", Pool: "node", Device: device}
}

func TestResolve(t *testing.T) {
	inventory := claim.Inventory{Driver: "gpu.lab.example", Pool: "node", GPUs: map[string]device.GPU{
		"gpu-0": {Index: 0, Name: "gpu-0", UUID: "GPU-a"},
		"gpu-1": {Index: 1, Name: "gpu-1", UUID: "GPU-b"},
		"gpu-2": {Index: 2, Name: "gpu-2", UUID: "GPU-c", Shared: true, MemoryBytes: 16 << 30},
	}}
	share := func(device, id, memory string) result {
		r := ours("gpu", device)
		r.ShareID = ptr.To(types.UID(id))
		r.ConsumedCapacity = map[resourceapi.QualifiedName]resource.Quantity{"memory": resource.MustParse(memory)}
		return r
	}
	config := func(driver string) *resourceapi.ResourceClaim {
		c := allocated(ours("gpu", "gpu-0"))
		c.Status.Allocation.Devices.Config = []resourceapi.DeviceAllocationConfiguration{{
			Source: resourceapi.AllocationConfigSourceClaim, Requests: []string{"gpu"},
			DeviceConfiguration: resourceapi.DeviceConfiguration{Opaque: &resourceapi.OpaqueDeviceConfiguration{
				Driver: driver, Parameters: runtime.RawExtension{Raw: []byte(`{}`)},
			}},
		}}
		return c
	}
	with := func(r result, change func(*result)) result {
		change(&r)
		return r
	}
	uid := func(s string) *resourceapi.ResourceClaim {
		c := allocated(ours("gpu", "gpu-0"))
		c.UID = types.UID(s)
		return c
	}
	for _, tc := range []struct {
		name  string
		claim *resourceapi.ResourceClaim
		want  []string // request=device, with a question mark for monitoring
		err   string
	}{
		{name: "one", claim: allocated(ours("gpu", "gpu-1")), want: []string{"gpu=gpu-1"}},
		{name: "several, in order", claim: allocated(ours("b", "gpu-1"), ours("a/large", "gpu-0")), want: []string{"b=gpu-1", "a/large=gpu-0"}},
		{
			name:  "other drivers' devices are theirs",
			claim: allocated(with(ours("nic", "eth0"), func(r *result) { r.Driver = "nic.example" }), ours("gpu", "gpu-0")),
			want:  []string{"gpu=gpu-0"},
		},
		{
			name:  "admin access",
			claim: allocated(with(ours("watch", "gpu-0"), func(r *result) { r.AdminAccess = ptr.To(true) })),
			want:  []string{"watch=gpu-0?"},
		},
		{name: "nothing for this driver", claim: allocated()},
		{name: "other drivers' configuration is theirs", claim: config("nic.example"), want: []string{"gpu=gpu-0"}},

		{name: "not allocated", claim: &resourceapi.ResourceClaim{ObjectMeta: uid("a").ObjectMeta}, err: "not allocated"},
		{name: "unknown device", claim: allocated(ours("gpu", "gpu-7")), err: `device "gpu-7": does not exist`},
		{name: "other node", claim: allocated(with(ours("gpu", "gpu-0"), func(r *result) { r.Pool = "elsewhere" })), err: `pool is "elsewhere"`},
		{name: "same device twice", claim: allocated(ours("a", "gpu-0"), ours("b", "gpu-0")), err: "allocated twice"},
		{
			name:  "same device to hold and to look at",
			claim: allocated(ours("a", "gpu-0"), with(ours("b", "gpu-0"), func(r *result) { r.AdminAccess = ptr.To(true) })),
			err:   "allocated twice",
		},
		{name: "share of a whole device", claim: allocated(share("gpu-0", "s", "1Gi")), err: "the device is not shared"},
		{name: "share", claim: allocated(share("gpu-2", "s", "1Gi")), want: []string{"gpu=gpu-2/s:1073741824"}},
		{name: "shared device, all of it", claim: allocated(share("gpu-2", "s", "16Gi")), want: []string{"gpu=gpu-2/s:17179869184"}},
		{name: "shared device, allocated before it was", claim: allocated(ours("gpu", "gpu-2")), want: []string{"gpu=gpu-2"}},
		{name: "share that is too large", claim: allocated(share("gpu-2", "s", "17Gi")), err: "at most 17179869184"},
		{name: "share of nothing", claim: allocated(share("gpu-2", "s", "0")), err: "share s of 0 bytes"},
		{name: "share without a part", claim: allocated(with(ours("gpu", "gpu-2"), func(r *result) { r.ShareID = ptr.To(types.UID("s")) })), err: "without a part"},
		{
			name:  "part without a share",
			claim: allocated(with(share("gpu-2", "s", "1Gi"), func(r *result) { r.ShareID = nil })),
			err:   "without ID",
		},
		{name: "configuration that is none", claim: config("gpu.lab.example"), err: `configuration from FromClaim for requests [gpu]: parse GPUConfig`},
		{name: "UID with a path", claim: uid("../etc"), err: "claim UID"},
		{name: "UID that hides", claim: uid(".."), err: "claim UID"},
		{name: "no UID", claim: uid(""), err: "claim UID"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			assigned, err := claim.Resolve(tc.claim, inventory)
			if (err != nil) != (tc.err != "") || err != nil && !strings.Contains(err.Error(), tc.err) {
				t.Fatalf("got error %v, want %q", err, tc.err)
			}
			var got []string
			for _, a := range assigned {
				text := a.Request + "=" + a.GPU.Name
				if a.Monitor {
					text += "?"
				}
				if a.Share != "" {
					text += fmt.Sprintf("/%s:%d", a.Share, a.Settings.MemoryBytes)
				}
				got = append(got, text)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("assignments (-want +got):\n%s", diff)
			}
		})
	}
}

func TestSettingsAreThoseOfTheLastConfigurationForTheRequest(t *testing.T) {
	inventory := claim.Inventory{Driver: "gpu.lab.example", Pool: "node", GPUs: map[string]device.GPU{
		"gpu-0": {Index: 0, Name: "gpu-0"}, "gpu-1": {Index: 1, Name: "gpu-1"}, "gpu-2": {Index: 2, Name: "gpu-2"},
	}}
	config := func(sharing string, requests ...string) resourceapi.DeviceAllocationConfiguration {
		return resourceapi.DeviceAllocationConfiguration{
			Source: resourceapi.AllocationConfigSourceClaim, Requests: requests,
			DeviceConfiguration: resourceapi.DeviceConfiguration{Opaque: &resourceapi.OpaqueDeviceConfiguration{
				Driver:     "gpu.lab.example",
				Parameters: runtime.RawExtension{Raw: []byte(`{"apiVersion":"gpu.lab.example/v1alpha1","kind":"GPUConfig"` + sharing + `}`)},
			}},
		}
	}
	const exclusive = `,"sharing":{"strategy":"Exclusive"}`
	const long = `,"sharing":{"strategy":"TimeSlicing","timeSlicing":{"interval":"Long"}}`
	class := func(c resourceapi.DeviceAllocationConfiguration) resourceapi.DeviceAllocationConfiguration {
		c.Source = resourceapi.AllocationConfigSourceClass
		return c
	}
	watch := ours("c", "gpu-2")
	watch.AdminAccess = ptr.To(true)
	c := allocated(ours("a", "gpu-0"), ours("b/small", "gpu-1"), watch)
	for name, tc := range map[string]struct {
		configs []resourceapi.DeviceAllocationConfiguration
		want    []device.Settings
	}{
		"none":                       {want: []device.Settings{{}, {}, {}}},
		"for all, except who looks":  {configs: []resourceapi.DeviceAllocationConfiguration{config(exclusive)}, want: []device.Settings{{Exclusive: true}, {Exclusive: true}, {}}},
		"for one":                    {configs: []resourceapi.DeviceAllocationConfiguration{config(long, "a")}, want: []device.Settings{{TimeSlice: "Long"}, {}, {}}},
		"for a request, not a part":  {configs: []resourceapi.DeviceAllocationConfiguration{config(exclusive, "b")}, want: []device.Settings{{}, {Exclusive: true}, {}}},
		"for a part of a request":    {configs: []resourceapi.DeviceAllocationConfiguration{config(exclusive, "b/small")}, want: []device.Settings{{}, {Exclusive: true}, {}}},
		"the claim's over the class": {configs: []resourceapi.DeviceAllocationConfiguration{config(long, "a"), config("", "b"), class(config(exclusive))}, want: []device.Settings{{TimeSlice: "Long"}, {}, {}}},
	} {
		t.Run(name, func(t *testing.T) {
			c := c.DeepCopy()
			c.Status.Allocation.Devices.Config = tc.configs
			assigned, err := claim.Resolve(c, inventory)
			if err != nil {
				t.Fatal(err)
			}
			var got []device.Settings
			for _, a := range assigned {
				got = append(got, a.Settings)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("settings (-want +got):\n%s", diff)
			}
		})
	}
}
