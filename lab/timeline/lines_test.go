package timeline

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dra-lab/dra-lab/driver/api"
	"github.com/dra-lab/dra-lab/lab/timeline/workload"
)

func TestDriverReports(t *testing.T) {
	for name, c := range map[string]struct {
		report api.Report
		want   []Event
	}{
		"prepared": {
			api.Report{Step: api.StepPrepared, ClaimNamespace: "ns", ClaimName: "claim", Device: "gpu-0", Duration: 5400 * time.Microsecond},
			[]Event{{Component: Driver, Kind: Prepared, Claim: "claim", Device: "gpu-0", Duration: 5400 * time.Microsecond, Text: "claim claim: prepared (5.4ms)"}},
		},
		"a step of prepare": {
			api.Report{Step: api.StepPrepareStep, ClaimNamespace: "ns", ClaimName: "claim", Detail: "CDI spec written"},
			[]Event{{Component: Driver, Kind: PrepareStep, Claim: "claim", Detail: "CDI spec written", Text: "claim claim: CDI spec written"}},
		},
		"failed": {
			api.Report{Step: api.StepPrepareFailed, ClaimNamespace: "ns", ClaimName: "claim", Err: "no such GPU"},
			[]Event{{Component: Driver, Kind: PrepareFailed, Claim: "claim", Text: "claim claim: prepare failed: no such GPU"}},
		},
		"another namespace": {api.Report{Step: api.StepPrepared, ClaimNamespace: "other", ClaimName: "claim"}, nil},
		"the GPU speaks": {
			api.Report{Step: api.StepEvent, Device: "gpu-0", Detail: "XID 79"},
			[]Event{{Component: GPU, Kind: GPUEvent, Device: "gpu-0", Detail: "XID 79", Text: "gpu-0: XID 79"}},
		},
		"health": {
			api.Report{Step: api.StepHealth, Device: "gpu-0", Detail: "Unhealthy: XID 79: off the bus"},
			[]Event{{Component: Driver, Kind: DeviceHealth, Device: "gpu-0", Detail: "Unhealthy", Text: "gpu-0: health reported to the kubelet: Unhealthy: XID 79: off the bus"}},
		},
		"an order of the controller": {
			api.Report{Step: api.StepOperation, Device: "gpu-0", Detail: "Reset: errors are gone"},
			[]Event{{Component: Driver, Kind: DeviceOperation, Device: "gpu-0", Detail: "Reset", Text: "gpu-0: reset ordered by the controller: errors are gone"}},
		},
		"an order that failed": {
			api.Report{Step: api.StepOperation, Device: "gpu-0", Detail: "Reset", Err: "in use"},
			[]Event{{Component: Driver, Kind: DeviceOperation, Device: "gpu-0", Detail: "ResetFailed", Text: "gpu-0: reset ordered by the controller: failed: in use"}},
		},
		"a step of the driver": {
			api.Report{Step: api.StepHealthWatch, Detail: "v1"},
			[]Event{{Component: Driver, Kind: DriverStep, Detail: api.StepHealthWatch, Text: "health watch: v1"}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			c.report.Time, c.report.Node = now(), "worker"
			for i := range c.want {
				c.want[i].Time, c.want[i].Node, c.want[i].Source = now(), "worker", SourceReport
			}
			if diff := cmp.Diff(c.want, driverReport(c.report, "ns")); diff != "" {
				t.Errorf("events (-want +got):\n%s", diff)
			}
		})
	}
}

func TestWorkloadLinesKeepWhatTheWorkloadSaid(t *testing.T) {
	line := workload.Line{
		Time: now(), Event: workload.EventDone, Rank: 1, World: 2, Step: 600, Loss: 0.025, FirstLoss: 1.25, Accuracy: 0.992,
		Weights: "0123456789abcdef",
	}
	want := Event{
		Time: now(), Source: SourceWorkload, Component: Container, Kind: "workload-done", Node: "worker", Pod: "train-1-x", Workload: &line,
		Text: "Pod train-1-x: rank 1 done after step 600: loss 0.0250, at first 1.2500; accuracy 99.2 %; weights 0123456789ab",
	}
	if diff := cmp.Diff(want, workloadLine(line, "worker", "train-1-x")); diff != "" {
		t.Errorf("event (-want +got):\n%s", diff)
	}
}

func TestReadLinesTakesEachLineOnceAcrossReconnections(t *testing.T) {
	// Given a log that is read twice, the second time from the whole second in
	// which the first reading ended, as the API allows,
	first := "2026-01-02T03:04:05.1Z a\n2026-01-02T03:04:05.2Z b\n"
	second := first + "2026-01-02T03:04:05.3Z c\nno time\n2026-01-02T03:04:05.4Z " + strings.Repeat("x", 2*maxLogLine) + "\n2026-01-02T03:04:05.5Z d\n"
	var got []string
	add := func(line []byte) { got = append(got, string(line)) }
	last := readLines(strings.NewReader(first+"2026-01-02T03:04:05.3Z broken o"), time.Time{}, add)
	// when both are read, then each line came once, and what is no line of a
	// log, or too long, did not.
	readLines(strings.NewReader(second), last, add)
	if diff := cmp.Diff([]string{"a", "b", "c", "d"}, got); diff != "" {
		t.Errorf("lines (-want +got):\n%s", diff)
	}
}
