package controller

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
)

// metrics are those of one instance.
type metrics struct {
	registry *prometheus.Registry
	leading  prometheus.Gauge
	writes   *prometheus.CounterVec
	errors   prometheus.Counter
}

func newMetrics() metrics {
	m := metrics{
		registry: prometheus.NewRegistry(),
		leading:  prometheus.NewGauge(prometheus.GaugeOpts{Name: "dra_lab_controller_leading", Help: "1 while this instance leads."}),
		writes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "dra_lab_controller_writes_total", Help: "Writes to the API server, by kind.",
		}, []string{"verb"}),
		errors: prometheus.NewCounter(prometheus.CounterOpts{Name: "dra_lab_controller_errors_total", Help: "Errors in the background."}),
	}
	m.registry.MustRegister(m.leading, m.writes, m.errors, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}
