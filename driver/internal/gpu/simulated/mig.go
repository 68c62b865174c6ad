package simulated

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"

	"github.com/dra-lab/dra-lab/driver/api"
	"github.com/dra-lab/dra-lab/driver/internal/statefile"
)

// Files of a GPU in MIG mode, in its directory.
const (
	migName       = "mig.json" // the instances that there are
	migLockName   = "mig.lock"
	migDirName    = "mig"            // a directory for each instance
	migLockWait   = 5 * time.Second  // nobody holds the lock for longer than a write takes
	maxMIGDevices = migComputeSlices // at a time
)

// migState is the content of migName. As the rest of the GPU's state it outlives
// the driver, and two drivers may look at it at a time.
type migState struct {
	Instances []migInstance `json:"instances"`
}

// migInstance is a GPU instance.
type migInstance struct {
	ID      uint32   `json:"id"`
	Profile uint32   `json:"profile"` // migProfile.id
	Start   uint32   `json:"start"`
	Size    uint32   `json:"size"`
	Compute []uint32 `json:"compute,omitempty"` // IDs of its compute instances
}

// site is a directory with processes and reservations: that of a GPU, or of one
// of its instances.
type site string

func (s site) processesDir() string    { return filepath.Join(string(s), api.ProcessesName) }
func (s site) reservationsDir() string { return filepath.Join(string(s), "reservations") }

// create makes the directories of the site.
func (s site) create() error {
	for _, dir := range []string{s.processesDir(), s.reservationsDir()} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	// A container of any user may use its GPU, as with the device files of a
	// real one; the sticky bit keeps users from removing each other's files.
	return os.Chmod(s.processesDir(), 0o777|os.ModeSticky)
}

// usedBytes is what claims have reserved and processes use.
func (s site) usedBytes() uint64 {
	var used uint64
	for _, r := range s.reservations() {
		used += r.Bytes
	}
	for _, p := range s.processes() {
		used += p.Bytes
	}
	return used
}

// partitionSite is where an instance of a profile at a place is. It follows from
// these alone, so that it can be told before there is one.
func (g *board) partitionSite(profile uint32, start int) site {
	return site(filepath.Join(g.dir, migDirName, fmt.Sprintf("%d-at-%d", profile, start)))
}

// instances reads those that there are. A file that cannot be read counts as
// none: what a machine has lost in the middle of writing is gone, as are the
// instances of real hardware when a machine loses its power.
func (g *board) instances() []migInstance {
	if len(g.mig) == 0 {
		return nil
	}
	data, err := readFile(filepath.Join(g.dir, migName))
	if err != nil {
		return nil
	}
	var state migState
	if json.Unmarshal(data, &state) != nil {
		return nil
	}
	// Nothing in the file may name a place that no profile has.
	return slices.DeleteFunc(state.Instances, func(i migInstance) bool {
		p, ok := g.profileByID(i.Profile)
		return !ok || p.size != i.Size || !slices.Contains(p.starts, i.Start)
	})
}

// changeInstances replaces the instances by what change makes of them, unless it
// does not succeed.
func (g *board) changeInstances(change func([]migInstance) ([]migInstance, nvml.Return)) nvml.Return {
	if len(g.mig) == 0 {
		return nvml.ERROR_NOT_SUPPORTED
	}
	if ret := g.reach(); ret != nvml.SUCCESS {
		return ret
	}
	ctx, cancel := context.WithTimeout(context.Background(), migLockWait)
	defer cancel()
	lock, err := statefile.Acquire(ctx, filepath.Join(g.dir, migLockName))
	if err != nil {
		return nvml.ERROR_TIMEOUT
	}
	instances, ret := change(g.instances())
	if ret == nvml.SUCCESS {
		err = g.writeInstances(instances)
	}
	if errors.Join(err, lock.Release()) != nil {
		return nvml.ERROR_OPERATING_SYSTEM
	}
	return ret
}

func (g *board) writeInstances(instances []migInstance) error {
	data, err := json.Marshal(migState{Instances: instances})
	if err != nil {
		return err
	}
	return statefile.Replace(filepath.Join(g.dir, migName), data, 0o644)
}

