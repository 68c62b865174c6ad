package upstream

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/dra-lab/dra-lab/driver/draconn/plugintest"
)

func invertedErrorLabel() Reproduction {
	return Reproduction{
		ID: "135227", Title: "the kubelet counts prepares that succeed as errors",
		Links: []string{issue("135227")},
		Bad:   []string{"v1.35.4"}, Good: []string{"v1.36.3"},
		Observable: "dra_operations_duration_seconds has one more PrepareResources with is_error=\"true\" after one that succeeded",
		Bound:      2 * time.Minute,
		Run: func(ctx context.Context, s *Side) (f Finding, err error) {
			d, err := s.StartDriver(ctx, "", plugintest.Config{})
			if err != nil {
				return f, err
			}
			if _, err := s.Claim(ctx, "claim", d); err != nil {
				return f, err
			}
			before, err := s.prepares(ctx)
			if err != nil {
				return f, err
			}
			if _, err := s.Pod(ctx, "pod", byName("claim")); err != nil {
				return f, err
			}
			if err := s.AwaitPod(ctx, "pod", "to run", running); err != nil {
				return f, err
			}
			after, err := s.prepares(ctx)
			if err != nil {
				return f, err
			}
			f.add("the driver prepared %d claim, the Pod runs", d.Prepares())
			for _, isError := range []string{"false", "true"} {
				f.add("PrepareResources with is_error=%q: %d before, %d after", isError, before[isError], after[isError])
			}
			if d.Prepares() != 1 || before["false"]+before["true"]+1 != after["false"]+after["true"] {
				return f, errors.New("count prepares: there was not exactly one")
			}
			f.Present = after["true"] > before["true"]
			return f, nil
		},
	}
}

// prepares is how often the kubelet says that it prepared all claims of a Pod,
// by the value of is_error.
func (s *Side) prepares(ctx context.Context) (map[string]int, error) {
	metrics, err := s.Client.CoreV1().RESTClient().Get().
		Resource("nodes").Name(s.Node.Name()).SubResource("proxy").Suffix("metrics").DoRaw(ctx)
	if err != nil {
		return nil, fmt.Errorf("read metrics of node %q: %w", s.Node.Name(), err)
	}
	return parsePrepares(string(metrics))
}

func parsePrepares(metrics string) (map[string]int, error) {
	counts := map[string]int{}
	for line := range strings.Lines(metrics) {
		labels, ok := strings.CutPrefix(line, "dra_operations_duration_seconds_count{")
		labels, value, found := strings.Cut(labels, "} ")
		if !ok || !found || !strings.Contains(labels, `operation_name="PrepareResources"`) {
			continue
		}
		n, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
		if err != nil {
			return nil, fmt.Errorf("parse metric %q: %w", strings.TrimSpace(line), err)
		}
		for _, isError := range []string{"false", "true"} {
			if strings.Contains(labels, fmt.Sprintf("is_error=%q", isError)) {
				counts[isError] += int(n)
			}
		}
	}
	return counts, nil
}

func slicesAfterKill() Reproduction {
	return Reproduction{
		ID: "128696", Title: "the ResourceSlices of a driver that was killed stay",
		Links:      []string{issue("128696"), pull("132058")},
		Good:       []string{"v1.36.3", "v1.37.2"},
		Observable: "a slice is still there 45 s after its driver was killed, whose socket stays",
		Note:       "kubelets up to v1.33 have it, which are too old for this control plane",
		Bound:      2 * time.Minute,
		Run: func(ctx context.Context, s *Side) (f Finding, err error) {
			d, err := s.StartDriver(ctx, "", plugintest.Config{})
			if err != nil {
				return f, err
			}
			slice := d.slice()
			if _, err := s.Client.ResourceV1().ResourceSlices().Get(ctx, slice, metav1.GetOptions{}); err != nil {
				return f, fmt.Errorf("look at ResourceSlice %q: %w", slice, err)
			}
			d.Kill()
			killed := time.Now()
			went, err := within(ctx, 45*time.Second, func(ctx context.Context) error {
				return until(ctx, func() (bool, error) {
					_, err := s.Client.ResourceV1().ResourceSlices().Get(ctx, slice, metav1.GetOptions{})
					if apierrors.IsNotFound(err) {
						return true, nil
					}
					return false, err
				})
			})
			if err != nil {
				return f, err
			}
			if _, err := os.Stat(d.host); err != nil {
				return f, fmt.Errorf("look at the killed driver's socket: %w", err)
			}
			f.Present = !went
			f.add("the driver's slice is gone: %v, %.1f s after the driver was killed; its socket is still there", went, time.Since(killed).Seconds())
			return f, nil
		},
	}
}
