package install

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/dra-lab/dra-lab/driver/api"
	"github.com/dra-lab/dra-lab/lab/internal/ui"
)

// GPUs says what every node that has GPUs has. The zero value is the default,
// api.DefaultGPUs, simulated.
type GPUs struct {
	inventory api.Inventory
}

const simulated = "simulated"

// ParseGPUs reads the command line's form: "simulated=PROFILE:COUNT", with
// several separated by commas, or "simulated" for the default. "auto" and the
// empty string mean the default too. Everything else is a usage error.
func ParseGPUs(s string) (GPUs, error) {
	mode, list, hasList := strings.Cut(s, "=")
	switch {
	case s == "" || s == "auto" || s == simulated:
		return GPUs{}, nil
	case mode == simulated && hasList:
		inventory, err := api.ParseGPUs(list)
		if err != nil {
			return GPUs{}, ui.UsageError(ui.WithHint(err, "for example simulated=%s; profiles: %s",
				api.DefaultGPUs, strings.Join(api.Profiles(), ", ")))
		}
		return GPUs{inventory: inventory}, nil
	case s == "passthrough":
		return GPUs{}, ui.UsageError(ui.WithHint(errors.New("passing real GPUs through is not there yet"),
			"simulated=%s", api.DefaultGPUs))
	}
	return GPUs{}, ui.UsageError(ui.WithHint(fmt.Errorf("parse GPUs %q: unknown mode %q", s, mode),
		"auto or simulated=PROFILE:COUNT, as in simulated=%s", api.DefaultGPUs))
}

// Inventory is what stands on each node.
func (g GPUs) Inventory() api.Inventory {
	if len(g.inventory.GPUs) == 0 {
		return api.DefaultInventory()
	}
	return g.inventory
}

// String has the form that ParseGPUs reads.
func (g GPUs) String() string { return simulated + "=" + g.Inventory().String() }

// count is the number of GPUs per node.
func (g GPUs) count() int { return len(g.Inventory().Profiles()) }

// file is the content of api.InventoryName.
func (g GPUs) file() ([]byte, error) {
	data, err := json.Marshal(g.Inventory())
	if err != nil {
		return nil, fmt.Errorf("encode inventory %s: %w", g, err)
	}
	return append(data, '\n'), nil
}