func (g *board) profileByID(id uint32) (migProfile, bool) {
	i := slices.IndexFunc(g.mig, func(p migProfile) bool { return p.id == id })
	if i < 0 {
		return migProfile{}, false
	}
	return g.mig[i], true
}

// GetMigMode is what the inventory says, now and after the next reset. A GPU
// that knows MIG mode has it disabled, another one does not support it.
func (g *board) GetMigMode() (current, pending int, ret nvml.Return) {
	switch {
	case len(g.mig) > 0:
		return nvml.DEVICE_MIG_ENABLE, nvml.DEVICE_MIG_ENABLE, g.reach()
	case len(g.profile.config.MIGProfiles.GpuInstanceProfiles) > 0:
		return nvml.DEVICE_MIG_DISABLE, nvml.DEVICE_MIG_DISABLE, g.reach()
	}
	return 0, 0, nvml.ERROR_NOT_SUPPORTED
}

// SetMigMode changes nothing: the mode is the inventory's.
func (g *board) SetMigMode(mode int) (activation, ret nvml.Return) {
	if current, _, ret := g.GetMigMode(); ret != nvml.SUCCESS || current == mode {
		return nvml.SUCCESS, ret
	}
	return nvml.SUCCESS, nvml.ERROR_NO_PERMISSION
}

// GetGpuInstanceProfileInfo is for one of nvml.GPU_INSTANCE_PROFILE_...
func (g *board) GetGpuInstanceProfileInfo(kind int) (nvml.GpuInstanceProfileInfo, nvml.Return) {
	if kind < 0 || kind >= nvml.GPU_INSTANCE_PROFILE_COUNT {
		return nvml.GpuInstanceProfileInfo{}, nvml.ERROR_INVALID_ARGUMENT
	}
	i := slices.IndexFunc(g.mig, func(p migProfile) bool { return p.kind == kind })
	if i < 0 {
		return nvml.GpuInstanceProfileInfo{}, nvml.ERROR_NOT_SUPPORTED
	}
	return g.mig[i].info(), g.reach()
}

// GetGpuInstancePossiblePlacements are those of a profile, free or not.
func (g *board) GetGpuInstancePossiblePlacements(info *nvml.GpuInstanceProfileInfo) ([]nvml.GpuInstancePlacement, nvml.Return) {
	p, ok := g.profileByID(info.Id)
	if !ok {
		return nil, nvml.ERROR_NOT_SUPPORTED
	}
	return p.placements(), g.reach()
}

// GetGpuInstanceRemainingCapacity is how many more of a profile fit.
func (g *board) GetGpuInstanceRemainingCapacity(info *nvml.GpuInstanceProfileInfo) (int, nvml.Return) {
	p, ok := g.profileByID(info.Id)
	if !ok {
		return 0, nvml.ERROR_NOT_SUPPORTED
	}
	instances, count := g.instances(), 0
	for _, start := range p.starts {
		if g.fits(instances, p, start) {
			instances = append(instances, migInstance{Profile: p.id, Start: start, Size: p.size})
			count++
		}
	}
	return count, g.reach()
}

// CreateGpuInstance makes one at the first place that is free.
func (g *board) CreateGpuInstance(info *nvml.GpuInstanceProfileInfo) (nvml.GpuInstance, nvml.Return) {
	p, ok := g.profileByID(info.Id)
	if !ok {
		return nil, nvml.ERROR_NOT_SUPPORTED
	}
	for _, placement := range p.placements() {
		made, ret := g.CreateGpuInstanceWithPlacement(info, &placement)
		if ret != nvml.ERROR_INSUFFICIENT_RESOURCES {
			return made, ret
		}
	}
	return nil, nvml.ERROR_INSUFFICIENT_RESOURCES
}

