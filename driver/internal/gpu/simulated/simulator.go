// Package simulated is an implementation of NVML's interface without hardware.
// What the hardware would do is decided by files outside the driver, in
// api.HardwareDir: which GPUs there are, what is wrong with them, and who uses
// them. Killing the driver changes nothing about them, as with real GPUs.
//
// go-nvml's mocks give the models and their partitions; what they leave out
// (events, telemetry, processes, memory in use) is here. The mocks record every
// call for good and panic where they have no answer, so everything that the
// driver calls repeatedly is answered without them.
package simulated

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/server"

	"github.com/dra-lab/dra-lab/driver/api"
	"github.com/dra-lab/dra-lab/driver/internal/device"
)

// Versions that the simulated library claims to have.
const (
	driverVersion = "580.95.05"
	nvmlVersion   = "13.580.95.05"
	cudaVersion   = 13000
)

// Config is for New. Node and Dir are required.
type Config struct {
	// Node makes the GPUs' UUIDs: the same name and index, the same UUID.
	Node string
	// Dir is api.HardwareDir, or another directory in tests. It is created.
	Dir string
	// Default is what the node has if there is no api.InventoryName in Dir; the
	// zero value means api.DefaultInventory.
	Default api.Inventory
	// OnError is told what goes wrong in the background, such as a faults file
	// that cannot be read: the faults before stay in force. Nil is allowed.
	OnError func(error)
}

// Simulator has the GPUs of one node. It is an nvml.Interface; in addition it
// does for a claim what on real hardware the driver library would do.
type Simulator struct {
	server.Server
	cfg       Config
	inventory api.Inventory
	gpus      []*board

	mu       sync.Mutex
	inits    int
	watching *watch
}

var _ nvml.Interface = (*Simulator)(nil)

// Shared says whether claims may have parts of a GPU.
func (s *Simulator) Shared(gpu device.GPU) bool { return s.inventory.Shared(gpu.Index) }

// New reads the inventory in cfg.Dir, or takes cfg.Default if there is none, and prepares the directories of its GPUs. It watches nothing until
// Init.
func New(cfg Config) (*Simulator, error) {
	if len(cfg.Default.GPUs) == 0 {
		cfg.Default = api.DefaultInventory()
	}
	inventory, err := readInventory(filepath.Join(cfg.Dir, api.InventoryName), cfg.Default)
	if err != nil {
		return nil, err
	}
	s := &Simulator{cfg: cfg, inventory: inventory}
	for i, name := range inventory.Profiles() {
		p, err := profileOf(name)
		if err != nil {
			return nil, err
		}
		g := newBoard(p, i, uuid(cfg.Node, i), filepath.Join(cfg.Dir, api.DeviceName(i)))
		if inventory.MIG(i) {
			g.mig = migProfiles(name)
		}
		if err := errors.Join(g.makeDirs(), g.plug(s.sysfsDir())); err != nil {
			return nil, err
		}
		s.gpus = append(s.gpus, g)
	}
	return s, nil
}

// Sysfs is what the machine's /sys says of the GPUs: where they are.
func (s *Simulator) Sysfs() fs.ReadLinkFS { return os.DirFS(s.sysfsDir()).(fs.ReadLinkFS) }

func (s *Simulator) sysfsDir() string { return filepath.Join(s.cfg.Dir, "sys") }

func readInventory(path string, standard api.Inventory) (api.Inventory, error) {
	data, err := readFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return standard, nil
	}
	if err != nil {
		return api.Inventory{}, fmt.Errorf("read inventory: %w", err)
	}
	inventory, err := api.ParseInventory(data)
	if err != nil {
		return api.Inventory{}, fmt.Errorf("read inventory %q: %w", path, err)
	}
	return inventory, nil
}

// uuid makes a UUID of version 8, the one whose content is free, from node and
// index. It says nothing about the model: a GPU that is replaced by another
// model in the same slot would have another one on real hardware, but a lab
// that changes profiles wants to compare.
func uuid(node string, index int) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s GPU %s/%d", api.DriverName, node, index))
	return "GPU-" + formatUUID(sum[:16])
}

