package simulated

import (
	"fmt"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/gpus"
)

const mib = 1 << 20

// profile is a model of GPU.
type profile struct {
	name string // as in api.Profiles
	// config has the name, the architecture and the table of partitions. Those
	// of go-nvml are used where it has the model.
	config      gpus.Config
	memoryMiB   uint64 // total, as nvidia-smi shows it for the model
	reservedMiB uint64 // in use while nothing runs
	slowdown    uint32 // degrees Celsius
	lanes       int
	generation  int
	idleWatts   uint32
	fullWatts   uint32
}

// profileOf knows the models of api.Profiles.
func profileOf(name string) (profile, error) {
	p, err := modelOf(name)
	p.name = name
	return p, err
}

func modelOf(name string) (profile, error) {
	switch name {
	case "t4":
		return profile{
			config: gpus.Config{
				Name: "Tesla T4", Architecture: nvml.DEVICE_ARCH_TURING, Brand: nvml.BRAND_NVIDIA,
				CudaMajor: 7, CudaMinor: 5, PciDeviceId: 0x1EB810DE,
			},
			memoryMiB: 15360, reservedMiB: 448, slowdown: 93, lanes: 16, generation: 3, idleWatts: 9, fullWatts: 70,
		}, nil
	case "l4":
		return profile{
			config: gpus.Config{
				Name: "NVIDIA L4", Architecture: nvml.DEVICE_ARCH_ADA, Brand: nvml.BRAND_NVIDIA,
				CudaMajor: 8, CudaMinor: 9, PciDeviceId: 0x27B810DE,
			},
			memoryMiB: 23034, reservedMiB: 480, slowdown: 86, lanes: 16, generation: 4, idleWatts: 12, fullWatts: 72,
		}, nil
	case "a100":
		return profile{
			config:    gpus.A100_SXM4_80GB,
			memoryMiB: 81920, reservedMiB: 624, slowdown: 89, lanes: 16, generation: 4, idleWatts: 55, fullWatts: 400,
		}, nil
	case "h100":
		return profile{
			config:    gpus.H100_SXM5_80GB,
			memoryMiB: 81559, reservedMiB: 561, slowdown: 87, lanes: 16, generation: 5, idleWatts: 70, fullWatts: 700,
		}, nil
	case "h200":
		return profile{
			config:    named(gpus.H200_SXM5_141GB, "NVIDIA H200"),
			memoryMiB: 143771, reservedMiB: 610, slowdown: 87, lanes: 16, generation: 5, idleWatts: 75, fullWatts: 700,
		}, nil
	case "b200":
		return profile{
			config:    named(gpus.B200_SXM5_180GB, "NVIDIA B200"),
			memoryMiB: 183359, reservedMiB: 720, slowdown: 87, lanes: 16, generation: 5, idleWatts: 140, fullWatts: 1000,
		}, nil
	}
	return profile{}, fmt.Errorf("simulate GPU: unknown profile %q", name)
}

// named is a model under the name that the real one reports.
func named(c gpus.Config, name string) gpus.Config {
	c.Name = name
	return c
}
