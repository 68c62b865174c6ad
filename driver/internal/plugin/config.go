// Package plugin is the driver as the kubelet sees it. It puts the other
// packages together: it takes claims from the kubelet, devices from the
// hardware, and keeps checkpoint, CDI specs, ResourceSlices and health in step.
//
// It is the only one that knows the kubelet plugin helper. Everything that the
// helper gives (registration, both versions of each gRPC API, fetching claims,
// publishing slices) is left to it.
package plugin

import (
	"context"
	"errors"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/events"

	"github.com/dra-lab/dra-lab/driver/api"
	"github.com/dra-lab/dra-lab/driver/internal/cdi"
	"github.com/dra-lab/dra-lab/driver/internal/device"
	"github.com/dra-lab/dra-lab/driver/internal/fault"
	"github.com/dra-lab/dra-lab/driver/internal/health"
	"github.com/dra-lab/dra-lab/driver/internal/operation"
	"github.com/dra-lab/dra-lab/driver/internal/report"
	"github.com/dra-lab/dra-lab/driver/internal/slots"
)

// Hardware are the GPUs of the node.
type Hardware interface {
	health.Hardware
	// List gives the GPUs by index, always the same ones. Of one with a Problem
	// more may be known after a Read. The caller may change the list.
	List() []device.GPU
	// Usage says what runs on a GPU. errors.ErrUnsupported means that it does
	// not tell; any other error that it cannot be used.
	Usage(index int) (device.Usage, error)
}

// Binder does to a GPU, and to the containers that get it, what a claim needs.
// What that is depends on whether the GPU is real. Every method may be called
// again after it succeeded, or was cut off.
type Binder interface {
	// Bind readies a GPU for a claim, with the settings that it wants.
	Bind(gpu device.GPU, claimUID string, settings device.Settings) error
	// Unbind undoes Bind, settings included. An unknown claim is not an error.
	Unbind(gpu device.GPU, claimUID string) error
	// Bound lists the claims for which a GPU is bound.
	Bound(gpu device.GPU) ([]string, error)
	// Edits is what a container needs to reach the GPU.
	Edits(gpu device.GPU, settings device.Settings) cdi.Edits
}

// Partitions makes partitions of GPUs in MIG mode. Every method may be called
// again after it succeeded, or was cut off.
type Partitions interface {
	// Create makes a partition, unless it is there, and gives its UUID.
	Create(part device.GPU) (uuid string, err error)
	// Destroy undoes Create. It refuses with device.ErrInUse while processes use
	// the partition. One that is not there is not an error.
	Destroy(part device.GPU) error
	// Present lists the partitions of a GPU that exist, whoever made them.
	Present(gpu device.GPU) ([]device.GPU, error)
	// PartitionUsage is as Hardware's Usage.
	PartitionUsage(part device.GPU) (device.Usage, error)
}

