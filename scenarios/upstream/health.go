package upstream

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	healthv1 "k8s.io/kubelet/pkg/apis/dra-health/v1"
	drav1 "k8s.io/kubelet/pkg/apis/dra/v1"

	"github.com/dra-lab/dra-lab/driver/draconn/plugintest"
)

func unimplementedHealth() Reproduction {
	return Reproduction{
		ID: "140353", Title: "a driver without the health service is asked for it every 5 s",
		Links: []string{issue("140353"), issue("141855"), pull("141858")},
		Bad:   []string{"v1.36.3"}, Good: []string{"v1.37.2"},
		Observable: "\"Unimplemented\" in the kubelet's log again and again",
		Bound:      2 * time.Minute,
		Run: func(ctx context.Context, s *Side) (f Finding, err error) {
			start := time.Now()
			if _, err := s.StartDriver(ctx, "", plugintest.Config{Services: []string{drav1.DRAPluginService}}); err != nil {
				return f, err
			}
			// Three attempts are 10 s apart; the good one has to be quiet
			// for as long.
			var lines []string
			f.Present, err = within(ctx, 20*time.Second, func(ctx context.Context) error {
				return until(ctx, func() (bool, error) {
					lines, err = s.Journal(ctx, start, "Unimplemented")
					return len(lines) >= 3, err
				})
			})
			f.add("log lines with \"Unimplemented\" in %.0f s: %d", time.Since(start).Seconds(), len(lines))
			if len(lines) > 0 {
				f.add("%s", lines[len(lines)-1])
			}
			return f, err
		},
	}
}

func expiryNotPushed() Reproduction {
	return Reproduction{
		ID: "140819", Title: "health that expires does not change the Pod's status until something else does",
		Links:      []string{issue("140819"), pull("140883")},
		Bad:        []string{"v1.36.3", "v1.37.2"},
		Observable: "still Healthy three timeouts after the last report",
		Bound:      3 * time.Minute,
		Run: func(ctx context.Context, s *Side) (f Finding, err error) {
			const timeout = 5 * time.Second
			d, err := s.StartDriver(ctx, "", plugintest.Config{})
			if err != nil {
				return f, err
			}
			if _, err := s.Claim(ctx, "claim", d); err != nil {
				return f, err
			}
			if _, err := s.Pod(ctx, "pod", byName("claim")); err != nil {
				return f, err
			}
			if err := s.AwaitPod(ctx, "pod", "to run", running); err != nil {
				return f, err
			}
			// The server sends this once and is silent then.
			d.SetHealth(&healthv1.DeviceHealth{
				Device:                    &healthv1.DeviceIdentifier{PoolName: d.pool(), DeviceName: "gpu-0"},
				Health:                    healthv1.HealthStatus_HEALTHY,
				HealthCheckTimeoutSeconds: int64(timeout / time.Second),
			})
			if err := s.AwaitPod(ctx, "pod", "to be Healthy", hasHealth(corev1.ResourceHealthStatusHealthy)); err != nil {
				return f, err
			}
			reported := time.Now()
			expired, err := within(ctx, 3*timeout, func(ctx context.Context) error {
				return s.AwaitPod(ctx, "pod", "to be Unknown", hasHealth(corev1.ResourceHealthStatusUnknown))
			})
			if err != nil {
				return f, err
			}
			f.Present = !expired
			if expired {
				f.add("Unknown %.0f s after the last report, timeout %s", time.Since(reported).Seconds(), timeout)
				return f, nil
			}
			f.add("still Healthy %.0f s after the last report, timeout %s", time.Since(reported).Seconds(), timeout)
			late, err := within(ctx, 100*time.Second, func(ctx context.Context) error {
				return s.AwaitPod(ctx, "pod", "to be Unknown", hasHealth(corev1.ResourceHealthStatusUnknown))
			})
			if late {
				f.add("Unknown only after %.0f s", time.Since(reported).Seconds())
			} else {
				f.add("still Healthy after %.0f s", time.Since(reported).Seconds())
			}
			return f, err
		},
	}
}

func hasHealth(want corev1.ResourceHealthStatus) func(*corev1.Pod) bool {
	return func(p *corev1.Pod) bool {
		if p == nil {
			return false
		}
		for _, c := range p.Status.ContainerStatuses {
			for _, a := range c.AllocatedResourcesStatus {
				for _, r := range a.Resources {
					if r.Health == want {
						return true
					}
				}
			}
		}
		return false
	}
}

// FailedPrepare waits until the kubelet has reported that it could not prepare
// the Pod's claims, and returns what it said.
func (s *Side) FailedPrepare(ctx context.Context, pod string) (message string, err error) {
	err = until(ctx, func() (bool, error) {
		events, err := s.Client.CoreV1().Events(s.Namespace).List(ctx, metav1.ListOptions{
			FieldSelector: "involvedObject.name=" + pod + ",reason=FailedPrepareDynamicResources",
		})
		if err != nil || len(events.Items) == 0 {
			return false, err
		}
		message = events.Items[0].Message
		return true, nil
	})
	if err != nil {
		return "", fmt.Errorf("wait for a failed prepare of Pod %q: %w", pod, err)
	}
	return message, nil
}

func byName(claim string) corev1.PodResourceClaim {
	return corev1.PodResourceClaim{ResourceClaimName: &claim}
}

func byTemplate(template string) corev1.PodResourceClaim {
	return corev1.PodResourceClaim{ResourceClaimTemplateName: &template}
}
