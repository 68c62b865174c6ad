package plugin

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"github.com/dra-lab/dra-lab/driver/api"
	"github.com/dra-lab/dra-lab/driver/internal/cdi"
	"github.com/dra-lab/dra-lab/driver/internal/checkpoint"
	"github.com/dra-lab/dra-lab/driver/internal/claim"
	"github.com/dra-lab/dra-lab/driver/internal/fault"
	"github.com/dra-lab/dra-lab/driver/internal/statefile"
)

// parallelClaims is how many claims of one call are worked on at a time. Their
// changes to the checkpoint are written together.
const parallelClaims = 8

// locksDir is where claims have their locks, in PluginDir; locks is how many
// there are.
const (
	locksDir = "locks"
	locks    = 64
	// claimTimeout bounds the wait for a lock where no kubelet does, which
	// gives up after 45 s.
	claimTimeout = time.Minute
)

// work is what is being done for one claim, step by step.
type work struct {
	d         *Driver
	operation string // "prepare" or "unprepare"
	claim     api.Report
	start     time.Time
	last      time.Time
}

func (d *Driver) begin(operation, step string, uid types.UID, namespace, name string) *work {
	now := time.Now()
	w := &work{d: d, operation: operation, start: now, last: now, claim: api.Report{
		ClaimUID: string(uid), ClaimNamespace: namespace, ClaimName: name,
	}}
	w.report(step, "", 0, nil)
	return w
}

// done reports that a step is done, in words that read after "claim NAME: ",
// and passes its point.
func (w *work) done(ctx context.Context, p Point, words string) {
	now := time.Now()
	took := now.Sub(w.last)
	w.last = now
	w.d.metrics.Step(w.operation, strings.TrimPrefix(string(p), w.operation+"/"), took)
	w.report(w.operation+"-step", words, took, nil)
	if w.d.cfg.At != nil {
		w.d.cfg.At(p, w.claim.ClaimUID)
	}
	// Here a fault kills, or does nothing.
	_ = w.d.cfg.Faults.Pass(ctx, fault.Place(p))
}

func (w *work) report(step, detail string, took time.Duration, err error) {
	r := w.claim
	r.Step, r.Detail, r.Duration = step, detail, took
	if err != nil {
		r.Err = err.Error()
	}
	w.d.report(r)
}

// finish reports the outcome of the whole.
func (w *work) finish(done, failed string, err error) {
	took := time.Since(w.start)
	if err != nil {
		w.report(failed, "", took, err)
		return
	}
	w.report(done, "", took, nil)
}

// lock keeps everybody else, in this process and in others, away from a claim.
// Claims share a fixed number of locks: a file for each claim would have to be
// made and removed, which takes longer than waiting for another claim now and
// then.
func (d *Driver) lock(ctx context.Context, uid types.UID) (*statefile.Lock, error) {
	ctx, cancel := context.WithTimeout(ctx, claimTimeout)
	defer cancel()
	h := fnv.New32a()
	h.Write([]byte(uid))
	return statefile.Acquire(ctx, filepath.Join(d.cfg.PluginDir, locksDir, fmt.Sprintf("%02d.lock", h.Sum32()%locks)))
}

// PrepareResourceClaims readies the devices of claims that a Pod needs. Each
// claim succeeds or fails by itself.
func (d *Driver) PrepareResourceClaims(ctx context.Context, claims []*resourceapi.ResourceClaim) (map[types.UID]kubeletplugin.PrepareResult, error) {
	results := make(map[types.UID]kubeletplugin.PrepareResult, len(claims))
	var mu sync.Mutex
	var group errgroup.Group
	group.SetLimit(parallelClaims)
	for _, c := range claims {
		group.Go(func() error {
			end := d.metrics.Begin("prepare")
			w := d.begin("prepare", api.StepPrepareStarted, c.UID, c.Namespace, c.Name)
			devices, err := d.prepare(ctx, c, w)
			w.finish(api.StepPrepared, api.StepPrepareFailed, err)
			end(err)
			logger := klog.FromContext(ctx)
			if err != nil {
				logger.Error(err, "Prepare claim", "claim", klog.KObj(c), "uid", c.UID)
			} else {
				logger.V(2).Info("Prepared claim", "claim", klog.KObj(c), "uid", c.UID, "devices", w.claim.Device)
			}
			mu.Lock()
			defer mu.Unlock()
			results[c.UID] = kubeletplugin.PrepareResult{Devices: devices, Err: err}
			return nil
		})
	}
	// Goroutines return no error: each has its place in results.
	_ = group.Wait()
	return results, nil
}

