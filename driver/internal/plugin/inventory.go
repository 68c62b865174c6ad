package plugin

import (
	"fmt"
	"reflect"

	"github.com/dra-lab/dra-lab/driver/api"
	"github.com/dra-lab/dra-lab/driver/internal/claim"
	"github.com/dra-lab/dra-lab/driver/internal/device"
)

// devices are those of the node as last read. They are replaced as a whole, and
// never changed.
type devices struct {
	gpus      []device.GPU // by index
	inventory claim.Inventory
}

// takeInventory looks at what is known of the GPUs now, and says whether that is
// anything new: a GPU that could not be read may be readable later.
func (d *Driver) takeInventory() (changed bool) {
	gpus := d.cfg.Hardware.List()
	for i := range gpus {
		gpus[i].Shared = d.cfg.Shared != nil && d.cfg.Shared(gpus[i])
		if d.cfg.Partitions == nil {
			gpus[i].Partitions = nil
		}
	}
	if before := d.devices.Load(); before != nil && reflect.DeepEqual(before.gpus, gpus) {
		return false
	}
	d.devices.Store(&devices{gpus: gpus, inventory: claim.Inventory{
		Driver: api.DriverName, Pool: d.cfg.Node, GPUs: byName(gpus),
	}})
	return true
}

// inventory is what claims can have.
func (d *Driver) inventory() claim.Inventory { return d.devices.Load().inventory }

// usable refuses a GPU of which the driver does not know what it would give
// away.
func usable(gpu device.GPU) error {
	if gpu.Problem != "" {
		return fmt.Errorf("device %q: it could not be read: %s", gpu.Name, gpu.Problem)
	}
	return nil
}
