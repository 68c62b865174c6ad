package metrics_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"github.com/dra-lab/dra-lab/driver/api"
	"github.com/dra-lab/dra-lab/driver/internal/metrics"
)

// used are metrics that each have a value.
func used(t *testing.T) *metrics.Metrics {
	t.Helper()
	m := metrics.New(metrics.Live{
		HealthWatchers:   func() int { return 2 },
		CheckpointWrites: func() int { return 3 },
		ReportsDropped:   func() int64 { return 4 },
		Prepared:         func() (claims, devices int) { return 5, 6 },
	})
	m.Begin("prepare")(nil)
	m.Begin("unprepare")(errors.New("broken"))
	m.Begin("prepare") // goes on
	m.Step("prepare", "bound", time.Millisecond)
	m.Health("gpu-0", api.HealthUnhealthy)
	m.Event("gpu-0", "XID", true)
	m.Leaked(1)
	m.Accepted.Inc()
	m.Errors.WithLabelValues("publish").Inc()
	m.HealthReports.Inc()
	m.Collected.Inc()
	return m
}

// Their names are an interface: dashboards and alerts have them.
func TestEveryMetricIsThere(t *testing.T) {
	w := httptest.NewRecorder()
	promhttp.HandlerFor(used(t).Registry, promhttp.HandlerOpts{}).
		ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil))
	for _, want := range []string{
		`dra_lab_claim_duration_seconds_count{error="false",operation="prepare"} 1`,
		`dra_lab_claim_duration_seconds_count{error="true",operation="unprepare"} 1`,
		`dra_lab_claim_step_duration_seconds_count{operation="prepare",step="bound"} 1`,
		`dra_lab_claims_in_flight{operation="prepare"} 1`,
		`dra_lab_claims_in_flight{operation="unprepare"} 0`,
		`dra_lab_prepared_claims 5`,
		`dra_lab_prepared_devices 6`,
		`dra_lab_device_health{device="gpu-0",health="Unhealthy"} 1`,
		`dra_lab_device_health{device="gpu-0",health="Healthy"} 0`,
		`dra_lab_device_events_total{device="gpu-0",fatal="true",kind="XID"} 1`,
		`dra_lab_leaked_devices 1`,
		`dra_lab_health_watchers 2`,
		`dra_lab_health_reports_total 1`,
		`dra_lab_accepted_connections_total 1`,
		`dra_lab_background_errors_total{source="publish"} 1`,
		`dra_lab_collected_claims_total 1`,
		`dra_lab_checkpoint_writes_total 3`,
		`dra_lab_reports_dropped_total 4`,
	} {
		if !strings.Contains(w.Body.String(), want+"\n") {
			t.Errorf("no %s", want)
		}
	}
}

func TestMetricsKeepToPrometheusConventions(t *testing.T) {
	families, err := used(t).Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	problems, err := promlint.NewWithMetricFamilies(families).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
}