// Config is for Open. Node, Client, Hardware and Binder are required.
type Config struct {
	Node     string // also the name of the pool
	Client   kubernetes.Interface
	Hardware Hardware
	Binder   Binder
	// Shared says whether claims may have parts of a GPU's memory. Nil means of
	// none.
	Shared func(device.GPU) bool
	// Partitions is for GPUs in MIG mode. Nil means that they are published as
	// whole ones only, and that nobody touches what partitions they have: so it
	// has to be with real hardware, which this driver never cuts.
	Partitions Partitions
	// Simulated is published with each device.
	Simulated bool
	// PodUID turns on rolling updates: this instance's sockets have names of
	// their own. Empty means that it is alone on the node.
	PodUID types.UID
	// BootID is the machine's, /proc/sys/kernel/random/boot_id.
	BootID string
	// Version of the driver, for the reports.
	Version string
	// PluginDir, RegistrarDir and CDIDir default to those of package api. The
	// first two must exist, and have the same path for the kubelet.
	PluginDir, RegistrarDir, CDIDir string
	// Reports may be nil.
	Reports *report.Reporter
	// Events is told what people who look at the node should see. Nil is
	// allowed.
	Events events.EventRecorder
	// Rules of health; the zero value means the default.
	Rules health.Rules
	// ProbeEvery is how often each GPU is asked; default 5 s.
	ProbeEvery time.Duration
	// ResendEvery is how often the health of every device is sent again,
	// default 10 s; the kubelet forgets it after 30 s.
	ResendEvery time.Duration
	// LeftoverWait is how long unprepare waits for processes to go and memory
	// to come back before it reports that they did not; default 1 s.
	LeftoverWait time.Duration
	// UsageWait is how long a claim waits for a GPU to say what runs on it;
	// default 5 s. One that does not answer can be given back, but not
	// prepared.
	UsageWait time.Duration
	// CollectEvery is how often claims of the checkpoint are looked up in the
	// API; default 30 s. One that is found gone twice is unprepared.
	CollectEvery time.Duration
	// Faults are those that a lab gives this driver; nil where the hardware is
	// real.
	Faults *fault.Faults
	// Operations are what the controller wants done on this node. Nil means that
	// there is no controller.
	Operations operation.Client
	// Reset resets a GPU that nothing uses. Nil means that these GPUs are not
	// reset: on real hardware that ends what others run on the same board, or on
	// GPUs that are linked with it, and no caller here can know of them.
	Reset func(ctx context.Context, gpu device.GPU) error
	// Slots are where network-attached GPUs are plugged in. Nil means that this
	// node takes none.
	Slots *slots.Slots
	// At is called at each point of preparing and unpreparing a claim, after
	// the step of that name is done. It is where tests cut the driver off. Nil
	// in production.
	At func(point Point, claimUID string)
}

func (c Config) withDefaults() (Config, error) {
	switch {
	case c.Node == "":
		return c, errors.New("no node name")
	case c.Client == nil, c.Hardware == nil, c.Binder == nil:
		return c, errors.New("client, hardware and binder are required")
	}
	orDefault(&c.PluginDir, api.PluginDir)
	orDefault(&c.RegistrarDir, api.RegistrarDir)
	orDefault(&c.CDIDir, api.CDIDir)
	orDefault(&c.ProbeEvery, 5*time.Second)
	orDefault(&c.ResendEvery, 10*time.Second)
	orDefault(&c.LeftoverWait, time.Second)
	orDefault(&c.UsageWait, 5*time.Second)
	orDefault(&c.CollectEvery, 30*time.Second)
	return c, nil
}

func orDefault[T comparable](v *T, standard T) {
	var zero T
	if *v == zero {
		*v = standard
	}
}

// Point names a place between two steps of preparing or unpreparing a claim.
type Point string

// The points, in order, and with the names of api.KillSteps. After a crash at any of them the next prepare or
// unprepare of the claim finishes the work.
const (
	PrepareResolved  Point = "prepare/resolved"  // devices known and reachable; nothing changed yet
	PrepareStarted   Point = "prepare/started"   // in the checkpoint, devices held
	PrepareBound     Point = "prepare/bound"     // GPUs ready
	PrepareDescribed Point = "prepare/described" // CDI spec written
	PrepareCompleted Point = "prepare/completed" // in the checkpoint as complete

	UnprepareFound     Point = "unprepare/found"     // entry read; nothing changed yet
	UnprepareHidden    Point = "unprepare/hidden"    // CDI spec gone
	UnprepareUnbound   Point = "unprepare/unbound"   // GPUs given back
	UnprepareVerified  Point = "unprepare/verified"  // looked for what is left behind
	UnprepareForgotten Point = "unprepare/forgotten" // out of the checkpoint
)

// The points that only claims with partitions have, in between.
const (
	PreparePartitioned Point = "prepare/partitioned" // partitions made; before PrepareBound
	UnprepareDissolved Point = "unprepare/dissolved" // partitions destroyed; after UnprepareVerified
)

// Points are all points that every claim has, for tests that visit each.
func Points() []Point {
	return []Point{
		PrepareResolved, PrepareStarted, PrepareBound, PrepareDescribed, PrepareCompleted,
		UnprepareFound, UnprepareHidden, UnprepareUnbound, UnprepareVerified, UnprepareForgotten,
	}
}

// errStopped is the cause with which a driver ends that was asked to.
var errStopped = errors.New("asked to stop")
