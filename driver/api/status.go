package api

import (
	"encoding/json"
	"fmt"
)

// Health of a device, in the words of the kubelet's API.
const (
	HealthHealthy   = "Healthy"
	HealthUnhealthy = "Unhealthy"
	HealthUnknown   = "Unknown"
)

// Paths that the driver serves over HTTP.
const (
	PathLive    = "/healthz" // 200 while an empty prepare goes through the socket
	PathReady   = "/readyz"  // 200 when also published and registered
	PathMetrics = "/metrics" // Prometheus text
	PathStatus  = "/statusz" // DriverStatus as JSON
)

// maxStatusBytes bounds the answer of PathStatus.
const maxStatusBytes = 4 << 20

// DriverStatus is what the driver on one node knows now.
type DriverStatus struct {
	Node    string          `json:"node"`
	Devices []DeviceStatus  `json:"devices"` // by index
	Claims  []PreparedClaim `json:"claims"`  // by UID
}

// DeviceStatus is the health of one device as last verified.
type DeviceStatus struct {
	Name    string `json:"name"`
	UUID    string `json:"uuid"`
	Health  string `json:"health"`            // HealthHealthy, HealthUnhealthy, HealthUnknown
	Message string `json:"message,omitempty"` // empty when healthy
	// UsedBytes is the memory in use when the GPU was last asked, of
	// TotalBytes, which is as found at the driver's start. Each is 0 when it
	// could not be read.
	UsedBytes  uint64 `json:"usedBytes"`
	TotalBytes uint64 `json:"totalBytes"`
}

// PreparedClaim is a claim in the driver's checkpoint.
type PreparedClaim struct {
	UID       string   `json:"uid"`
	Namespace string   `json:"namespace"`
	Name      string   `json:"name"`
	Devices   []string `json:"devices"`
	// Completed is false while a prepare is under way, or was cut off.
	Completed bool `json:"completed"`
}

// ParseDriverStatus reads the answer of PathStatus. Fields that a newer driver
// adds are ignored.
func ParseDriverStatus(data []byte) (DriverStatus, error) {
	if len(data) > maxStatusBytes {
		return DriverStatus{}, fmt.Errorf("parse driver status: %d bytes, at most %d allowed", len(data), maxStatusBytes)
	}
	var s DriverStatus
	if err := json.Unmarshal(data, &s); err != nil {
		return DriverStatus{}, fmt.Errorf("parse driver status: %w", err)
	}
	return s, nil
}