// CreateGpuInstanceWithPlacement makes one at a place.
func (g *board) CreateGpuInstanceWithPlacement(info *nvml.GpuInstanceProfileInfo, at *nvml.GpuInstancePlacement) (nvml.GpuInstance, nvml.Return) {
	p, ok := g.profileByID(info.Id)
	switch {
	case !ok:
		return nil, nvml.ERROR_NOT_SUPPORTED
	case at.Size != p.size || !slices.Contains(p.starts, at.Start):
		return nil, nvml.ERROR_INVALID_ARGUMENT
	}
	made := migInstance{Profile: p.id, Start: at.Start, Size: at.Size}
	ret := g.changeInstances(func(all []migInstance) ([]migInstance, nvml.Return) {
		// On the whole of a GPU in MIG mode nothing can run. Here a claim may
		// have it, and then there is no place for an instance.
		if !g.fits(all, p, at.Start) || len(g.site().processes()) > 0 {
			return nil, nvml.ERROR_INSUFFICIENT_RESOURCES
		}
		made.ID = 1
		for slices.ContainsFunc(all, func(i migInstance) bool { return i.ID == made.ID }) {
			made.ID++
		}
		return append(all, made), nvml.SUCCESS
	})
	if ret != nvml.SUCCESS {
		return nil, ret
	}
	return &gpuInstance{board: g, profile: p, id: made.ID, start: made.Start}, nvml.SUCCESS
}

// fits says whether there is room for one more.
func (g *board) fits(all []migInstance, p migProfile, start uint32) bool {
	slicesUsed, same := p.slices, uint32(0)
	for _, i := range all {
		if i.Start < start+p.size && start < i.Start+i.Size {
			return false
		}
		if i.Profile == p.id {
			same++
		}
		other, _ := g.profileByID(i.Profile)
		slicesUsed += other.slices
	}
	return same < p.instances && slicesUsed <= migComputeSlices && start+p.size <= migMemorySlices
}

// GetGpuInstances are those of a profile.
func (g *board) GetGpuInstances(info *nvml.GpuInstanceProfileInfo) ([]nvml.GpuInstance, nvml.Return) {
	p, ok := g.profileByID(info.Id)
	if !ok {
		return nil, nvml.ERROR_NOT_SUPPORTED
	}
	var found []nvml.GpuInstance
	for _, i := range g.instances() {
		if i.Profile == p.id {
			found = append(found, &gpuInstance{board: g, profile: p, id: i.ID, start: i.Start})
		}
	}
	return found, g.reach()
}

// GetGpuInstanceById finds one.
func (g *board) GetGpuInstanceById(id int) (nvml.GpuInstance, nvml.Return) {
	for _, i := range g.instances() {
		if int(i.ID) == id {
			p, _ := g.profileByID(i.Profile)
			return &gpuInstance{board: g, profile: p, id: i.ID, start: i.Start}, g.reach()
		}
	}
	return nil, nvml.ERROR_NOT_FOUND
}

// GetMaxMigDeviceCount is how many there can be at a time.
func (g *board) GetMaxMigDeviceCount() (int, nvml.Return) {
	if len(g.mig) == 0 {
		return 0, g.reach()
	}
	return maxMIGDevices, g.reach()
}

// GetMigDeviceHandleByIndex gives the devices in the order of their instances'
// IDs. An instance without a compute instance is not one.
func (g *board) GetMigDeviceHandleByIndex(index int) (nvml.Device, nvml.Return) {
	if index < 0 || index >= maxMIGDevices {
		return nil, nvml.ERROR_INVALID_ARGUMENT
	}
	if ret := g.reach(); ret != nvml.SUCCESS {
		return nil, ret
	}
	all := slices.DeleteFunc(g.instances(), func(i migInstance) bool { return len(i.Compute) == 0 })
	slices.SortFunc(all, func(a, b migInstance) int { return int(a.ID) - int(b.ID) })
	if index >= len(all) {
		return nil, nvml.ERROR_NOT_FOUND
	}
	p, _ := g.profileByID(all[index].Profile)
	return &migDevice{board: g, profile: p, instance: all[index]}, nvml.SUCCESS
}

// gpuInstance is the handle of one. As one of NVML it may be of something that
// is no longer there.
type gpuInstance struct {
	mock.GpuInstance // whatever the driver does not call
	board            *board
	profile          migProfile
	id, start        uint32
}

