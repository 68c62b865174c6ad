package plugin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/dra-lab/dra-lab/driver/api"
	"github.com/dra-lab/dra-lab/driver/internal/checkpoint"
	"github.com/dra-lab/dra-lab/driver/internal/claim"
	"github.com/dra-lab/dra-lab/driver/internal/device"
	"github.com/dra-lab/dra-lab/driver/internal/health"
	"github.com/dra-lab/dra-lab/driver/internal/statefile"
)

// restore makes the node agree with the checkpoint. It runs before the kubelet
// can call, but another instance may be at work: every claim is looked at under
// its lock. A claim that cannot be restored is reported and left to the next
// prepare of it: the others' Pods must not wait for it.
func (d *Driver) restore(ctx context.Context) error {
	entries, err := d.store.List(ctx)
	if err != nil {
		return fmt.Errorf("restore claims: %w", err)
	}
	for _, e := range entries {
		if err := d.restoreClaim(ctx, e.UID); err != nil {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			d.background(ctx, "restore", fmt.Errorf("restore claim %s/%s (%s): %w", e.Namespace, e.Name, e.UID, err))
		}
	}
	if err := d.sweep(ctx); err != nil {
		return fmt.Errorf("sweep what belongs to no claim: %w", err)
	}
	if err := d.sweepPartitions(ctx); err != nil {
		return fmt.Errorf("sweep what belongs to no claim: %w", err)
	}
	return nil
}

// restoreClaim does again what a reboot undoes for a complete claim. One that
// was only started waits for the kubelet, which calls again for every Pod that
// is still wanted.
func (d *Driver) restoreClaim(ctx context.Context, uid string) (err error) {
	lock, err := d.lock(ctx, types.UID(uid))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lock.Release()) }()
	entry, ok, err := d.store.Get(ctx, uid)
	if err != nil || !ok || entry.Phase != checkpoint.Completed {
		return err
	}
	assigned, missing := d.assignments(entry)
	if len(missing) > 0 {
		// The claim stays: unprepare will be asked for, and must know it.
		d.background(ctx, "restore", fmt.Errorf("claim %s/%s (%s): devices %v are no longer on this node", entry.Namespace, entry.Name, uid, missing))
	}
	if len(assigned) == 0 {
		return nil
	}
	if _, err := d.cut(ctx, assigned, false); err != nil {
		return err
	}
	for _, a := range assigned {
		if a.Monitor {
			continue
		}
		if err := d.cfg.Binder.Bind(a.GPU, uid, a.Settings); err != nil {
			return err
		}
	}
	if err := d.describe(ctx, uid, assigned); err != nil {
		return err
	}
	if entry.BootID == d.cfg.BootID {
		return nil // nothing about the entry has changed
	}
	return d.store.Complete(ctx, uid, nil)
}

// assignments finds the devices of an entry that are still on the node.
func (d *Driver) assignments(e checkpoint.Entry) (assigned []claim.Assignment, missing []string) {
	for _, dev := range e.Devices {
		gpu, ok := d.inventory().GPUs[dev.Name]
		if !ok || gpu.UUID != dev.UUID {
			missing = append(missing, dev.Name)
			continue
		}
		assigned = append(assigned, claim.Assignment{Request: dev.Request, Pool: dev.Pool, GPU: gpu, Monitor: dev.Monitor, Share: dev.Share, Settings: dev.Settings})
	}
	return assigned, missing
}

// sweep removes CDI specs and bindings of claims that the checkpoint does not
// know.
func (d *Driver) sweep(ctx context.Context) error {
	uids, err := d.cdi.Claims()
	if err != nil {
		return err
	}
	for _, gpu := range d.cfg.Hardware.List() {
		bound, err := d.cfg.Binder.Bound(gpu)
		if err != nil {
			return err
		}
		uids = append(uids, bound...)
	}
	// After the directories: what was there and is not in the checkpoint now
	// belongs to nobody, or to a claim that is being unprepared.
	entries, err := d.store.List(ctx)
	if err != nil {
		return err
	}
	known := make(map[string]bool, len(entries))
	for _, e := range entries {
		known[e.UID] = true
	}
	slices.Sort(uids)
	for _, uid := range slices.Compact(uids) {
		if known[uid] {
			continue
		}
		if err := d.sweepClaim(ctx, uid); err != nil {
			return fmt.Errorf("claim %s: %w", uid, err)
		}
	}
	return nil
}

