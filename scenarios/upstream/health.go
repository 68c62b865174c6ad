package upstream

import (
	"context"
	"fmt"
	"strings"
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
			d.Report(healthv1.HealthStatus_HEALTHY, timeout)
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

func fixedHealthTimeout() Reproduction {
	return Reproduction{
		ID: "133118", Title: "the time for which a health report holds cannot be chosen",
		Links: []string{issue("133118"), pull("135147")},
		Bad:   []string{"v1.34.4"}, Good: []string{"v1.35.4"},
		Observable: "not Unknown 20 s after the last report, which was to hold for 5 s",
		Note: "the kubelet is made to look every second, by changes of an annotation: " +
			"it says nothing of its own accord when a report expires (140819)",
		Bound: 2 * time.Minute,
		Run: func(ctx context.Context, s *Side) (f Finding, err error) {
			const asked, patience = 5 * time.Second, 20 * time.Second
			pods, err := startHealthPods(ctx, s)
			if err != nil {
				return f, err
			}
			var pod healthPod
			var reported time.Time
			healthy := false
			for _, pod = range pods {
				pod.driver.Report(healthv1.HealthStatus_HEALTHY, asked)
				reported = time.Now()
				healthy, err = within(ctx, noHealthAfter, func(ctx context.Context) error {
					return s.AwaitPod(ctx, pod.name, "to be Healthy", hasHealth(corev1.ResourceHealthStatusHealthy))
				})
				if err != nil {
					return f, err
				}
				if healthy {
					break
				}
				f.add("claim %s: no health (134482 or its mend)", pod.name)
			}
			if !healthy {
				return f, fmt.Errorf("neither Pod has health after %s", noHealthAfter)
			}
			f.add("Healthy %.1f s after the only report, which was to hold for %s", time.Since(reported).Seconds(), asked)
			if err := s.AwaitPoked(ctx, pod.name, "to be Unknown", hasHealth(corev1.ResourceHealthStatusUnknown)); err != nil {
				return f, err
			}
			took := time.Since(reported)
			f.Present = took > patience
			f.add("Unknown %.1f s after it", took.Seconds())
			return f, nil
		},
	}
}

// noHealthAfter is when a Pod that is looked at every second counts as without
// health.
const noHealthAfter = 15 * time.Second

// healthPod is a Pod whose claim has a driver of its own.
type healthPod struct {
	name   string
	driver *Driver
}

// startHealthPods starts one Pod with a claim that exists by itself, and one with
// a claim from a template: some kubelets have health for one of them only. The
// first claim is named as the Pod names it, because of 134482.
func startHealthPods(ctx context.Context, s *Side) (pods [2]healthPod, err error) {
	for i, name := range []string{"named", "templated"} {
		pods[i].name = name
		if pods[i].driver, err = s.StartDriver(ctx, name[:1], plugintest.Config{}); err != nil {
			return pods, err
		}
	}
	if _, err := s.Claim(ctx, podClaim, pods[0].driver); err != nil {
		return pods, err
	}
	if err := s.Template(ctx, "template", pods[1].driver); err != nil {
		return pods, err
	}
	if _, err := s.Pod(ctx, "named", byName(podClaim)); err != nil {
		return pods, err
	}
	if _, err := s.Pod(ctx, "templated", byTemplate("template")); err != nil {
		return pods, err
	}
	for _, pod := range pods {
		if err := s.AwaitPod(ctx, pod.name, "to run", running); err != nil {
			return pods, err
		}
	}
	return pods, nil
}

// missingHealth looks which of the two Pods has no health. That neither has any
// says nothing about claims: it is an error.
func missingHealth(ctx context.Context, s *Side, f *Finding) (missing map[string]bool, err error) {
	pods, err := startHealthPods(ctx, s)
	if err != nil {
		return nil, err
	}
	missing = map[string]bool{}
	for _, pod := range pods {
		pod.driver.Report(healthv1.HealthStatus_HEALTHY, longTimeout) // holds for 30 s at least
		start := time.Now()
		var last string
		healthy, err := within(ctx, noHealthAfter, func(ctx context.Context) error {
			return s.AwaitPoked(ctx, pod.name, "to be Healthy", seen(&last, hasHealth(corev1.ResourceHealthStatusHealthy)))
		})
		if err != nil {
			return nil, err
		}
		missing[pod.name] = !healthy
		f.add("Pod with a claim %s: %s after %.1f s", map[string]string{
			"named": "that exists by itself", "templated": "from a template",
		}[pod.name], last, time.Since(start).Seconds())
	}
	if missing["named"] && missing["templated"] {
		return nil, fmt.Errorf("neither Pod has health after %s", noHealthAfter)
	}
	return missing, nil
}

func noHealthForTemplates() Reproduction {
	return Reproduction{
		ID: "134482", Title: "no health for a claim that was made from a template",
		Links: []string{issue("134482"), pull("134875")},
		Bad:   []string{"v1.34.4"}, Good: []string{"v1.35.4"},
		Observable: "no health in the status of a Pod whose claim comes from a template",
		Note:       "what counts is the name of the ResourceClaim: only one that is named as the claim in the Pod has health",
		Bound:      2 * time.Minute,
		Run: func(ctx context.Context, s *Side) (f Finding, err error) {
			missing, err := missingHealth(ctx, s, &f)
			f.Present = missing["templated"]
			return f, err
		},
	}
}

func noHealthForNames() Reproduction {
	return Reproduction{
		ID: "named-health", Title: "no health for a claim that exists by itself",
		Links: []string{pull("134875")},
		Bad:   []string{"v1.35.4"}, Good: []string{"v1.34.4", "v1.36.3"},
		Observable: "no health in the status of a Pod whose claim was not made from a template",
		Note:       "v1.35 looks for the claim's name in the Pod's resourceClaimStatuses only, where claims from templates are",
		Bound:      2 * time.Minute,
		Run: func(ctx context.Context, s *Side) (f Finding, err error) {
			missing, err := missingHealth(ctx, s, &f)
			f.Present = missing["named"]
			return f, err
		},
	}
}

func oldEndpoint() Reproduction {
	return Reproduction{
		ID: "140818", Title: "the old instance of a driver overwrites or clears the health that the new one reports",
		Links:      []string{issue("140818"), pull("140842")},
		Bad:        []string{"v1.36.3", "v1.37.2"},
		Observable: "the Pod's health is what the old instance says, and Unknown once that is gone",
		Note:       "two instances at once, as in a rolling update; the kubelet calls the new one only",
		Bound:      2 * time.Minute,
		Run: func(ctx context.Context, s *Side) (f Finding, err error) {
			older, err := s.StartDriver(ctx, "", plugintest.Config{})
			if err != nil {
				return f, err
			}
			newer, err := older.Successor(ctx, plugintest.Config{})
			if err != nil {
				return f, err
			}
			if _, err := s.Claim(ctx, podClaim, older); err != nil {
				return f, err
			}
			if _, err := s.Pod(ctx, "pod", byName(podClaim)); err != nil {
				return f, err
			}
			if err := s.AwaitPod(ctx, "pod", "to run", running); err != nil {
				return f, err
			}
			f.add("calls to the old instance: %d, to the new one: %d", len(older.Calls()), len(newer.Calls()))
			// Nothing expires here.
			newer.Report(healthv1.HealthStatus_HEALTHY, longTimeout)
			reported := time.Now()
			if err := s.AwaitPod(ctx, "pod", "to be Healthy", hasHealth(corev1.ResourceHealthStatusHealthy)); err != nil {
				return f, err
			}
			older.Report(healthv1.HealthStatus_UNHEALTHY, longTimeout)
			overwritten, err := within(ctx, 15*time.Second, func(ctx context.Context) error {
				return s.AwaitPoked(ctx, "pod", "to be Unhealthy", hasHealth(corev1.ResourceHealthStatusUnhealthy))
			})
			if err != nil {
				return f, err
			}
			f.add("the new instance reports Healthy, then the old one Unhealthy: the Pod is Unhealthy: %v (%.1f s after the new one's report)",
				overwritten, time.Since(reported).Seconds())
			newer.Report(healthv1.HealthStatus_HEALTHY, longTimeout)
			reported = time.Now()
			if err := s.AwaitPoked(ctx, "pod", "to be Healthy", hasHealth(corev1.ResourceHealthStatusHealthy)); err != nil {
				return f, err
			}
			if err := older.Deregister(ctx); err != nil {
				return f, err
			}
			if err := until(ctx, func() (bool, error) { return older.Streams() == 0, nil }); err != nil {
				return f, fmt.Errorf("wait for the end of the old instance's health stream: %w", err)
			}
			cleared, err := within(ctx, 15*time.Second, func(ctx context.Context) error {
				return s.AwaitPoked(ctx, "pod", "to be Unknown", hasHealth(corev1.ResourceHealthStatusUnknown))
			})
			if err != nil {
				return f, err
			}
			f.add("the new instance reports Healthy for %s, then the old one ends: the Pod is Unknown: %v (%.1f s after the new one's report)",
				longTimeout, cleared, time.Since(reported).Seconds())
			f.Present = overwritten || cleared
			newer.Report(healthv1.HealthStatus_HEALTHY, longTimeout)
			return f, s.AwaitPoked(ctx, "pod", "to be Healthy again", hasHealth(corev1.ResourceHealthStatusHealthy))
		},
	}
}

// longTimeout is that of reports which are not to expire.
const longTimeout = 10 * time.Minute

// seen notes what the last Pod that is was asked about says about health.
func seen(what *string, is func(*corev1.Pod) bool) func(*corev1.Pod) bool {
	return func(p *corev1.Pod) bool {
		*what = describeHealth(p)
		return is(p)
	}
}

func describeHealth(p *corev1.Pod) string {
	var all []string
	if p != nil {
		for _, c := range p.Status.ContainerStatuses {
			for _, a := range c.AllocatedResourcesStatus {
				for _, r := range a.Resources {
					all = append(all, fmt.Sprintf("%s %s %s", a.Name, r.ResourceID, r.Health))
				}
			}
		}
	}
	if len(all) == 0 {
		return "no health"
	}
	return strings.Join(all, ", ")
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