// formatUUID makes a UUID of version 8 of 16 bytes.
func formatUUID(u []byte) string {
	u[6] = u[6]&0x0f | 0x80
	u[8] = u[8]&0x3f | 0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", u[0:4], u[4:6], u[6:8], u[8:10], u[10:16])
}

// Init reads the faults and begins to watch them. As in NVML, each Init wants a
// Shutdown.
func (s *Simulator) Init() nvml.Return {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.inits == 0 {
		s.watching = startWatch(s.gpus, s.fail)
	}
	s.inits++
	return nvml.SUCCESS
}

// InitWithFlags is Init.
func (s *Simulator) InitWithFlags(uint32) nvml.Return { return s.Init() }

// Shutdown stops watching after the last Init's Shutdown.
func (s *Simulator) Shutdown() nvml.Return {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.inits == 0 {
		return nvml.ERROR_UNINITIALIZED
	}
	if s.inits--; s.inits == 0 {
		s.watching.stop()
		s.watching = nil
	}
	return nvml.SUCCESS
}

func (s *Simulator) fail(err error) {
	if s.cfg.OnError != nil {
		s.cfg.OnError(fmt.Errorf("simulate GPUs: %w", err))
	}
}

// SystemGetDriverVersion answers as the library.
func (s *Simulator) SystemGetDriverVersion() (string, nvml.Return) {
	return driverVersion, nvml.SUCCESS
}

// SystemGetNVMLVersion answers as the library.
func (s *Simulator) SystemGetNVMLVersion() (string, nvml.Return) { return nvmlVersion, nvml.SUCCESS }

// SystemGetCudaDriverVersion answers as the library.
func (s *Simulator) SystemGetCudaDriverVersion() (int, nvml.Return) { return cudaVersion, nvml.SUCCESS }

// SystemGetCudaDriverVersion_v2 answers as the library.
func (s *Simulator) SystemGetCudaDriverVersion_v2() (int, nvml.Return) {
	return cudaVersion, nvml.SUCCESS
}

// DeviceGetCount counts the GPUs, lost ones included.
func (s *Simulator) DeviceGetCount() (int, nvml.Return) { return len(s.gpus), nvml.SUCCESS }

// DeviceGetHandleByIndex gives a GPU, a lost one too: its calls fail.
func (s *Simulator) DeviceGetHandleByIndex(index int) (nvml.Device, nvml.Return) {
	if index < 0 || index >= len(s.gpus) {
		return nil, nvml.ERROR_INVALID_ARGUMENT
	}
	return s.gpus[index], nvml.SUCCESS
}

// DeviceGetHandleByUUID finds a GPU.
func (s *Simulator) DeviceGetHandleByUUID(uuid string) (nvml.Device, nvml.Return) {
	for _, g := range s.gpus {
		if g.uuid == uuid {
			return g, nvml.SUCCESS
		}
	}
	return nil, nvml.ERROR_NOT_FOUND
}

// DeviceGetHandleByPciBusId finds a GPU.
func (s *Simulator) DeviceGetHandleByPciBusId(id string) (nvml.Device, nvml.Return) {
	for _, g := range s.gpus {
		if g.busID() == id {
			return g, nvml.SUCCESS
		}
	}
	return nil, nvml.ERROR_NOT_FOUND
}

// EventSetCreate makes an empty set.
func (s *Simulator) EventSetCreate() (nvml.EventSet, nvml.Return) {
	return newEventSet(s.gpus), nvml.SUCCESS
}

// EventSetWait is the set's Wait.
func (s *Simulator) EventSetWait(set nvml.EventSet, milliseconds uint32) (nvml.EventData, nvml.Return) {
	return set.Wait(milliseconds)
}

// EventSetFree is the set's Free.
func (s *Simulator) EventSetFree(set nvml.EventSet) nvml.Return { return set.Free() }
