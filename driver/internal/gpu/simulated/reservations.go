package simulated

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/dra-lab/dra-lab/driver/api"
	"github.com/dra-lab/dra-lab/driver/internal/cdi"
	"github.com/dra-lab/dra-lab/driver/internal/device"
)

// reservationMiB is the memory that a prepared claim takes on each GPU before
// any of its processes run, as the channels and page tables of a context would.
const reservationMiB = 256

// reservation is the content of a claim's file in the GPU's directory. It is
// state of the hardware: it stays when the driver dies.
type reservation struct {
	Bytes uint64 `json:"bytes"`
	device.Settings
}

// Bind sets memory of the GPU aside for a claim, and its mode. A second time
// does nothing.
func (s *Simulator) Bind(gpu device.GPU, claimUID string, settings device.Settings) error {
	at, err := s.site(gpu)
	if err != nil {
		return err
	}
	bytes := uint64(reservationMiB * mib)
	if settings.MemoryBytes > 0 {
		bytes = min(bytes, settings.MemoryBytes)
	}
	data, err := json.Marshal(reservation{Bytes: bytes, Settings: settings})
	if err != nil {
		return fmt.Errorf("bind GPU %d: %w", gpu.Index, err)
	}
	// Not by way of another name: what is cut off here is done again before
	// anybody relies on it.
	if err := os.WriteFile(at.reservation(claimUID), data, 0o644); err != nil {
		return fmt.Errorf("bind GPU %d: %w", gpu.Index, err)
	}
	return nil
}

// Unbind gives the memory of a claim back, and ends its mode. An unknown claim is
// not an error.
func (s *Simulator) Unbind(gpu device.GPU, claimUID string) error {
	at, err := s.site(gpu)
	if err != nil {
		return err
	}
	if err := os.Remove(at.reservation(claimUID)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("unbind GPU %d: %w", gpu.Index, err)
	}
	return nil
}

// Bound lists the claims that have memory of a GPU.
func (s *Simulator) Bound(gpu device.GPU) ([]string, error) {
	at, err := s.site(gpu)
	if err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(at.reservationsDir())
	if gpu.Partition != nil && errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list claims of GPU %d: %w", gpu.Index, err)
	}
	var claims []string
	for _, e := range entries {
		if uid, ok := strings.CutSuffix(e.Name(), ".json"); ok {
			claims = append(claims, uid)
		}
	}
	return claims, nil
}

// Edits is what a container needs to use the GPU: the place where its
// processes say so.
func (s *Simulator) Edits(gpu device.GPU, settings device.Settings) cdi.Edits {
	at, err := s.site(gpu)
	if err != nil {
		return cdi.Edits{}
	}
	if gpu.Partition != nil {
		settings.MemoryBytes = gpu.MemoryBytes
	}
	env := []string{api.EnvSimulated + "=true"}
	if settings.Exclusive {
		env = append(env, api.ExclusiveEnvName(gpu.Name)+"=true")
	}
	if settings.MemoryBytes > 0 {
		env = append(env, fmt.Sprintf("%s=%d", api.MemoryEnvName(gpu.Name), settings.MemoryBytes))
	}
	return cdi.Edits{
		Env: env,
		Mounts: []cdi.Mount{{
			Node:      at.processesDir(),
			Container: filepath.Join(api.ContainerHardwareDir, gpu.Name, api.ProcessesName),
			Writable:  true,
		}},
	}
}

func (s *Simulator) at(gpu device.GPU) (*board, error) {
	if gpu.Index < 0 || gpu.Index >= len(s.gpus) {
		return nil, fmt.Errorf("GPU %d does not exist", gpu.Index)
	}
	return s.gpus[gpu.Index], nil
}

// site is where a GPU or a partition is used.
func (s *Simulator) site(gpu device.GPU) (site, error) {
	g, err := s.at(gpu)
	if err != nil {
		return "", err
	}
	p := gpu.Partition
	if p == nil {
		return g.site(), nil
	}
	i := slices.IndexFunc(g.mig, func(m migProfile) bool { return m.kind == p.Kind })
	if i < 0 {
		return "", fmt.Errorf("GPU %d has no partition %s", gpu.Index, p.Profile)
	}
	return g.partitionSite(g.mig[i].id, p.Start), nil
}

func (s site) reservation(claimUID string) string {
	return filepath.Join(s.reservationsDir(), claimUID+".json")
}

func (s site) reservations() []reservation {
	entries, err := os.ReadDir(s.reservationsDir())
	if err != nil {
		return nil
	}
	var all []reservation
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), ".json") {
			continue
		}
		data, err := readFile(filepath.Join(s.reservationsDir(), e.Name()))
		if err != nil {
			continue
		}
		var r reservation
		if json.Unmarshal(data, &r) == nil {
			all = append(all, r)
		}
	}
	return all
}
