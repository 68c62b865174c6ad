package upstream

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	drav1 "k8s.io/kubelet/pkg/apis/dra/v1"

	"github.com/dra-lab/dra-lab/driver/draconn/plugintest"
)

const kubeletState = "/var/lib/kubelet/dra_manager_state"

func duplicateDevices() Reproduction {
	return Reproduction{
		ID: "140274", Title: "a prepare that is repeated after a partial failure doubles the CDI devices",
		Links: []string{pull("140274"), pull("140953"), pull("140954"), pull("140955")},
		Bad:   []string{"v1.36.3"}, Good: []string{"v1.37.2"},
		Observable: "the CDI device of the driver that succeeded is there more than once in the kubelet's state",
		Bound:      3 * time.Minute,
		Run: func(ctx context.Context, s *Side) (f Finding, err error) {
			const kind = "u140274a.lab.example/gpu"
			const cdi = kind + "=0"
			var a *Driver
			a, err = s.StartDriver(ctx, "a", plugintest.Config{Prepare: func(context.Context, *drav1.Claim) ([]*drav1.Device, error) {
				device := a.Device()
				device.CdiDeviceIds = []string{cdi}
				return []*drav1.Device{device}, nil
			}})
			if err != nil {
				return f, err
			}
			// The kubelet calls drivers in any order, and none after one that
			// fails: b fails until it was called after a.
			var b *Driver
			var partly atomic.Bool
			b, err = s.StartDriver(ctx, "b", plugintest.Config{Prepare: func(context.Context, *drav1.Claim) ([]*drav1.Device, error) {
				if !partly.Load() {
					partly.Store(len(a.Calls()) > 0)
					return nil, errors.New("fails at first, on purpose")
				}
				device := b.Device()
				device.RequestNames = []string{"gpu1"}
				return []*drav1.Device{device}, nil
			}})
			if err != nil {
				return f, err
			}
			const spec = cdiDirectory + "/u140274a.json"
			s.removeLater(spec)
			if err := s.writeCDISpec(ctx, spec, kind); err != nil {
				return f, err
			}
			if _, err := s.Claim(ctx, "claim", a, b); err != nil {
				return f, err
			}
			if _, err := s.Pod(ctx, "pod", byName("claim")); err != nil {
				return f, err
			}
			if err := s.AwaitPoked(ctx, "pod", "to run", running); err != nil {
				return f, err
			}
			state, err := s.Node.Exec(ctx, nil, "cat", kubeletState)
			if err != nil {
				return f, err
			}
			n := strings.Count(string(state), cdi)
			f.Present = n > 1
			f.add("driver a prepared the claim %d times, b once after %d failures", len(a.Calls()), len(b.Calls())-1)
			f.add("%s has %s %d times", kubeletState, cdi, n)
			return f, nil
		},
	}
}

func attachDuringUnprepare() Reproduction {
	return Reproduction{
		ID: "140527", Title: "a Pod starts with a claim that is being unprepared for another one",
		Links: []string{pull("140527")},
		Bad:   []string{"v1.36.3"}, Good: []string{"v1.37.2"},
		Observable: "the second Pod runs without a prepare of its own, with devices that the driver then takes away",
		Bound:      3 * time.Minute,
		Run: func(ctx context.Context, s *Side) (f Finding, err error) {
			release := make(chan struct{})
			released := false
			free := func() {
				if !released {
					released = true
					close(release)
				}
			}
			defer free()
			d, err := s.StartDriver(ctx, "", plugintest.Config{Unprepare: func(ctx context.Context, _ *drav1.Claim) error {
				select {
				case <-release:
					return nil
				case <-ctx.Done():
					return ctx.Err()
				}
			}})
			if err != nil {
				return f, err
			}
			if _, err := s.Claim(ctx, "claim", d); err != nil {
				return f, err
			}
			if _, err := s.Pod(ctx, "first", byName("claim")); err != nil {
				return f, err
			}
			if err := s.AwaitPod(ctx, "first", "to run", running); err != nil {
				return f, err
			}
			if err := s.Delete(ctx, "first"); err != nil {
				return f, err
			}
			if err := s.AwaitCalls(ctx, d, "unprepare", func(c []string) bool { return slices.Contains(c, "unprepare claim") }); err != nil {
				return f, err
			}
			if _, err := s.Pod(ctx, "second", byName("claim")); err != nil {
				return f, err
			}
			during, err := within(ctx, 15*time.Second, func(ctx context.Context) error {
				return s.AwaitPod(ctx, "second", "to run", running)
			})
			if err != nil {
				return f, err
			}
			f.add("while unprepare was running: second Pod runs: %v, calls so far: %s", during, strings.Join(d.Calls(), ", "))
			free()
			if err := s.AwaitPod(ctx, "first", "to be gone", gone); err != nil {
				return f, err
			}
			// A kubelet that has refused it tries again when it syncs the Pod.
			if err := s.AwaitPoked(ctx, "second", "to run", running); err != nil {
				return f, err
			}
			calls := d.Calls()
			f.Present = during && last(calls) == "unprepare claim"
			f.add("in the end: second Pod runs, calls: %s", strings.Join(calls, ", "))
			return f, nil
		},
	}
}