// find gives the state of the instance. It is gone when another one took its
// place.
func (i *gpuInstance) find(all []migInstance) int {
	return slices.IndexFunc(all, func(s migInstance) bool {
		return s.ID == i.id && s.Profile == i.profile.id && s.Start == i.start
	})
}

// GetInfo says where the instance is.
func (i *gpuInstance) GetInfo() (nvml.GpuInstanceInfo, nvml.Return) {
	return nvml.GpuInstanceInfo{
		Device: i.board, Id: i.id, ProfileId: i.profile.id,
		Placement: nvml.GpuInstancePlacement{Start: i.start, Size: i.profile.size},
	}, i.board.reach()
}

// GetComputeInstanceProfileInfo knows the one that has all of the instance.
// Real hardware can cut an instance once more.
func (i *gpuInstance) GetComputeInstanceProfileInfo(kind, engine int) (nvml.ComputeInstanceProfileInfo, nvml.Return) {
	if kind < 0 || kind >= nvml.COMPUTE_INSTANCE_PROFILE_COUNT {
		return nvml.ComputeInstanceProfileInfo{}, nvml.ERROR_INVALID_ARGUMENT
	}
	if kind != i.profile.computeKind || engine != nvml.COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED {
		return nvml.ComputeInstanceProfileInfo{}, nvml.ERROR_NOT_SUPPORTED
	}
	return i.profile.computeInfo(), i.board.reach()
}

// CreateComputeInstance makes the instance a device.
func (i *gpuInstance) CreateComputeInstance(info *nvml.ComputeInstanceProfileInfo) (nvml.ComputeInstance, nvml.Return) {
	if info.Id != i.profile.computeID {
		return nil, nvml.ERROR_NOT_SUPPORTED
	}
	ret := i.board.changeInstances(func(all []migInstance) ([]migInstance, nvml.Return) {
		at := i.find(all)
		switch {
		case at < 0:
			return nil, nvml.ERROR_INVALID_ARGUMENT
		case len(all[at].Compute) > 0:
			return nil, nvml.ERROR_INSUFFICIENT_RESOURCES
		}
		// Before it is written, so that every device has its directories: whoever
		// died while destroying the instance has removed them.
		if err := i.site().create(); err != nil {
			return nil, nvml.ERROR_OPERATING_SYSTEM
		}
		all[at].Compute = []uint32{0}
		return all, nvml.SUCCESS
	})
	if ret != nvml.SUCCESS {
		return nil, ret
	}
	return &computeInstance{of: i, id: 0}, nvml.SUCCESS
}

// GetComputeInstances are those of a profile.
func (i *gpuInstance) GetComputeInstances(info *nvml.ComputeInstanceProfileInfo) ([]nvml.ComputeInstance, nvml.Return) {
	if info.Id != i.profile.computeID {
		return nil, nvml.ERROR_NOT_SUPPORTED
	}
	all := i.board.instances()
	at := i.find(all)
	if at < 0 {
		return nil, nvml.ERROR_INVALID_ARGUMENT
	}
	var found []nvml.ComputeInstance
	for _, id := range all[at].Compute {
		found = append(found, &computeInstance{of: i, id: id})
	}
	return found, i.board.reach()
}

// Destroy needs its compute instances to be destroyed before.
func (i *gpuInstance) Destroy() nvml.Return {
	return i.board.changeInstances(func(all []migInstance) ([]migInstance, nvml.Return) {
		at := i.find(all)
		switch {
		case at < 0:
			return nil, nvml.ERROR_INVALID_ARGUMENT
		case len(all[at].Compute) > 0:
			return nil, nvml.ERROR_IN_USE
		}
		// What claims have reserved goes with it.
		if err := os.RemoveAll(string(i.site())); err != nil {
			return nil, nvml.ERROR_OPERATING_SYSTEM
		}
		return slices.Delete(all, at, at+1), nvml.SUCCESS
	})
}

func (i *gpuInstance) site() site { return i.board.partitionSite(i.profile.id, int(i.start)) }

// computeInstance is the handle of one.
type computeInstance struct {
	mock.ComputeInstance // whatever the driver does not call
	of                   *gpuInstance
	id                   uint32
}

