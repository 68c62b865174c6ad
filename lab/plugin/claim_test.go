package plugin_test

import (
	"context"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/dra-lab/dra-lab/lab/plugin"
)

// claims is an API server with one claim.
type claims struct {
	claim *resourceapi.ResourceClaim
}

var errNotFound = errors.New("not found")

func (c claims) Get(_ context.Context, name string, _ metav1.GetOptions) (*resourceapi.ResourceClaim, error) {
	if c.claim == nil || c.claim.Name != name {
		return nil, errNotFound
	}
	return c.claim, nil
}

func TestGetClaim(t *testing.T) {
	allocated := func(drivers ...string) *resourceapi.AllocationResult {
		a := &resourceapi.AllocationResult{}
		for i, driver := range drivers {
			a.Devices.Results = append(a.Devices.Results, resourceapi.DeviceRequestAllocationResult{Driver: driver, Pool: "node", Device: string(rune('a' + i))})
		}
		return a
	}
	for name, c := range map[string]struct {
		name       string
		allocation *resourceapi.AllocationResult
		driver     string
		want       []string
		err        error
	}{
		"of the driver":  {name: "c", allocation: allocated("x", "y", "x"), driver: "x", want: []string{"node/a", "node/c"}},
		"of any driver":  {name: "c", allocation: allocated("x", "y"), want: []string{"node/a", "node/b"}},
		"of others":      {name: "c", allocation: allocated("y"), driver: "x", err: plugin.ErrOtherDriver},
		"not allocated":  {name: "c", driver: "x", err: plugin.ErrNotAllocated},
		"does not exist": {name: "d", driver: "x", err: errNotFound},
	} {
		t.Run(name, func(t *testing.T) {
			api := claims{&resourceapi.ResourceClaim{
				ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c", UID: "u"},
				Status: resourceapi.ResourceClaimStatus{
					Allocation:  c.allocation,
					ReservedFor: []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: "p"}},
				},
			}}
			got, err := plugin.GetClaim(context.Background(), api, c.name, c.driver)
			if !errors.Is(err, c.err) || (c.err == nil) != (err == nil) {
				t.Fatalf("got %v, want %v", err, c.err)
			}
			if err != nil {
				return
			}
			want := plugin.Claim{Namespace: "ns", Name: "c", UID: "u", Devices: c.want, Users: []string{"pods/p"}}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("claim (-want +got):\n%s", diff)
			}
			if err := got.InUse(); !errors.Is(err, plugin.ErrInUse) {
				t.Errorf("in use: got %v, want ErrInUse", err)
			}
			got.Users = nil
			if err := got.InUse(); err != nil {
				t.Errorf("without users: got %v", err)
			}
		})
	}
}
