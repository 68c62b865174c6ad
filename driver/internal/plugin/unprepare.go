package plugin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"github.com/dra-lab/dra-lab/driver/api"
	"github.com/dra-lab/dra-lab/driver/internal/checkpoint"
	"github.com/dra-lab/dra-lab/driver/internal/claim"
	"github.com/dra-lab/dra-lab/driver/internal/device"
	"github.com/dra-lab/dra-lab/driver/internal/fault"
)

// Bounds of the look for leftovers.
const (
	leftoverPoll = 20 * time.Millisecond
	// leftoverSlack is how far the memory may stay above its baseline: drivers
	// of real GPUs keep small amounts.
	leftoverSlack = 1 << 20
)

// UnprepareResourceClaims undoes PrepareResourceClaims. A claim that is not
// known is done already. A device that is unhealthy, lost or gone from the node
// holds nothing up.
func (d *Driver) UnprepareResourceClaims(ctx context.Context, claims []kubeletplugin.NamespacedObject) (map[types.UID]error, error) {
	results := make(map[types.UID]error, len(claims))
	var mu sync.Mutex
	var group errgroup.Group
	group.SetLimit(parallelClaims)
	for _, c := range claims {
		group.Go(func() error {
			err := d.unprepareClaim(ctx, c)
			mu.Lock()
			defer mu.Unlock()
			results[c.UID] = err
			return nil
		})
	}
	// Goroutines return no error: each has its place in results.
	_ = group.Wait()
	return results, nil
}

// unprepareClaim unprepares one claim, whoever wants it, and tells of it.
func (d *Driver) unprepareClaim(ctx context.Context, c kubeletplugin.NamespacedObject) error {
	end := d.metrics.Begin("unprepare")
	w := d.begin("unprepare", api.StepUnprepareStart, c.UID, c.Namespace, c.Name)
	err := d.unprepare(ctx, c.UID, w)
	w.finish(api.StepUnprepared, api.StepUnprepareFailed, err)
	end(err)
	logger := klog.FromContext(ctx)
	if err != nil {
		logger.Error(err, "Unprepare claim", "claim", klog.KRef(c.Namespace, c.Name), "uid", c.UID)
	} else {
		logger.V(2).Info("Unprepared claim", "claim", klog.KRef(c.Namespace, c.Name), "uid", c.UID, "devices", w.claim.Device)
	}
	return err
}

func (d *Driver) unprepare(ctx context.Context, uid types.UID, w *work) (err error) {
	if err := claim.ValidateUID(string(uid)); err != nil {
		return err
	}
	if err := d.cfg.Faults.Pass(ctx, fault.Unprepare); err != nil {
		return err
	}
	lock, err := d.lock(ctx, uid)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lock.Release()) }()

	entry, known, err := d.store.Get(ctx, string(uid))
	if err != nil {
		return err
	}
	w.claim.Device = strings.Join(entry.Names(), ",")
	if known {
		w.done(ctx, UnprepareFound, "checkpoint entry found: "+string(entry.Phase))
	} else {
		w.done(ctx, UnprepareFound, "no checkpoint entry: it was not prepared here, or unprepared before")
	}
	// First, so that no container can start with the devices from now on.
	if err := d.cdi.Remove(string(uid)); err != nil {
		return err
	}
	w.done(ctx, UnprepareHidden, "CDI spec removed")
	if !known {
		return nil
	}
	for _, dev := range entry.Devices {
		gpu, ok := d.inventory().GPUs[dev.Name]
		if !ok || dev.Monitor {
			continue
		}
		if err := d.cfg.Binder.Unbind(gpu, string(uid)); err != nil {
			return err
		}
	}
	if d.cfg.Simulated {
		w.done(ctx, UnprepareUnbound, "memory of "+w.claim.Device+" given back")
	} else {
		w.done(ctx, UnprepareUnbound, "nothing to undo on "+w.claim.Device)
	}

	left := d.leftovers(ctx, entry)
	for _, l := range left {
		// Reported, not killed: the process IDs that a GPU tells are of
		// another namespace, and may by now belong to somebody else.
		w.report(api.StepLeftover, l.words, 0, nil)
	}
	w.done(ctx, UnprepareVerified, d.verdict(ctx, entry, left))
	if parts := partitionNames(entry); parts != "" {
		var added []leftover
		left, added = d.dissolve(ctx, entry, left)
		for _, l := range added {
			w.report(api.StepLeftover, l.words, 0, nil)
		}
		w.done(ctx, UnprepareDissolved, dissolved(parts, left))
	}
	leaks := make([]checkpoint.Leak, 0, len(left))
	for _, l := range left {
		leaks = append(leaks, l.leak(entry))
	}

	// Last: until here a crash has the kubelet, or the next start, do it again.
	if err := d.store.Remove(ctx, string(uid), leaks...); err != nil {
		return err
	}
	if len(leaks) > 0 {
		signal(d.leaked)
	}
	w.done(ctx, UnprepareForgotten, "checkpoint entry removed")
	for _, dev := range entry.Devices {
		if gpu, ok := d.inventory().GPUs[dev.Name]; ok {
			d.monitor.Ask(gpu.Index)
		}
	}
	return nil
}

