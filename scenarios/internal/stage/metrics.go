package stage

import (
	"bytes"
	"context"
	"fmt"
	"strings"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/dra-lab/dra-lab/driver/api"
)

// DriverMetrics gives the figures of these names, none of which has labels, of
// the driver on a node.
func (s *Stage) DriverMetrics(ctx context.Context, node string, names ...string) ([]float64, error) {
	data, err := s.askDriver(ctx, node, api.PathMetrics)
	if err != nil {
		return nil, err
	}
	families, err := parseMetrics(data)
	if err != nil {
		return nil, fmt.Errorf("read metrics of the driver on node %q: %w", node, err)
	}
	values := make([]float64, 0, len(names))
	for _, name := range names {
		all := families[name].GetMetric()
		if len(all) != 1 {
			return nil, fmt.Errorf("read metrics of the driver on node %q: %s is there %d times, want once", node, name, len(all))
		}
		values = append(values, all[0].GetGauge().GetValue()+all[0].GetCounter().GetValue())
	}
	return values, nil
}

// Calls is how often and how long something was called.
type Calls struct {
	Count   uint64
	Seconds float64
}

// Since is the calls after those of before.
func (c Calls) Since(before Calls) Calls {
	return Calls{Count: c.Count - before.Count, Seconds: c.Seconds - before.Seconds}
}

// And is the calls of both.
func (c Calls) And(other Calls) Calls {
	return Calls{Count: c.Count + other.Count, Seconds: c.Seconds + other.Seconds}
}

// Mean is how many seconds one call took, 0 without any.
func (c Calls) Mean() float64 {
	if c.Count == 0 {
		return 0
	}
	return c.Seconds / float64(c.Count)
}

// callMetric is the kubelet's own measure of its calls to DRA drivers, whatever
// came of them: some versions count successes as errors.
const callMetric = "dra_grpc_operations_duration_seconds"

// KubeletCalls is how often and how long the kubelet of a node has called a
// method, such as NodePrepareResources, of a DRA driver since it started.
func (s *Stage) KubeletCalls(ctx context.Context, node, driver, method string) (Calls, error) {
	data, err := s.Client.CoreV1().RESTClient().Get().Resource("nodes").Name(node).SubResource("proxy").Suffix("metrics").DoRaw(ctx)
	if err != nil {
		return Calls{}, fmt.Errorf("ask the kubelet of node %q for its metrics: %w", node, err)
	}
	families, err := parseMetrics(data)
	if err != nil {
		return Calls{}, fmt.Errorf("read metrics of the kubelet of node %q: %w", node, err)
	}
	return calls(families[callMetric], driver, method), nil
}

func calls(family *dto.MetricFamily, driver, method string) Calls {
	var all Calls
	for _, m := range family.GetMetric() {
		labels := map[string]string{}
		for _, l := range m.GetLabel() {
			labels[l.GetName()] = l.GetValue()
		}
		if labels["driver_name"] == driver && strings.HasSuffix(labels["method_name"], "/"+method) {
			all = all.And(Calls{Count: m.GetHistogram().GetSampleCount(), Seconds: m.GetHistogram().GetSampleSum()})
		}
	}
	return all
}

func parseMetrics(data []byte) (map[string]*dto.MetricFamily, error) {
	parser := expfmt.NewTextParser(model.UTF8Validation)
	return parser.TextToMetricFamilies(bytes.NewReader(data))
}