func last(calls []string) string {
	if len(calls) == 0 {
		return ""
	}
	return calls[len(calls)-1]
}

func unprepareInUse() Reproduction {
	return Reproduction{
		ID: "140212", Title: "deleting a Pod that never got its claims unprepares the claim of another Pod",
		Links: []string{pull("140212")},
		Bad:   []string{"v1.36.3"}, Good: []string{"v1.37.2"},
		Observable: "an unprepare of the shared claim while the first Pod still runs",
		Bound:      3 * time.Minute,
		Run: func(ctx context.Context, s *Side) (f Finding, err error) {
			d, err := s.StartDriver(ctx, "", plugintest.Config{})
			if err != nil {
				return f, err
			}
			// Its device can be allocated, but the kubelet does not know it.
			absent := &Driver{Name: "u140212absent.lab.example", side: s}
			if err := absent.publish(ctx); err != nil {
				return f, err
			}
			if _, err := s.Claim(ctx, "shared", d); err != nil {
				return f, err
			}
			if _, err := s.Claim(ctx, "hopeless", absent); err != nil {
				return f, err
			}
			if _, err := s.Pod(ctx, "user", byName("shared")); err != nil {
				return f, err
			}
			if err := s.AwaitPod(ctx, "user", "to run", running); err != nil {
				return f, err
			}
			if _, err := s.Pod(ctx, "loser", byName("shared"), func(p *corev1.Pod) {
				second := byName("hopeless")
				second.Name = "hopeless"
				p.Spec.ResourceClaims = append(p.Spec.ResourceClaims, second)
				p.Spec.Containers[0].Resources.Claims = append(p.Spec.Containers[0].Resources.Claims, corev1.ResourceClaim{Name: "hopeless"})
			}); err != nil {
				return f, err
			}
			message, err := s.FailedPrepare(ctx, "loser")
			if err != nil {
				return f, err
			}
			f.add("second Pod: %s", message)
			if err := s.Delete(ctx, "loser"); err != nil {
				return f, err
			}
			if err := s.AwaitPod(ctx, "loser", "to be gone", gone); err != nil {
				return f, err
			}
			f.Present = slices.Contains(d.Calls(), "unprepare shared")
			f.add("second Pod gone, first Pod runs, calls: %s", strings.Join(d.Calls(), ", "))
			return f, s.AwaitPod(ctx, "user", "to run still", running)
		},
	}
}

