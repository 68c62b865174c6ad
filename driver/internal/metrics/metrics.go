// Package metrics counts what the driver does, for Prometheus.
package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/dra-lab/dra-lab/driver/api"
)

const namespace = "dra_lab"

// Metrics is a registry of its own and everything in it. Safe for concurrent
// use.
type Metrics struct {
	Registry *prometheus.Registry

	durations *prometheus.HistogramVec
	inFlight  *prometheus.GaugeVec
	steps     *prometheus.HistogramVec
	health    *prometheus.GaugeVec
	events    *prometheus.CounterVec
	// Accepted counts connections to the DRA socket.
	Accepted prometheus.Counter
	// Errors counts errors in the background, by where they came from.
	Errors *prometheus.CounterVec
	// HealthReports counts messages on health streams.
	HealthReports prometheus.Counter
	// Collected counts claims that were unprepared because they are gone.
	Collected prometheus.Counter
	leaked    prometheus.Gauge
}

// Live are values that are asked for when somebody looks.
type Live struct {
	HealthWatchers   func() int
	CheckpointWrites func() int
	ReportsDropped   func() int64
	// Prepared counts the claims in the checkpoint, complete or not, and the
	// devices that they hold; -1 and -1 if it cannot be read.
	Prepared func() (claims, devices int)
}

// New makes all metrics, at zero.
func New(live Live) *Metrics {
	// A prepare on a quiet node takes about a millisecond; the kubelet gives up
	// at 45 s.
	buckets := []float64{.0005, .001, .002, .004, .008, .016, .032, .064, .128, .256, .512, 1, 2, 5, 10, 45}
	m := &Metrics{
		Registry: prometheus.NewRegistry(),
		durations: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: namespace, Name: "claim_duration_seconds", Buckets: buckets,
			Help: "Time to prepare or unprepare one claim.",
		}, []string{"operation", "error"}),
		steps: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: namespace, Name: "claim_step_duration_seconds", Buckets: buckets,
			Help: "Time of one step of preparing or unpreparing a claim.",
		}, []string{"operation", "step"}),
		inFlight: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Namespace: namespace, Name: "claims_in_flight",
			Help: "Claims that are being prepared or unprepared now.",
		}, []string{"operation"}),
		health: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Namespace: namespace, Name: "device_health",
			Help: "1 for the health that a device has, 0 for the others.",
		}, []string{"device", "health"}),
		events: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: namespace, Name: "device_events_total",
			Help: "Events that a device reported.",
		}, []string{"device", "kind", "fatal"}),
		Accepted: prometheus.NewCounter(prometheus.CounterOpts{
			Namespace: namespace, Name: "accepted_connections_total",
			Help: "Connections to the DRA socket, the driver's own included.",
		}),
		Errors: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: namespace, Name: "background_errors_total",
			Help: "Errors that no caller was told.",
		}, []string{"source"}),
		HealthReports: prometheus.NewCounter(prometheus.CounterOpts{
			Namespace: namespace, Name: "health_reports_total",
			Help: "Messages sent on health streams.",
		}),
		Collected: prometheus.NewCounter(prometheus.CounterOpts{
			Namespace: namespace, Name: "collected_claims_total",
			Help: "Claims that were unprepared because the API server no longer has them.",
		}),
		leaked: prometheus.NewGauge(prometheus.GaugeOpts{
			Namespace: namespace, Name: "leaked_devices",
			Help: "Devices on which something of an unprepared claim stayed behind.",
		}),
	}
	m.Registry.MustRegister(m.durations, m.steps, m.inFlight, m.health, m.events,
		m.Accepted, m.Errors, m.HealthReports, m.Collected, m.leaked,
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		prepared{live.Prepared},
		gauge("health_watchers", "Open health streams.", func() float64 { return float64(live.HealthWatchers()) }),
		counter("checkpoint_writes_total", "How often this process wrote the checkpoint.", func() float64 { return float64(live.CheckpointWrites()) }),
		counter("reports_dropped_total", "Reports for the timeline that were lost.", func() float64 { return float64(live.ReportsDropped()) }),
	)
	return m
}

// prepared is read once for both of its metrics.
type prepared struct {
	count func() (claims, devices int)
}

var (
	preparedClaims = prometheus.NewDesc(namespace+"_prepared_claims",
		"Claims in the node's checkpoint, -1 when it cannot be read.", nil, nil)
	preparedDevices = prometheus.NewDesc(namespace+"_prepared_devices",
		"Devices that claims in the node's checkpoint hold, -1 when it cannot be read.", nil, nil)
)

// Describe is for the registry.
func (prepared) Describe(c chan<- *prometheus.Desc) {
	c <- preparedClaims
	c <- preparedDevices
}

// Collect is for the registry.
func (p prepared) Collect(c chan<- prometheus.Metric) {
	claims, devices := p.count()
	c <- prometheus.MustNewConstMetric(preparedClaims, prometheus.GaugeValue, float64(claims))
	c <- prometheus.MustNewConstMetric(preparedDevices, prometheus.GaugeValue, float64(devices))
}

func gauge(name, help string, value func() float64) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: namespace, Name: name, Help: help}, value)
}

func counter(name, help string, value func() float64) prometheus.Collector {
	return prometheus.NewCounterFunc(prometheus.CounterOpts{Namespace: namespace, Name: name, Help: help}, value)
}

// Begin counts a claim in and gives what counts it out again.
func (m *Metrics) Begin(operation string) (end func(error)) {
	start := time.Now()
	m.inFlight.WithLabelValues(operation).Inc()
	return func(err error) {
		m.inFlight.WithLabelValues(operation).Dec()
		m.durations.WithLabelValues(operation, boolean(err != nil)).Observe(time.Since(start).Seconds())
	}
}

// Step records one step of an operation.
func (m *Metrics) Step(operation, step string, took time.Duration) {
	m.steps.WithLabelValues(operation, step).Observe(took.Seconds())
}

// Health sets the health of a device.
func (m *Metrics) Health(device, health string) {
	for _, h := range []string{api.HealthHealthy, api.HealthUnhealthy, api.HealthUnknown} {
		value := 0.0
		if h == health {
			value = 1
		}
		m.health.WithLabelValues(device, h).Set(value)
	}
}

// Leaked sets the number of devices with leaks.
func (m *Metrics) Leaked(devices int) { m.leaked.Set(float64(devices)) }

// Event counts an event of a device.
func (m *Metrics) Event(device, kind string, fatal bool) {
	m.events.WithLabelValues(device, kind, boolean(fatal)).Inc()
}

func boolean(b bool) string {
	if b {
		return "true"
	}
	return "false"
}