func (d *Driver) sweepClaim(ctx context.Context, uid string) (err error) {
	if claim.ValidateUID(uid) != nil {
		return nil // not a name that this driver makes
	}
	lock, err := d.lock(ctx, types.UID(uid))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lock.Release()) }()
	if _, ok, err := d.store.Get(ctx, uid); err != nil || ok {
		return err
	}
	if err := d.cdi.Remove(uid); err != nil {
		return err
	}
	for _, gpu := range d.cfg.Hardware.List() {
		if err := d.cfg.Binder.Unbind(gpu, uid); err != nil {
			return err
		}
	}
	klog.FromContext(ctx).Info("Removed what belongs to no claim", "uid", uid)
	d.report(api.Report{Step: api.StepSwept, ClaimUID: uid, Detail: "CDI spec or reservation without a claim"})
	return nil
}

// sweepSockets removes the sockets of a driver's instances that died without
// doing it: the kubelet would try to reach them for ever. A socket on which
// somebody listens is left alone, and those that are this instance's own.
func (d *Driver) sweepSockets(ctx context.Context, driverName, pluginDir string, own ...string) error {
	for _, pattern := range []string{
		filepath.Join(d.cfg.RegistrarDir, driverName+"-*reg.sock"),
		filepath.Join(pluginDir, "dra*.sock"),
		filepath.Join(pluginDir, "dra*.sock"+lostSuffix),
	} {
		paths, err := filepath.Glob(pattern)
		if err != nil {
			return fmt.Errorf("sweep sockets: %w", err)
		}
		for _, path := range paths {
			if slices.Contains(own, path) || listening(ctx, path) {
				continue
			}
			if err := removeSocket(path); err != nil {
				return fmt.Errorf("sweep sockets: %w", err)
			}
			d.report(api.Report{Step: api.StepSwept, Detail: "socket " + filepath.Base(path) + " of a dead instance"})
		}
	}
	return nil
}

// listening says whether somebody answers on a socket. When in doubt, yes.
func listening(ctx context.Context, path string) bool {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "unix", path)
	if err != nil {
		return !errors.Is(err, syscall.ECONNREFUSED)
	}
	_ = conn.Close()
	return true
}

// latchedName is the file in PluginDir with what is wrong with GPUs and is not
// to be forgotten when the driver restarts.
const (
	latchedName    = "health.json"
	latchedVersion = "v1"
)

type latchedDocument struct {
	BootID  string                      `json:"bootID"`
	Latched map[string][]health.Problem `json:"latched"` // by UUID
}

// readLatched gives what was wrong with the GPUs since the machine started. A
// reboot is a recovery: the GPUs are asked anew. A damaged file is no reason
// not to start, since the GPUs are asked anyway, but somebody should know of it:
// damage says so.
func (d *Driver) readLatched() (latched map[string][]health.Problem, damage, err error) {
	var doc latchedDocument
	err = statefile.Read(filepath.Join(d.cfg.PluginDir, latchedName), latchedVersion, &doc)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil, nil, nil
	case errors.Is(err, statefile.ErrCorrupt), errors.Is(err, statefile.ErrVersion):
		return nil, fmt.Errorf("read what was wrong with GPUs before the restart, go on without it: %w", err), nil
	case err != nil:
		return nil, nil, err
	case doc.BootID != d.cfg.BootID:
		return nil, nil, nil
	}
	return doc.Latched, nil, nil
}

// saveTimeout bounds the wait for another instance that saves at the same time.
const saveTimeout = 10 * time.Second

func (d *Driver) saveLatched(latched map[string][]health.Problem) {
	ctx, cancel := context.WithTimeout(context.Background(), saveTimeout)
	defer cancel()
	doc := latchedDocument{BootID: d.cfg.BootID, Latched: latched}
	if err := statefile.Write(ctx, filepath.Join(d.cfg.PluginDir, latchedName), latchedVersion, doc); err != nil {
		d.background(ctx, "health", err)
	}
}

func (d *Driver) onEvent(e device.Event, fatal bool) {
	var name string
	if e.Index >= 0 {
		name = api.DeviceName(e.Index)
	}
	d.metrics.Event(cmp.Or(name, "unknown"), e.Kind.String(), fatal)
	detail := e.Kind.String()
	if e.Code != 0 {
		detail += " " + fmt.Sprint(e.Code)
	}
	if fatal {
		detail += ", fatal"
	}
	d.report(api.Report{Step: api.StepEvent, Device: name, Detail: detail})
}
