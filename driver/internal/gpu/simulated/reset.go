package simulated

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/dra-lab/dra-lab/driver/api"
	"github.com/dra-lab/dra-lab/driver/internal/device"
	"github.com/dra-lab/dra-lab/driver/internal/statefile"
)

// faultsLock is what everybody takes who changes the faults of a GPU.
const faultsLock = ".faults.lock"

// mendedByReset says whether a reset ends a fault: errors that the GPU keeps
// until then. What comes from outside, such as heat or a bad slot, stays, and a
// GPU that has left the bus does not hear of the reset.
func mendedByReset(f api.Fault) bool {
	switch f.Kind {
	case api.FaultXID:
		return recoveryOf(f.Code) != nvml.GPU_RECOVERY_ACTION_NODE_REBOOT
	case api.FaultECCDouble, api.FaultECCSingle:
		return true
	}
	return false
}

// Reset does what a reset does to a GPU: errors and what claims left behind are
// gone. The caller has made sure that nothing uses it. A lost GPU cannot be
// reset. It may be cut off anywhere, and done again.
func (s *Simulator) Reset(ctx context.Context, gpu device.GPU) (err error) {
	g, err := s.at(gpu)
	if err != nil {
		return err
	}
	lock, err := statefile.Acquire(ctx, filepath.Join(g.dir, faultsLock))
	if err != nil {
		return fmt.Errorf("reset GPU %d: %w", gpu.Index, err)
	}
	defer func() { err = errors.Join(err, lock.Release()) }()
	faults, err := g.load()
	if err != nil {
		return fmt.Errorf("reset GPU %d: %w", gpu.Index, err)
	}
	if slices.ContainsFunc(faults, func(f api.Fault) bool { return f.Kind == api.FaultLost && f.Active(time.Now()) }) {
		return fmt.Errorf("reset GPU %d: it is lost", gpu.Index)
	}
	if err := g.forgetReservations(); err != nil {
		return fmt.Errorf("reset GPU %d: %w", gpu.Index, err)
	}
	rest := slices.DeleteFunc(slices.Clone(faults), mendedByReset)
	if len(rest) == len(faults) {
		return nil
	}
	data, err := api.Faults{Faults: rest}.Encode()
	if err != nil {
		return fmt.Errorf("reset GPU %d: %w", gpu.Index, err)
	}
	if err := statefile.Replace(filepath.Join(g.dir, api.FaultsName), data, 0o644); err != nil {
		return fmt.Errorf("reset GPU %d: %w", gpu.Index, err)
	}
	return nil
}

// forgetReservations is for the whole GPU and for what it is cut into.
func (g *board) forgetReservations() error {
	for at := range g.sites() {
		entries, err := os.ReadDir(at.reservationsDir())
		if errors.Is(err, fs.ErrNotExist) && at != g.site() {
			continue // destroyed meanwhile
		}
		if err != nil {
			return err
		}
		for _, e := range entries {
			if !strings.HasSuffix(e.Name(), ".json") {
				continue
			}
			if err := os.Remove(filepath.Join(at.reservationsDir(), e.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
	}
	return nil
}
