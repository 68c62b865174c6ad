package simulated

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/server"

	"github.com/dra-lab/dra-lab/driver/api"
)

// supportedEvents are those that the simulated GPUs can raise.
const supportedEvents = nvml.EventTypeXidCriticalError |
	nvml.EventTypeSingleBitEccError |
	nvml.EventTypeDoubleBitEccError |
	nvml.EventTypeGpuRecoveryAction

// board is one simulated GPU. Safe for concurrent use.
type board struct {
	*server.Device // model and partitions
	profile        profile
	index          int
	uuid           string
	dir            string
	mig            []migProfile // nil when not in MIG mode

	mu     sync.Mutex
	faults []api.Fault                  // as in the file, expired ones included
	on     []api.Fault                  // those that acted when they were last looked at
	calm   chan struct{}                // closed when no call hangs; nil when none may
	action nvml.DeviceGpuRecoveryAction // as last announced
	double uint64                       // uncorrectable memory errors so far
	single uint64
	sets   map[*eventSet]uint64 // with the mask of wanted events
}

func newBoard(p profile, index int, uuid, dir string) *board {
	d := server.NewDeviceFromConfig(p.config, index)
	d.UUID = uuid
	return &board{Device: d, profile: p, index: index, uuid: uuid, dir: dir, sets: map[*eventSet]uint64{}}
}

// plug says in a machine's sysfs where the GPU is: two GPUs share a root complex,
// four a NUMA node.
func (g *board) plug(sysfs string) error {
	domain, bus := g.bus()
	id := strings.ToLower(g.busID()[4:])
	place := filepath.Join("devices", fmt.Sprintf("pci%04x:%02x", domain, (bus-firstBus)/2), id)
	listed := filepath.Join(sysfs, "bus/pci/devices")
	err := errors.Join(os.MkdirAll(filepath.Join(sysfs, place), 0o755), os.MkdirAll(listed, 0o755))
	link := os.Symlink(filepath.Join("../../..", place), filepath.Join(listed, id))
	if !errors.Is(link, fs.ErrExist) {
		err = errors.Join(err, link)
	}
	// Another driver may be reading it.
	node, file := strconv.Itoa(g.index/4%2), filepath.Join(sysfs, place, "numa_node")
	if have, _ := os.ReadFile(file); string(have) != node {
		err = errors.Join(err, os.WriteFile(file, []byte(node), 0o644))
	}
	if err != nil {
		return fmt.Errorf("simulate GPU %d: %w", g.index, err)
	}
	return nil
}

// makeDirs makes the places where the world outside acts on the GPU.
func (g *board) makeDirs() error {
	if err := g.site().create(); err != nil {
		return fmt.Errorf("simulate GPU %d: %w", g.index, err)
	}
	return nil
}

// site is where the GPU is used as a whole.
func (g *board) site() site { return site(g.dir) }

// sites are all places where the GPU is used, and by which instance.
func (g *board) sites() map[site]uint32 {
	all := map[site]uint32{g.site(): wholeGPU}
	for _, i := range g.instances() {
		all[g.partitionSite(i.Profile, int(i.Start))] = i.ID
	}
	return all
}

// fault gives the first fault of a kind that acts now. The caller holds mu.
func (g *board) fault(kind string) (api.Fault, bool) {
	now := time.Now()
	i := slices.IndexFunc(g.faults, func(f api.Fault) bool { return f.Kind == kind && f.On(now) })
	if i < 0 {
		return api.Fault{}, false
	}
	return g.faults[i], true
}

// reach says how every call that touches the GPU ends, once it does.
func (g *board) reach() nvml.Return {
	g.mu.Lock()
	for calm := g.calm; calm != nil; calm = g.calm {
		g.mu.Unlock()
		<-calm
		g.mu.Lock()
	}
	defer g.mu.Unlock()
	if _, lost := g.fault(api.FaultLost); lost {
		return nvml.ERROR_GPU_IS_LOST
	}
	return nvml.SUCCESS
}

