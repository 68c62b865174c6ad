package plugin

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"k8s.io/klog/v2"

	"github.com/dra-lab/dra-lab/driver/api"
	"github.com/dra-lab/dra-lab/driver/internal/checkpoint"
	"github.com/dra-lab/dra-lab/driver/internal/claim"
	"github.com/dra-lab/dra-lab/driver/internal/device"
	"github.com/dra-lab/dra-lab/driver/internal/statefile"
)

// Partitions of a GPU are made and destroyed under the lock of the GPU, by
// whichever driver on the node. The checkpoint says whose they are: one that is
// looked up there under the lock and belongs to no claim belongs to nobody, and
// may go. A claim is in the checkpoint before its partition is made, and until
// after it is destroyed.

// byName are GPUs and their partitions by name.
func byName(gpus []device.GPU) map[string]device.GPU {
	all := make(map[string]device.GPU, len(gpus))
	for _, gpu := range gpus {
		all[gpu.Name] = gpu
		for _, part := range gpu.Parts() {
			all[part.Name] = part
		}
	}
	return all
}

// whole is the GPU with this index.
func (d *Driver) whole(index int) device.GPU { return d.inventory().GPUs[api.DeviceName(index)] }

// lockGPU keeps everybody else from the partitions of a GPU. It may be taken by
// whoever has the lock of a claim, and not the other way round.
func (d *Driver) lockGPU(ctx context.Context, gpu device.GPU) (*statefile.Lock, error) {
	ctx, cancel := context.WithTimeout(ctx, claimTimeout)
	defer cancel()
	return statefile.Acquire(ctx, filepath.Join(d.cfg.PluginDir, locksDir, api.DeviceName(gpu.Index)+".lock"))
}

// usage says what runs on a device.
func (d *Driver) usage(gpu device.GPU) (device.Usage, error) {
	if gpu.Partition != nil {
		return d.cfg.Partitions.PartitionUsage(gpu)
	}
	return d.cfg.Hardware.Usage(gpu.Index)
}

// cut makes the partitions that a claim was given; each of them has its own UUID
// in assigned from then on. It gives the memory in use on those that nobody has
// used yet, by name; with fresh that are all.
//
// A claim that has a whole GPU in MIG mode finds it in one piece. What that
// means on real hardware, which knows no whole in MIG mode (the mode disabled, or
// the largest instance made), is left to whoever lets this driver cut real GPUs.
func (d *Driver) cut(ctx context.Context, assigned []claim.Assignment, fresh bool) (baselines map[string]uint64, err error) {
	baselines = map[string]uint64{}
	for i := range assigned {
		a := &assigned[i]
		if a.Monitor || len(d.whole(a.GPU.Index).Partitions) == 0 {
			continue
		}
		uuid, bytes, err := d.cutOne(ctx, a.GPU, fresh)
		if err != nil {
			return nil, err
		}
		if a.GPU.Partition == nil {
			continue
		}
		a.GPU.UUID = uuid
		if bytes != nil {
			baselines[a.GPU.Name] = *bytes
		}
	}
	return baselines, nil
}

// cutOne makes room for a device and, if it is a partition, makes it.
func (d *Driver) cutOne(ctx context.Context, gpu device.GPU, fresh bool) (uuid string, baseline *uint64, err error) {
	lock, err := d.lockGPU(ctx, gpu)
	if err != nil {
		return "", nil, err
	}
	defer func() { err = errors.Join(err, lock.Release()) }()
	present, err := d.cfg.Partitions.Present(d.whole(gpu.Index))
	if err != nil {
		return "", nil, fmt.Errorf("device %q: %w", gpu.Name, err)
	}
	for _, other := range present {
		// Nobody else holds what overlaps with the device, or the checkpoint
		// would have refused it.
		if other.Name == gpu.Name || !other.Overlaps(gpu) {
			continue
		}
		if err := d.cfg.Partitions.Destroy(other); err != nil {
			return "", nil, fmt.Errorf("device %q: make room: %w", gpu.Name, err)
		}
	}
	if gpu.Partition == nil {
		return "", nil, nil
	}
	if uuid, err = d.cfg.Partitions.Create(gpu); err != nil {
		return "", nil, fmt.Errorf("device %q: %w", gpu.Name, err)
	}
	if !fresh {
		return uuid, nil, nil
	}
	// One that was there already may have what an interrupted preparation has
	// bound, or a claim before it.
	bound, err := d.cfg.Binder.Bound(gpu)
	if err != nil {
		return "", nil, err
	}
	for _, uid := range bound {
		if err := d.cfg.Binder.Unbind(gpu, uid); err != nil {
			return "", nil, err
		}
	}
	usage, err := d.usage(gpu)
	switch {
	case errors.Is(err, errors.ErrUnsupported):
		return uuid, nil, nil
	case err != nil:
		return "", nil, fmt.Errorf("device %q: %w", gpu.Name, err)
	}
	return uuid, &usage.UsedBytes, nil
}