func (d *Driver) prepare(ctx context.Context, c *resourceapi.ResourceClaim, w *work) (_ []kubeletplugin.Device, err error) {
	if err := d.cfg.Faults.Pass(ctx, fault.Prepare); err != nil {
		return nil, err
	}
	assigned, err := claim.Resolve(c, d.inventory())
	if err != nil {
		return nil, err
	}
	if len(assigned) == 0 {
		return nil, nil
	}
	w.claim.Device = names(assigned)
	lock, err := d.lock(ctx, c.UID)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, lock.Release()) }()

	want, err := d.look(c, assigned)
	if err != nil {
		return nil, err
	}
	w.done(ctx, PrepareResolved, "devices "+w.claim.Device+" verified")

	entry, err := d.store.Start(ctx, want)
	if err != nil {
		return nil, err
	}
	again := entry.Phase == checkpoint.Completed
	if again {
		w.done(ctx, PrepareStarted, "checkpoint entry found: it was prepared already")
	} else {
		w.done(ctx, PrepareStarted, "checkpoint entry written")
	}
	defer func() {
		if err != nil && !again {
			err = errors.Join(err, d.rollBack(ctx, c.UID, assigned))
		}
	}()

	baselines, err := d.cut(ctx, assigned, !again)
	if err != nil {
		return nil, err
	}
	if parts := partitionNames(entry); parts != "" {
		w.done(ctx, PreparePartitioned, "partitions "+parts+" made")
	}
	for _, a := range assigned {
		if a.Monitor {
			continue
		}
		if err := d.cfg.Binder.Bind(a.GPU, string(c.UID), a.Settings); err != nil {
			return nil, err
		}
	}
	w.done(ctx, PrepareBound, d.bound(assigned))

	// Also when it was prepared before: the directory may have been lost.
	if err := d.describe(ctx, string(c.UID), assigned); err != nil {
		return nil, err
	}
	w.done(ctx, PrepareDescribed, "CDI spec written")

	if !again {
		if err := d.store.Complete(ctx, string(c.UID), baselines); err != nil {
			return nil, err
		}
	}
	w.done(ctx, PrepareCompleted, "checkpoint entry completed")
	d.askAbout(assigned)
	return cdiDevices(string(c.UID), assigned), nil
}

// look checks that the devices are there and remembers how they are before
// anything is done to them.
func (d *Driver) look(c *resourceapi.ResourceClaim, assigned []claim.Assignment) (checkpoint.Entry, error) {
	entry := checkpoint.Entry{UID: string(c.UID), Namespace: c.Namespace, Name: c.Name}
	for _, a := range assigned {
		if err := usable(a.GPU); err != nil {
			return checkpoint.Entry{}, err
		}
		dev := checkpoint.Device{Request: a.Request, Pool: a.Pool, Name: a.GPU.Name, UUID: a.GPU.UUID, Monitor: a.Monitor, Share: a.Share, Settings: a.Settings}
		if a.Share != "" {
			dev.MemoryBytes = a.GPU.MemoryBytes
		}
		if p := a.GPU.Partition; p != nil {
			// There is nothing to look at yet. Whether the GPU is there shows when
			// it is cut.
			dev.Partition = &checkpoint.Partition{Parent: p.Parent, Start: p.Start, Size: p.Size}
			entry.Devices = append(entry.Devices, dev)
			continue
		}
		usage, err := d.cfg.Hardware.Usage(a.GPU.Index)
		switch {
		case err == nil:
			dev.BaselineBytes = &usage.UsedBytes
		case !errors.Is(err, errors.ErrUnsupported):
			return checkpoint.Entry{}, fmt.Errorf("device %q: %w", a.GPU.Name, err)
		}
		entry.Devices = append(entry.Devices, dev)
	}
	return entry, nil
}