// telemetry is reach for calls that a GPU may decline.
func (g *board) telemetry() nvml.Return {
	if ret := g.reach(); ret != nvml.SUCCESS {
		return ret
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if _, unreadable := g.fault(api.FaultUnreadable); unreadable {
		return nvml.ERROR_NOT_SUPPORTED
	}
	return nvml.SUCCESS
}

// GetUUID answers for a lost GPU too: the library knows it since Init.
func (g *board) GetUUID() (string, nvml.Return) { return g.uuid, nvml.SUCCESS }

// GetIndex answers always.
func (g *board) GetIndex() (int, nvml.Return) { return g.index, nvml.SUCCESS }

// GetMinorNumber answers always.
func (g *board) GetMinorNumber() (int, nvml.Return) { return g.index, nvml.SUCCESS }

// GetName answers always.
func (g *board) GetName() (string, nvml.Return) { return g.profile.config.Name, nvml.SUCCESS }

// IsMigDeviceHandle is false: this is a whole GPU.
func (g *board) IsMigDeviceHandle() (bool, nvml.Return) { return false, nvml.SUCCESS }

const firstBus = 0x10

// bus spreads GPUs over buses, and beyond 200 over PCI domains.
func (g *board) bus() (domain, bus uint32) {
	return uint32(g.index / 200), uint32(firstBus + g.index%200)
}

func (g *board) busID() string {
	domain, bus := g.bus()
	return fmt.Sprintf("%08X:%02X:00.0", domain, bus)
}

// GetPciInfo answers always.
func (g *board) GetPciInfo() (nvml.PciInfo, nvml.Return) {
	domain, bus := g.bus()
	info := nvml.PciInfo{Domain: domain, Bus: bus, PciDeviceId: g.profile.config.PciDeviceId}
	for i, c := range []byte(g.busID()) {
		info.BusId[i] = int8(c)
	}
	for i, c := range []byte(g.busID()[4:]) {
		info.BusIdLegacy[i] = int8(c)
	}
	return info, nvml.SUCCESS
}

// GetMemoryInfo counts what the driver library keeps for itself, what claims
// have reserved and what processes use.
func (g *board) GetMemoryInfo() (nvml.Memory, nvml.Return) {
	if ret := g.telemetry(); ret != nvml.SUCCESS {
		return nvml.Memory{}, ret
	}
	total := g.profile.memoryMiB * mib
	used := g.profile.reservedMiB * mib
	for s := range g.sites() {
		used += s.usedBytes()
	}
	g.mu.Lock()
	if f, leaks := g.fault(api.FaultMemoryLeak); leaks {
		used += uint64(f.Code) * mib
	}
	g.mu.Unlock()
	used = min(used, total)
	return nvml.Memory{Total: total, Used: used, Free: total - used}, nvml.SUCCESS
}

// GetMemoryInfo_v2 has the library's own part apart.
func (g *board) GetMemoryInfo_v2() (nvml.Memory_v2, nvml.Return) {
	m, ret := g.GetMemoryInfo()
	reserved := g.profile.reservedMiB * mib
	return nvml.Memory_v2{
		Total: m.Total, Reserved: reserved, Free: m.Free, Used: m.Used - min(m.Used, reserved),
	}, ret
}

// GetComputeMode is what the claim that has the GPU wants.
func (g *board) GetComputeMode() (nvml.ComputeMode, nvml.Return) {
	if slices.ContainsFunc(g.site().reservations(), func(r reservation) bool { return r.Exclusive }) {
		return nvml.COMPUTEMODE_EXCLUSIVE_PROCESS, g.telemetry()
	}
	return nvml.COMPUTEMODE_DEFAULT, g.telemetry()
}

// GetComputeRunningProcesses lists the processes that hold their files.
func (g *board) GetComputeRunningProcesses() ([]nvml.ProcessInfo, nvml.Return) {
	if ret := g.telemetry(); ret != nvml.SUCCESS {
		return nil, ret
	}
	var infos []nvml.ProcessInfo
	for s, instance := range g.sites() {
		compute := instance
		if instance != wholeGPU {
			compute = 0 // an instance has one, with all of it
		}
		infos = append(infos, processInfos(s, instance, compute)...)
	}
	return infos, nvml.SUCCESS
}

// GetGraphicsRunningProcesses lists none.
func (g *board) GetGraphicsRunningProcesses() ([]nvml.ProcessInfo, nvml.Return) {
	return nil, g.telemetry()
}

// busy says whether a process uses the GPU.
func (g *board) busy() bool {
	for s := range g.sites() {
		if len(s.processes()) > 0 {
			return true
		}
	}
	return false
}

// GetTemperature is in degrees Celsius: that of a fault, or warm when busy.
func (g *board) GetTemperature(nvml.TemperatureSensors) (uint32, nvml.Return) {
	if ret := g.telemetry(); ret != nvml.SUCCESS {
		return 0, ret
	}
	g.mu.Lock()
	f, hot := g.fault(api.FaultTemperature)
	g.mu.Unlock()
	switch {
	case hot:
		return uint32(f.Code), nvml.SUCCESS
	case g.busy():
		return 61 + uint32(g.index%4), nvml.SUCCESS
	}
	return 31 + uint32(g.index%4), nvml.SUCCESS
}

// GetTemperatureThreshold is that of the model.
func (g *board) GetTemperatureThreshold(t nvml.TemperatureThresholds) (uint32, nvml.Return) {
	if ret := g.telemetry(); ret != nvml.SUCCESS {
		return 0, ret
	}
	switch t {
	case nvml.TEMPERATURE_THRESHOLD_SLOWDOWN:
		return g.profile.slowdown, nvml.SUCCESS
	case nvml.TEMPERATURE_THRESHOLD_SHUTDOWN:
		return g.profile.slowdown + 5, nvml.SUCCESS
	}
	return 0, nvml.ERROR_NOT_SUPPORTED
}

// GetPowerUsage is in milliwatts.
func (g *board) GetPowerUsage() (uint32, nvml.Return) {
	if ret := g.telemetry(); ret != nvml.SUCCESS {
		return 0, ret
	}
	if g.busy() {
		return g.profile.fullWatts * 850, nvml.SUCCESS
	}
	return g.profile.idleWatts * 1000, nvml.SUCCESS
}

// GetCurrPcieLinkWidth is in lanes.
func (g *board) GetCurrPcieLinkWidth() (int, nvml.Return) {
	if ret := g.telemetry(); ret != nvml.SUCCESS {
		return 0, ret
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if f, narrow := g.fault(api.FaultPCIeWidth); narrow {
		return min(f.Code, g.profile.lanes), nvml.SUCCESS
	}
	return g.profile.lanes, nvml.SUCCESS
}

// GetMaxPcieLinkWidth is in lanes.
func (g *board) GetMaxPcieLinkWidth() (int, nvml.Return) { return g.profile.lanes, g.telemetry() }

// GetCurrPcieLinkGeneration is lower while the GPU idles, as with real ones.
func (g *board) GetCurrPcieLinkGeneration() (int, nvml.Return) {
	ret := g.telemetry()
	if ret == nvml.SUCCESS && !g.busy() {
		return 1, ret
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if f, slow := g.fault(api.FaultPCIeGeneration); slow {
		return min(f.Code, g.profile.generation), ret
	}
	return g.profile.generation, ret
}

// GetCurrentClocksEventReasons says what keeps the clocks down: that nothing
// runs, or the power supply.
func (g *board) GetCurrentClocksEventReasons() (uint64, nvml.Return) {
	ret := g.telemetry()
	reasons := uint64(nvml.ClocksEventReasonGpuIdle)
	if ret == nvml.SUCCESS && g.busy() {
		reasons = 0
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if _, braked := g.fault(api.FaultPower); braked {
		reasons |= nvml.ClocksThrottleReasonHwSlowdown | nvml.ClocksThrottleReasonHwPowerBrakeSlowdown
	}
	return reasons, ret
}

// GetGpuFabricInfo says whether the GPU is in the NVLink fabric, for models that
// have one.
func (g *board) GetGpuFabricInfo() (nvml.GpuFabricInfo, nvml.Return) {
	if ret := g.telemetry(); ret != nvml.SUCCESS {
		return nvml.GpuFabricInfo{}, ret
	}
	if !api.HasFabric(g.profile.name) {
		return nvml.GpuFabricInfo{}, nvml.ERROR_NOT_SUPPORTED
	}
	info := nvml.GpuFabricInfo{State: nvml.GPU_FABRIC_STATE_COMPLETED}
	g.mu.Lock()
	defer g.mu.Unlock()
	if _, out := g.fault(api.FaultFabric); out {
		info.Status = uint32(nvml.ERROR_UNKNOWN)
	}
	return info, nvml.SUCCESS
}

// GetMaxPcieLinkGeneration is that of the model.
func (g *board) GetMaxPcieLinkGeneration() (int, nvml.Return) {
	return g.profile.generation, g.telemetry()
}

// GetPcieReplayCounter stays 0.
func (g *board) GetPcieReplayCounter() (int, nvml.Return) { return 0, g.telemetry() }

// GetEccMode is on.
func (g *board) GetEccMode() (current, pending nvml.EnableState, ret nvml.Return) {
	return nvml.FEATURE_ENABLED, nvml.FEATURE_ENABLED, g.telemetry()
}

// GetTotalEccErrors counts the faults since the GPU was there.
func (g *board) GetTotalEccErrors(kind nvml.MemoryErrorType, _ nvml.EccCounterType) (uint64, nvml.Return) {
	if ret := g.telemetry(); ret != nvml.SUCCESS {
		return 0, ret
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if kind == nvml.MEMORY_ERROR_TYPE_UNCORRECTED {
		return g.double, nvml.SUCCESS
	}
	return g.single, nvml.SUCCESS
}

// GetRemappedRows has none.
func (g *board) GetRemappedRows() (correctable, uncorrectable int, pending, failed bool, ret nvml.Return) {
	return 0, 0, false, false, g.telemetry()
}

// GetUtilizationRates are in percent.
func (g *board) GetUtilizationRates() (nvml.Utilization, nvml.Return) {
	ret := g.telemetry()
	if ret == nvml.SUCCESS && g.busy() {
		return nvml.Utilization{Gpu: 97, Memory: 40}, ret
	}
	return nvml.Utilization{}, ret
}

// GetFieldValues answers the fields that the driver asks for.
func (g *board) GetFieldValues(values []nvml.FieldValue) nvml.Return {
	if ret := g.reach(); ret != nvml.SUCCESS {
		return ret
	}
	ret := g.telemetry()
	g.mu.Lock()
	defer g.mu.Unlock()
	for i := range values {
		v := &values[i]
		v.NvmlReturn = uint32(ret)
		if v.FieldId != nvml.FI_DEV_GET_GPU_RECOVERY_ACTION {
			v.NvmlReturn = uint32(nvml.ERROR_NOT_SUPPORTED)
			continue
		}
		v.ValueType = uint32(nvml.VALUE_TYPE_UNSIGNED_INT)
		binary.NativeEndian.PutUint32(v.Value[:4], uint32(g.recovery(time.Now())))
	}
	return nvml.SUCCESS
}

// recovery is what the GPU wants because of its active faults, the most severe
// first. The caller holds mu.
func (g *board) recovery(now time.Time) nvml.DeviceGpuRecoveryAction {
	action := nvml.GPU_RECOVERY_ACTION_NONE
	for _, f := range g.faults {
		if !f.On(now) {
			continue
		}
		switch f.Kind {
		case api.FaultXID:
			action = max(action, recoveryOf(f.Code))
		case api.FaultECCDouble:
			action = max(action, nvml.GPU_RECOVERY_ACTION_GPU_RESET)
		}
	}
	return action
}

// recoveryOf is what a GPU wants after an XID: nothing when the program was at
// fault, a reboot when the bus has lost it, otherwise a reset.
func recoveryOf(xid int) nvml.DeviceGpuRecoveryAction {
	switch xid {
	case 13, 31, 43, 45, 68, 109:
		return nvml.GPU_RECOVERY_ACTION_NONE
	case 79:
		return nvml.GPU_RECOVERY_ACTION_NODE_REBOOT
	}
	return nvml.GPU_RECOVERY_ACTION_GPU_RESET
}

// GetSupportedEventTypes answers always.
func (g *board) GetSupportedEventTypes() (uint64, nvml.Return) { return supportedEvents, nvml.SUCCESS }

// RegisterEvents has the set told of the events in mask.
func (g *board) RegisterEvents(mask uint64, set nvml.EventSet) nvml.Return {
	s, ok := set.(*eventSet)
	if !ok {
		return nvml.ERROR_INVALID_ARGUMENT
	}
	if mask&^supportedEvents != 0 {
		return nvml.ERROR_NOT_SUPPORTED
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.sets[s] |= mask
	return nvml.SUCCESS
}

func (g *board) unregister(s *eventSet) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.sets, s)
}
