package plugin

import (
	"context"
	"encoding/json"
	"net/http"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	"k8s.io/klog/v2"

	"github.com/dra-lab/dra-lab/driver/api"
	"github.com/dra-lab/dra-lab/driver/internal/checkpoint"
)

// Handler serves the paths of package api: nothing that is secret, and nothing
// that changes anything.
func (d *Driver) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+api.PathLive, answer(d.Live))
	mux.HandleFunc("GET "+api.PathReady, answer(d.Ready))
	mux.Handle("GET "+api.PathMetrics, promhttp.HandlerFor(d.metrics.Registry, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET "+api.PathStatus, func(w http.ResponseWriter, r *http.Request) {
		status, err := d.Status(r.Context())
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		if err := json.NewEncoder(w).Encode(status); err != nil {
			klog.FromContext(r.Context()).V(2).Info("Status was not sent", "err", err)
		}
	})
	return mux
}

func answer(check func(context.Context) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if err := check(r.Context()); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		_, _ = w.Write([]byte("ok\n"))
	}
}

// Status is what the driver knows now.
func (d *Driver) Status(ctx context.Context) (api.DriverStatus, error) {
	entries, err := d.store.List(ctx)
	if err != nil {
		return api.DriverStatus{}, err
	}
	status := api.DriverStatus{Node: d.cfg.Node, Devices: []api.DeviceStatus{}, Claims: []api.PreparedClaim{}}
	gpus := d.cfg.Hardware.List()
	for _, s := range d.monitor.Snapshot() {
		status.Devices = append(status.Devices, api.DeviceStatus{
			Name: s.Name, UUID: gpus[s.Index].UUID, Health: s.Health, Message: s.Message,
			UsedBytes: s.Reading.UsedBytes.V, TotalBytes: gpus[s.Index].MemoryBytes,
		})
	}
	for _, e := range entries {
		status.Claims = append(status.Claims, api.PreparedClaim{
			UID: e.UID, Namespace: e.Namespace, Name: e.Name,
			Devices: e.Names(), Completed: e.Phase == checkpoint.Completed,
		})
	}
	return status, nil
}
