package stage

import (
	"testing"
)

func TestCallsOfOneDriverAreAddedUp(t *testing.T) {
	const text = `# HELP dra_grpc_operations_duration_seconds [ALPHA] Duration in seconds of the DRA gRPC operations
# TYPE dra_grpc_operations_duration_seconds histogram
dra_grpc_operations_duration_seconds_bucket{driver_name="a",grpc_status_code="OK",method_name="/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodePrepareResources",le="+Inf"} 3
dra_grpc_operations_duration_seconds_sum{driver_name="a",grpc_status_code="OK",method_name="/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodePrepareResources"} 0.3
dra_grpc_operations_duration_seconds_count{driver_name="a",grpc_status_code="OK",method_name="/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodePrepareResources"} 3
dra_grpc_operations_duration_seconds_bucket{driver_name="a",grpc_status_code="Unknown",method_name="/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodePrepareResources",le="+Inf"} 1
dra_grpc_operations_duration_seconds_sum{driver_name="a",grpc_status_code="Unknown",method_name="/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodePrepareResources"} 0.5
dra_grpc_operations_duration_seconds_count{driver_name="a",grpc_status_code="Unknown",method_name="/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodePrepareResources"} 1
dra_grpc_operations_duration_seconds_bucket{driver_name="a",grpc_status_code="OK",method_name="/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodeUnprepareResources",le="+Inf"} 9
dra_grpc_operations_duration_seconds_sum{driver_name="a",grpc_status_code="OK",method_name="/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodeUnprepareResources"} 9
dra_grpc_operations_duration_seconds_count{driver_name="a",grpc_status_code="OK",method_name="/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodeUnprepareResources"} 9
`
	families, err := parseMetrics([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	got := calls(families[callMetric], "a", "NodePrepareResources")
	if got.Count != 4 || got.Seconds != 0.8 {
		t.Errorf("calls are %+v, want 4 in 0.8 s", got)
	}
	if after := got.Since(Calls{Count: 2, Seconds: 0.4}); after.Mean() != 0.2 {
		t.Errorf("the mean of the last two is %v, want 0.2", after.Mean())
	}
	if got := calls(families[callMetric], "b", "NodePrepareResources"); got != (Calls{}) || got.Mean() != 0 {
		t.Errorf("calls of an unknown driver are %+v", got)
	}
}