// describe writes the CDI spec.
func (d *Driver) describe(ctx context.Context, uid string, assigned []claim.Assignment) error {
	var devices []cdi.Device
	for _, a := range assigned {
		devices = append(devices, cdi.Device{Request: a.Request, Name: a.GPU.Name, UUID: a.GPU.UUID, Edits: d.cfg.Binder.Edits(a.GPU, a.Settings)})
	}
	spec, err := cdi.Spec(uid, devices)
	if err != nil {
		return err
	}
	if err := d.cfg.Faults.Pass(ctx, fault.CDI); err != nil {
		return fmt.Errorf("write CDI spec: %w", err)
	}
	return d.cdi.Write(uid, spec)
}

// rollBack undoes a preparation that failed, so that its devices are free for
// others. What cannot be undone stays in the checkpoint as started: the next
// prepare or unprepare of the claim takes it up.
func (d *Driver) rollBack(ctx context.Context, uid types.UID, assigned []claim.Assignment) error {
	err := d.cdi.Remove(string(uid))
	for _, a := range assigned {
		if !a.Monitor {
			err = errors.Join(err, d.cfg.Binder.Unbind(a.GPU, string(uid)))
		}
		if a.GPU.Partition != nil {
			err = errors.Join(err, d.destroy(ctx, a.GPU))
		}
	}
	if err != nil {
		return fmt.Errorf("roll back: %w", err)
	}
	if err := d.store.Remove(context.WithoutCancel(ctx), string(uid)); err != nil {
		return fmt.Errorf("roll back: %w", err)
	}
	return nil
}

// askAbout has the monitor look at devices whose use has changed.
func (d *Driver) askAbout(assigned []claim.Assignment) {
	for _, a := range assigned {
		d.monitor.Ask(a.GPU.Index)
	}
}

func cdiDevices(uid string, assigned []claim.Assignment) []kubeletplugin.Device {
	var devices []kubeletplugin.Device
	for _, a := range assigned {
		d := kubeletplugin.Device{
			Requests:     []string{a.Request},
			PoolName:     a.Pool,
			DeviceName:   a.GPU.Name,
			CDIDeviceIDs: []string{cdi.QualifiedName(uid, a.GPU.Name)},
		}
		if a.Share != "" {
			d.ShareID = ptr.To(types.UID(a.Share))
		}
		devices = append(devices, d)
	}
	return devices
}

// bound puts into words what was done to the devices of a claim: settings that
// are not the GPU's own are named. Nothing is ever done to real ones.
func (d *Driver) bound(assigned []claim.Assignment) string {
	var words strings.Builder
	var held []claim.Assignment
	for _, a := range assigned {
		if !a.Monitor {
			held = append(held, a)
		}
	}
	if len(held) == 0 {
		return "nothing to initialise: the claim only looks"
	}
	if d.cfg.Simulated {
		fmt.Fprintf(&words, "memory of %s initialised", names(held))
	} else {
		fmt.Fprintf(&words, "%s checked, nothing changed", names(held))
	}
	for _, a := range held {
		switch {
		case a.Settings.Exclusive:
			fmt.Fprintf(&words, ", %s for one process at a time", a.GPU.Name)
		case a.Settings.TimeSlice != "":
			fmt.Fprintf(&words, ", %s with time slice %s", a.GPU.Name, a.Settings.TimeSlice)
		}
		if a.Share != "" {
			fmt.Fprintf(&words, ", %d MiB of %s", a.Settings.MemoryBytes>>20, a.GPU.Name)
		}
	}
	return words.String()
}

func names(assigned []claim.Assignment) string {
	all := make([]string, 0, len(assigned))
	for _, a := range assigned {
		all = append(all, a.GPU.Name)
	}
	return strings.Join(all, ",")
}