// leftovers waits until the devices are as they were before the claim, and
// tells what is still there when the time is up.
func (d *Driver) leftovers(ctx context.Context, entry checkpoint.Entry) []leftover {
	deadline := time.Now().Add(d.cfg.LeftoverWait)
	for {
		var left []leftover
		for _, dev := range entry.Devices {
			if l, ok := d.leftover(ctx, dev, entry.UID); ok {
				left = append(left, l)
			}
		}
		if len(left) == 0 || time.Now().After(deadline) {
			return left
		}
		select {
		case <-ctx.Done():
			return left
		case <-time.After(leftoverPoll):
		}
	}
}

// verdict puts the look for leftovers into words.
func (d *Driver) verdict(ctx context.Context, entry checkpoint.Entry, left []leftover) string {
	var words []string
	for _, l := range left {
		words = append(words, l.words)
	}
	if len(left) > 0 {
		return strings.Join(words, "; ")
	}
	for _, dev := range entry.Devices {
		gpu, ok := d.inventory().GPUs[dev.Name]
		if !ok || dev.Monitor {
			continue
		}
		usage, err := d.usage(gpu)
		if err != nil || dev.BaselineBytes == nil {
			words = append(words, fmt.Sprintf("memory of %s cannot be read", dev.Name))
			continue
		}
		if dev.Share != "" && d.sharedWithOthers(ctx, dev, entry.UID) {
			words = append(words, fmt.Sprintf("a share of %s is back (%d MiB used by others)", dev.Name, usage.UsedBytes>>20))
			continue
		}
		words = append(words, fmt.Sprintf("memory of %s is back to its baseline (%d MiB used)", dev.Name, usage.UsedBytes>>20))
	}
	if len(words) == 0 {
		return "no device to verify"
	}
	return strings.Join(words, ", ")
}

// leftover is what stayed behind on a device.
type leftover struct {
	device checkpoint.Device
	what   string // a value of api.TaintLeaked
	words  string
}

func (l leftover) leak(e checkpoint.Entry) checkpoint.Leak {
	return checkpoint.Leak{
		UUID: l.device.UUID, Name: l.device.Name, Claim: e.Namespace + "/" + e.Name,
		// None: a partition that was not used yet.
		BaselineBytes: ptr.Deref(l.device.BaselineBytes, 0), What: l.what,
	}
}

// leftover says in which way a device is not as it was, if it is not. Of a
// shared device the last claim tells: what others do with their shares cannot be
// told from what stayed behind.
func (d *Driver) leftover(ctx context.Context, dev checkpoint.Device, uid string) (leftover, bool) {
	gpu, ok := d.inventory().GPUs[dev.Name]
	if !ok || dev.Monitor || dev.BaselineBytes == nil {
		return leftover{}, false
	}
	usage, err := d.usage(gpu)
	if err != nil {
		// Lost or silent: its health says so, and nothing can be verified.
		return leftover{}, false
	}
	l, left := compare(dev, usage)
	// Only now: whoever is not in the checkpoint yet had nothing in use before.
	if left && dev.Share != "" && d.sharedWithOthers(ctx, dev, uid) {
		return leftover{}, false
	}
	return l, left
}

// sharedWithOthers says whether other claims hold shares of a device. When in
// doubt, yes: nobody is to be accused of what others do.
func (d *Driver) sharedWithOthers(ctx context.Context, dev checkpoint.Device, uid string) bool {
	entries, err := d.store.List(ctx)
	if err != nil {
		return true
	}
	for _, e := range entries {
		if e.UID != uid && slices.ContainsFunc(e.Devices, func(o checkpoint.Device) bool { return o.UUID == dev.UUID && !o.Monitor }) {
			return true
		}
	}
	return false
}

// compare finds what a device has more than its baseline.
func compare(dev checkpoint.Device, usage device.Usage) (leftover, bool) {
	switch {
	case len(usage.Processes) > 0:
		return leftover{device: dev, what: api.LeakProcesses, words: inUse(dev.Name, usage)}, true
	case usage.UsedBytes > *dev.BaselineBytes+leftoverSlack:
		return leftover{device: dev, what: api.LeakMemory, words: fmt.Sprintf("%s: %d bytes in use, %d before the claim", dev.Name, usage.UsedBytes, *dev.BaselineBytes)}, true
	}
	return leftover{}, false
}

// inUse names the processes that use a device.
func inUse(name string, usage device.Usage) string {
	pids := make([]string, 0, len(usage.Processes))
	for _, p := range usage.Processes {
		pids = append(pids, fmt.Sprint(p.PID))
	}
	return fmt.Sprintf("%s: processes %s still use it", name, strings.Join(pids, ", "))
}
