package upstream

import (
	"maps"
	"testing"
)

func TestParsePrepares(t *testing.T) {
	got, err := parsePrepares(`# HELP dra_operations_duration_seconds Latency
# TYPE dra_operations_duration_seconds histogram
dra_operations_duration_seconds_bucket{is_error="false",operation_name="PrepareResources",le="0.1"} 9
dra_operations_duration_seconds_sum{is_error="false",operation_name="PrepareResources"} 0.25
dra_operations_duration_seconds_count{is_error="false",operation_name="PrepareResources"} 3
dra_operations_duration_seconds_count{is_error="true",operation_name="PrepareResources"} 1
dra_operations_duration_seconds_count{is_error="false",operation_name="UnprepareResources"} 7
dra_grpc_operations_duration_seconds_count{driver_name="d",grpc_status_code="OK",method_name="m"} 5
`)
	if want := map[string]int{"false": 3, "true": 1}; err != nil || !maps.Equal(got, want) {
		t.Errorf("got %v, %v; want %v", got, err, want)
	}
	if _, err := parsePrepares(`dra_operations_duration_seconds_count{is_error="true",operation_name="PrepareResources"} x` + "\n"); err == nil {
		t.Error("no number is no error")
	}
}