func stuckAfterFailedPrepare() Reproduction {
	return Reproduction{
		ID: "139772", Title: "a Pod whose prepare failed is stuck in Terminating: ResourceClaim not created yet",
		Links: []string{issue("139772"), pull("139845")},
		Bad:   []string{"v1.36.3"}, Good: []string{"v1.37.2"},
		Observable: "the Pod is still there 30 s after its claims could be unprepared, and the log says why",
		Note: "it takes a client that drops the claim's name from the Pod's status. An API server up to v1.36 lets any " +
			"client do that which does not know the field; from v1.37 on it has to be emptied, as it is here",
		Bound: 3 * time.Minute,
		Run: func(ctx context.Context, s *Side) (f Finding, err error) {
			start := time.Now()
			// The controller puts the name back unless the Pod is being deleted,
			// so the Pod must not be gone before the name is.
			var works atomic.Bool
			a, err := s.StartDriver(ctx, "a", plugintest.Config{Unprepare: func(context.Context, *drav1.Claim) error {
				if !works.Load() {
					return errors.New("fails until the status has changed, on purpose")
				}
				return nil
			}})
			if err != nil {
				return f, err
			}
			b, err := s.StartDriver(ctx, "b", plugintest.Config{Prepare: func(context.Context, *drav1.Claim) ([]*drav1.Device, error) {
				return nil, errors.New("fails, on purpose")
			}})
			if err != nil {
				return f, err
			}
			if err := s.Template(ctx, "template", a, b); err != nil {
				return f, err
			}
			if _, err := s.Pod(ctx, "pod", byTemplate("template")); err != nil {
				return f, err
			}
			message, err := s.FailedPrepare(ctx, "pod")
			if err != nil {
				return f, err
			}
			f.add("%s", message)
			if err := s.Delete(ctx, "pod"); err != nil {
				return f, err
			}
			if err := s.AwaitCalls(ctx, a, "an unprepare, which fails", func(c []string) bool { return unprepares(c) > 0 }); err != nil {
				return f, err
			}
			names, err := s.setClaimNames(ctx, "pod", []corev1.PodResourceClaimStatus{})
			if err != nil {
				return f, err
			}
			// A kubelet has seen that when it says so or, without, when it has
			// tried twice again: once with what it knew.
			var lines []string
			tried := unprepares(a.Calls())
			if err := s.AwaitPoked(ctx, "pod", "to be known without the name", func(*corev1.Pod) bool {
				lines, err = s.Journal(ctx, start, "ResourceClaim not created yet")
				return err != nil || len(lines) > 0 || unprepares(a.Calls()) >= tried+2
			}); err != nil {
				return f, err
			}
			if err != nil {
				return f, err
			}
			works.Store(true)
			from := time.Now()
			went, err := within(ctx, 30*time.Second, func(ctx context.Context) error {
				return s.AwaitPoked(ctx, "pod", "to be gone", gone)
			})
			if err != nil {
				return f, err
			}
			if lines, err = s.Journal(ctx, start, "ResourceClaim not created yet"); err != nil {
				return f, err
			}
			f.Present = !went && len(lines) > 0
			f.add("the name dropped from the status, unprepare works: gone %v after %.1f s; log lines \"ResourceClaim not created yet\": %d",
				went, time.Since(from).Seconds(), len(lines))
			if went {
				return f, nil
			}
			if len(lines) > 0 {
				f.add("%s", last(lines))
			}
			if _, err := s.setClaimNames(ctx, "pod", names); err != nil {
				return f, err
			}
			from = time.Now()
			if err := s.AwaitPoked(ctx, "pod", "to be gone", gone); err != nil {
				return f, err
			}
			f.add("the name put back: gone after %.1f s", time.Since(from).Seconds())
			return f, nil
		},
	}
}

func unprepares(calls []string) int {
	n := 0
	for _, c := range calls {
		if strings.HasPrefix(c, "unprepare ") {
			n++
		}
	}
	return n
}

// setClaimNames changes the names of claims in a Pod's status and returns those
// that were there.
func (s *Side) setClaimNames(ctx context.Context, name string, claims []corev1.PodResourceClaimStatus) ([]corev1.PodResourceClaimStatus, error) {
	pods := s.Client.CoreV1().Pods(s.Namespace)
	pod, err := pods.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("look at Pod %q: %w", name, err)
	}
	// Not as a PodStatus, which leaves an empty list out.
	patch, err := json.Marshal(map[string]any{"status": map[string]any{"resourceClaimStatuses": claims}})
	if err != nil {
		return nil, err
	}
	changed, err := pods.Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
	if err != nil {
		return nil, fmt.Errorf("change status of Pod %q: %w", name, err)
	}
	if got := len(changed.Status.ResourceClaimStatuses); got != len(claims) {
		return nil, fmt.Errorf("change status of Pod %q: it has %d names of claims, want %d", name, got, len(claims))
	}
	return pod.Status.ResourceClaimStatuses, nil
}

func terminatingWithoutDriver() Reproduction {
	return Reproduction{
		ID: "129402", Title: "a Pod cannot end while the driver of its claim is away",
		Links:      []string{issue("129402")},
		Bad:        []string{"v1.36.3", "v1.37.2"},
		Observable: "still Terminating 20 s after its deletion, gone once the driver is back",
		Note:       "intended: nobody else could undo what the driver prepared",
		Bound:      3 * time.Minute,
		Run: func(ctx context.Context, s *Side) (f Finding, err error) {
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
			start := time.Now()
			d.Kill()
			if err := s.Delete(ctx, "pod"); err != nil {
				return f, errors.Join(err, d.Start())
			}
			went, err := within(ctx, 20*time.Second, func(ctx context.Context) error {
				return s.AwaitPod(ctx, "pod", "to be gone", gone)
			})
			lines, journal := s.Journal(ctx, start, "unprepare dynamic resources")
			if err := errors.Join(err, journal, d.Start()); err != nil {
				return f, err
			}
			back := time.Now()
			f.add("without the driver: gone within 20 s: %v", went)
			if len(lines) > 0 {
				f.add("%s", last(lines))
			}
			if err := s.AwaitPod(ctx, "pod", "to be gone", gone); err != nil {
				return f, err
			}
			f.Present = !went
			f.add("gone %s after the driver came back", fmt.Sprintf("%.0f s", time.Since(back).Seconds()))
			return f, nil
		},
	}
}