// destroy destroys a partition of which the caller knows that no other claim
// holds it.
func (d *Driver) destroy(ctx context.Context, part device.GPU) (err error) {
	lock, err := d.lockGPU(ctx, part)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lock.Release()) }()
	return d.cfg.Partitions.Destroy(part)
}

// dissolve destroys the partitions of a claim. With a partition goes what was
// left in its memory; one that stays is left behind itself. It gives what is left
// of left, and what is new.
func (d *Driver) dissolve(ctx context.Context, entry checkpoint.Entry, left []leftover) (all, added []leftover) {
	for _, dev := range entry.Devices {
		gpu, ok := d.inventory().GPUs[dev.Name]
		if !ok || dev.Partition == nil || dev.Monitor {
			continue
		}
		known := slices.IndexFunc(left, func(l leftover) bool { return l.device.Name == dev.Name })
		err := d.destroy(ctx, gpu)
		if err != nil {
			if known < 0 {
				// A GPU that is lost keeps no claim from ending.
				l := leftover{device: dev, what: api.LeakPartition, words: fmt.Sprintf("%s: %v", dev.Name, err)}
				if errors.Is(err, device.ErrInUse) {
					l.what = api.LeakProcesses
				}
				added = append(added, l)
			}
			continue
		}
		if known >= 0 {
			left = slices.Delete(left, known, known+1)
		}
	}
	return slices.Concat(left, added), added
}

// partitionNames joins the names of the partitions of a claim, "" if it has none.
func partitionNames(e checkpoint.Entry) string {
	var names []string
	for _, dev := range e.Devices {
		if dev.Partition != nil && !dev.Monitor {
			names = append(names, dev.Name)
		}
	}
	return strings.Join(names, ",")
}

// dissolved puts into words what became of the partitions of a claim.
func dissolved(parts string, left []leftover) string {
	for _, l := range left {
		if l.device.Partition != nil {
			return fmt.Sprintf("partitions %s destroyed, but not %s", parts, l.device.Name)
		}
	}
	return "partitions " + parts + " destroyed"
}

// sweepPartitions destroys the partitions that belong to no claim. What cannot be
// destroyed, because it is in use or its GPU is lost, is told and stays: whoever
// is given its place tries again.
func (d *Driver) sweepPartitions(ctx context.Context) error {
	for _, gpu := range d.devices.Load().gpus {
		if len(gpu.Partitions) == 0 {
			continue
		}
		if err := d.sweepPartitionsOf(ctx, gpu); err != nil {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			d.background(ctx, "restore", fmt.Errorf("sweep partitions of %s: %w", gpu.Name, err))
		}
	}
	return nil
}

func (d *Driver) sweepPartitionsOf(ctx context.Context, gpu device.GPU) (err error) {
	lock, err := d.lockGPU(ctx, gpu)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lock.Release()) }()
	present, err := d.cfg.Partitions.Present(gpu)
	if err != nil || len(present) == 0 {
		return err
	}
	held, err := d.held(ctx)
	if err != nil {
		return err
	}
	for _, part := range present {
		if held[part.UUID] {
			continue
		}
		if err := d.cfg.Partitions.Destroy(part); err != nil {
			d.background(ctx, "restore", fmt.Errorf("partition without a claim: %w", err))
			continue
		}
		klog.FromContext(ctx).Info("Destroyed partition that belongs to no claim", "device", part.Name)
		d.report(api.Report{Step: api.StepSwept, Device: part.Name, Detail: "partition without a claim"})
	}
	return nil
}

// cleanPartition destroys a partition that was left behind, unless a claim has it
// again, and says whether it is gone.
func (d *Driver) cleanPartition(ctx context.Context, part device.GPU) bool {
	lock, err := d.lockGPU(ctx, part)
	if err != nil {
		return false
	}
	held, err := d.held(ctx)
	gone := err == nil && !held[part.UUID] && d.cfg.Partitions.Destroy(part) == nil
	return errors.Join(err, lock.Release()) == nil && gone
}
