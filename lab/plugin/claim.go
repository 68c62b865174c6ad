package plugin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	drav1 "k8s.io/kubelet/pkg/apis/dra/v1"

	"github.com/dra-lab/dra-lab/driver/draconn"
)

// Claims reads ResourceClaims. The clients of client-go's typed
// ResourceV1().ResourceClaims(namespace) have it.
type Claims interface {
	Get(ctx context.Context, name string, opts metav1.GetOptions) (*resourceapi.ResourceClaim, error)
}

// Claim is a ResourceClaim as a driver knows it.
type Claim struct {
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	UID       types.UID `json:"uid"`
	// Devices are those that are allocated from the driver, as pool/device.
	Devices []string `json:"devices"`
	// Users are the Pods, or others, that the claim is reserved for.
	Users []string `json:"users,omitempty"`
}

// Reasons for which a claim cannot be prepared; errors.Is finds them.
var (
	// ErrNotAllocated: the scheduler has not chosen devices for the claim.
	ErrNotAllocated = errors.New("the claim is not allocated")
	// ErrOtherDriver: the claim's devices are all of other drivers.
	ErrOtherDriver = errors.New("the claim has no device of the driver")
	// ErrInUse: a Pod uses the claim.
	ErrInUse = errors.New("the claim is in use")
)

// GetClaim finds a claim by name and checks that it can be prepared by the
// driver, "" for any.
func GetClaim(ctx context.Context, claims Claims, name, driver string) (Claim, error) {
	object, err := claims.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return Claim{}, fmt.Errorf("get claim %q: %w", name, err)
	}
	c := Claim{Namespace: object.Namespace, Name: object.Name, UID: object.UID}
	for _, user := range object.Status.ReservedFor {
		c.Users = append(c.Users, user.Resource+"/"+user.Name)
	}
	if object.Status.Allocation == nil {
		return Claim{}, fmt.Errorf("claim %q: %w", name, ErrNotAllocated)
	}
	var others []string
	for _, result := range object.Status.Allocation.Devices.Results {
		if driver == "" || result.Driver == driver {
			c.Devices = append(c.Devices, result.Pool+"/"+result.Device)
		} else if !slices.Contains(others, result.Driver) {
			others = append(others, result.Driver)
		}
	}
	if driver != "" && len(c.Devices) == 0 {
		return Claim{}, fmt.Errorf("claim %q: %w %q (its devices are of: %s)", name, ErrOtherDriver, driver, strings.Join(others, ", "))
	}
	return c, nil
}

// InUse returns an error in which errors.Is finds [ErrInUse] if the claim is
// reserved for anybody, who would lose its devices by an unprepare.
func (c Claim) InUse() error {
	if len(c.Users) == 0 {
		return nil
	}
	return fmt.Errorf("claim %q: %w by %s", c.Name, ErrInUse, strings.Join(c.Users, ", "))
}

func (c Claim) wire() *drav1.Claim {
	return &drav1.Claim{Namespace: c.Namespace, Name: c.Name, Uid: string(c.UID)}
}

// Device is a device that a driver has prepared.
type Device struct {
	// Requests are the claim's requests that the device is for; none means all.
	Requests []string `json:"requests,omitempty"`
	Pool     string   `json:"pool"`
	Device   string   `json:"device"`
	// CDI are the ids under which the container runtime finds the device.
	CDI []string `json:"cdi"`
	// Share is the id of a share of the device, "" for all of it.
	Share string `json:"share,omitempty"`
}

// callTimeout is the kubelet's.
const callTimeout = 45 * time.Second

// Prepare has the driver prepare one claim, and checks the answer as the
// kubelet does. Like the kubelet it waits 45 s at most.
func Prepare(ctx context.Context, conn *draconn.Conn, c Claim) ([]Device, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	resp, err := conn.Prepare(ctx, &drav1.NodePrepareResourcesRequest{Claims: []*drav1.Claim{c.wire()}})
	if err != nil {
		return nil, fmt.Errorf("prepare claim %q: %w", c.Name, explain(err))
	}
	answer, ok := resp.Claims[string(c.UID)]
	switch {
	case !ok || answer == nil:
		return nil, fmt.Errorf("prepare claim %q: the driver's answer does not mention it", c.Name)
	case answer.Error != "":
		return nil, fmt.Errorf("prepare claim %q: the driver says: %s", c.Name, answer.Error)
	}
	devices := make([]Device, 0, len(answer.Devices))
	for _, d := range answer.Devices {
		devices = append(devices, Device{Requests: d.RequestNames, Pool: d.PoolName, Device: d.DeviceName, CDI: d.CdiDeviceIds, Share: d.GetShareId()})
	}
	return devices, nil
}

// Unprepare is the reverse of Prepare. A claim that is not prepared is no error
// for most drivers.
func Unprepare(ctx context.Context, conn *draconn.Conn, c Claim) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	resp, err := conn.Unprepare(ctx, &drav1.NodeUnprepareResourcesRequest{Claims: []*drav1.Claim{c.wire()}})
	if err != nil {
		return fmt.Errorf("unprepare claim %q: %w", c.Name, explain(err))
	}
	// All claims need an entry, but it may be nil.
	answer, ok := resp.Claims[string(c.UID)]
	switch {
	case !ok:
		return fmt.Errorf("unprepare claim %q: the driver's answer does not mention it", c.Name)
	case answer != nil && answer.Error != "":
		return fmt.Errorf("unprepare claim %q: the driver says: %s", c.Name, answer.Error)
	}
	return nil
}