// GetInfo says whose part it is.
func (c *computeInstance) GetInfo() (nvml.ComputeInstanceInfo, nvml.Return) {
	return nvml.ComputeInstanceInfo{
		Device: c.of.board, GpuInstance: c.of, Id: c.id, ProfileId: c.of.profile.computeID,
		Placement: nvml.ComputeInstancePlacement{Start: 0, Size: c.of.profile.slices},
	}, c.of.board.reach()
}

// Destroy is refused while processes run.
func (c *computeInstance) Destroy() nvml.Return {
	return c.of.board.changeInstances(func(all []migInstance) ([]migInstance, nvml.Return) {
		at := c.of.find(all)
		switch {
		case at < 0 || !slices.Contains(all[at].Compute, c.id):
			return nil, nvml.ERROR_INVALID_ARGUMENT
		case len(c.of.site().processes()) > 0:
			return nil, nvml.ERROR_IN_USE
		}
		all[at].Compute = slices.DeleteFunc(slices.Clone(all[at].Compute), func(id uint32) bool { return id == c.id })
		return all, nvml.SUCCESS
	})
}

// migDevice is what programs see of a GPU in MIG mode: a compute instance that
// has all of its GPU instance.
type migDevice struct {
	mock.Device // whatever the driver does not call
	board       *board
	profile     migProfile
	instance    migInstance
}

// IsMigDeviceHandle is true.
func (d *migDevice) IsMigDeviceHandle() (bool, nvml.Return) { return true, nvml.SUCCESS }

// GetDeviceHandleFromMigDeviceHandle gives the GPU.
func (d *migDevice) GetDeviceHandleFromMigDeviceHandle() (nvml.Device, nvml.Return) {
	return d.board, nvml.SUCCESS
}

// GetUUID follows from the GPU and the instances' IDs, as with NVML: the next
// instance that has these has the same one.
func (d *migDevice) GetUUID() (string, nvml.Return) {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s %d %d", d.board.uuid, d.instance.ID, d.instance.Compute[0]))
	return "MIG-" + formatUUID(sum[:16]), nvml.SUCCESS
}

// GetName is the GPU's, with the profile.
func (d *migDevice) GetName() (string, nvml.Return) {
	return d.board.profile.config.Name + " MIG " + strconv.Itoa(int(d.profile.slices)) + "g", nvml.SUCCESS
}

// GetGpuInstanceId tells which instance it is.
func (d *migDevice) GetGpuInstanceId() (int, nvml.Return) {
	return int(d.instance.ID), nvml.SUCCESS
}

// GetComputeInstanceId tells which part of the instance it is.
func (d *migDevice) GetComputeInstanceId() (int, nvml.Return) {
	return int(d.instance.Compute[0]), nvml.SUCCESS
}

// GetMemoryInfo is of the memory of the instance.
func (d *migDevice) GetMemoryInfo() (nvml.Memory, nvml.Return) {
	if ret := d.board.telemetry(); ret != nvml.SUCCESS {
		return nvml.Memory{}, ret
	}
	total := d.profile.memoryMiB * mib
	used := min(d.site().usedBytes(), total)
	return nvml.Memory{Total: total, Used: used, Free: total - used}, nvml.SUCCESS
}

// GetComputeRunningProcesses lists those of the instance.
func (d *migDevice) GetComputeRunningProcesses() ([]nvml.ProcessInfo, nvml.Return) {
	if ret := d.board.telemetry(); ret != nvml.SUCCESS {
		return nil, ret
	}
	return processInfos(d.site(), d.instance.ID, d.instance.Compute[0]), nvml.SUCCESS
}

func (d *migDevice) site() site {
	return d.board.partitionSite(d.profile.id, int(d.instance.Start))
}

// processInfos are the processes of a site as NVML tells of them.
func processInfos(s site, gpuInstance, computeInstance uint32) []nvml.ProcessInfo {
	var infos []nvml.ProcessInfo
	for _, p := range s.processes() {
		infos = append(infos, nvml.ProcessInfo{
			Pid: uint32(p.PID), UsedGpuMemory: p.Bytes, GpuInstanceId: gpuInstance, ComputeInstanceId: computeInstance,
		})
	}
	return infos
}
