package install

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/dra-lab/dra-lab/driver/api"
	"github.com/dra-lab/dra-lab/lab/internal/ui"
)

// Mode says where GPUs come from.
type Mode string

// The modes.
const (
	// Auto is one of the others, as the host has it; see [GPUs.Choose].
	Auto Mode = "auto"
	// Simulated is hardware that files on the node stand for.
	Simulated Mode = "simulated"
	// Passthrough is the host's hardware, which the nodes were made with.
	Passthrough Mode = "passthrough"
)

// GPUs says what the nodes that have GPUs have. The zero value is the default,
// api.DefaultGPUs, simulated.
type GPUs struct {
	mode      Mode // "" is Simulated
	inventory api.Inventory
}

// ParseGPUs reads the command line's form: "simulated=PROFILE:COUNT", with
// several separated by commas, "simulated" for the default, "passthrough", or
// "auto", which the empty string means too. Everything else is a usage error.
func ParseGPUs(s string) (GPUs, error) {
	mode, list, hasList := strings.Cut(s, "=")
	switch {
	case s == "" || Mode(s) == Auto:
		return GPUs{mode: Auto}, nil
	case Mode(s) == Simulated || Mode(s) == Passthrough:
		return GPUs{mode: Mode(s)}, nil
	case Mode(mode) == Simulated && hasList:
		inventory, err := api.ParseGPUs(list)
		if err != nil {
			return GPUs{}, ui.UsageError(ui.WithHint(err, "for example simulated=%s; profiles: %s",
				api.DefaultGPUs, strings.Join(api.Profiles(), ", ")))
		}
		return GPUs{mode: Simulated, inventory: inventory}, nil
	}
	return GPUs{}, ui.UsageError(ui.WithHint(fmt.Errorf("parse GPUs %q: unknown mode %q", s, mode),
		"auto, passthrough or simulated=PROFILE:COUNT, as in simulated=%s", api.DefaultGPUs))
}

// Mode is Simulated for the zero value.
func (g GPUs) Mode() Mode {
	if g.mode == "" {
		return Simulated
	}
	return g.mode
}

// Choose is g in another mode.
func (g GPUs) Choose(mode Mode) GPUs {
	g.mode = mode
	return g
}

// Inventory is what stands on each node, where it is simulated.
func (g GPUs) Inventory() api.Inventory {
	if len(g.inventory.GPUs) == 0 {
		return api.DefaultInventory()
	}
	return g.inventory
}

// String has the form that ParseGPUs reads.
func (g GPUs) String() string {
	if m := g.Mode(); m != Simulated {
		return string(m)
	}
	return string(Simulated) + "=" + g.Inventory().String()
}

// count is the number of simulated GPUs per node.
func (g GPUs) count() int { return len(g.Inventory().Profiles()) }

// file is the content of api.InventoryName.
func (g GPUs) file() ([]byte, error) {
	data, err := json.Marshal(g.Inventory())
	if err != nil {
		return nil, fmt.Errorf("encode inventory %s: %w", g, err)
	}
	return append(data, '\n'), nil
}
