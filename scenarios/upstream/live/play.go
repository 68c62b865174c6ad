package live

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"golang.org/x/mod/semver"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	healthv1 "k8s.io/kubelet/pkg/apis/dra-health/v1"

	"github.com/dra-lab/dra-lab/lab/cluster"
	"github.com/dra-lab/dra-lab/scenarios/upstream"
)

const (
	// bound is for the scenario on one kubelet; of this most are waits for the
	// kubelet's own periods, which patience does not bound.
	bound    = 8 * time.Minute
	patience = time.Minute
	// tidying is for what is left when the scenario has ended, somehow.
	tidying = 2 * time.Minute
)

// Run plays the scenario on the kubelets with these versions, on all at the same
// time. What cannot be played on one is in its result; an error means that it
// could be played on none.
func Run(ctx context.Context, lab *cluster.Cluster, versions []string, progress func(what string)) (report Report, err error) {
	nodes, err := upstream.OpenNodes(ctx, lab)
	if err != nil {
		return nil, err
	}
	if len(versions) == 0 {
		versions = nodes.Versions()
	}
	if err := createClass(ctx, nodes); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, removeClass(context.WithoutCancel(ctx), nodes)) }()
	report = make(Report, len(versions))
	var all sync.WaitGroup
	for i, version := range versions {
		report[i] = &Result{Version: version}
		all.Go(func() {
			p := &player{result: report[i], progress: func(what string) { progress(version + ": " + what) }}
			start := time.Now()
			if err := p.playOn(ctx, lab, nodes, fmt.Sprintf("live-%d", i)); err != nil {
				report[i].Error = err.Error()
			}
			report[i].Took = time.Since(start)
		})
	}
	all.Wait()
	return report, nil
}

// createClass creates the class of all devices of the driver.
func createClass(ctx context.Context, nodes *upstream.Nodes) error {
	class := &resourcev1.DeviceClass{
		ObjectMeta: metav1.ObjectMeta{Name: driverName},
		Spec: resourcev1.DeviceClassSpec{Selectors: []resourcev1.DeviceSelector{{
			CEL: &resourcev1.CELDeviceSelector{Expression: fmt.Sprintf("device.driver == %q", driverName)},
		}}},
	}
	_, err := nodes.Client().ResourceV1().DeviceClasses().Create(ctx, class, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create DeviceClass %q: %w", driverName, err)
	}
	return nil
}

func removeClass(ctx context.Context, nodes *upstream.Nodes) error {
	err := nodes.Client().ResourceV1().DeviceClasses().Delete(ctx, driverName, metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("remove DeviceClass %q: %w", driverName, err)
	}
	return nil
}

// player plays the scenario on one kubelet.
type player struct {
	side     *upstream.Side
	driver   *driver
	result   *Result
	progress func(what string)
}

// The Pods: two from the beginning, and one that comes while the driver is away.
// Their claims, or what these are made from, have their names.
const first, second, third = "first", "second", "third"

func (p *player) playOn(ctx context.Context, lab *cluster.Cluster, nodes *upstream.Nodes, tag string) (err error) {
	if p.side, err = nodes.Side(ctx, upstream.Reproduction{ID: "live"}, p.result.Version); err != nil {
		return err
	}
	p.driver = newDriver(p.side.Node, p.side.Client, lab.SharedDir(), tag)
	resending, stop := context.WithCancel(ctx)
	var resender sync.WaitGroup
	resender.Go(func() { p.driver.resend(resending) })
	defer func() {
		stop()
		resender.Wait()
		err = errors.Join(err, p.tidy(context.WithoutCancel(ctx)))
	}()
	ctx, cancel := context.WithTimeoutCause(ctx, bound, fmt.Errorf("not within %s", bound))
	defer cancel()
	if p.result.Verbosity, err = p.verbosity(ctx); err != nil {
		return err
	}
	for _, step := range []struct {
		done step
		what string
		do   func(context.Context) error
	}{
		{connected, "registration, two Pods, health", p.connect},
		{silenced, "health streams end", p.fallSilent},
		{killed, "driver killed and replaced", p.kill},
		{restarted, "kubelet restarted", p.restart},
		{restarted, "Pods deleted", p.deletePods},
		{died, "driver killed for good", p.die},
	} {
		p.progress(step.what)
		if err := step.do(ctx); err != nil {
			return fmt.Errorf("%s: %w", step.what, err)
		}
		p.result.Done = step.done
	}
	return nil
}

// tidy takes away what was made. Pods end only with a driver that unprepares.
func (p *player) tidy(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, tidying)
	defer cancel()
	err := p.driver.start()
	if err = errors.Join(err, p.side.Close(ctx), p.driver.remove(ctx)); err != nil {
		return fmt.Errorf("tidy up: %w", err)
	}
	return nil
}

// together does things at the same time, and returns when all have ended.
func together(ctx context.Context, things ...func(context.Context) error) error {
	group, ctx := errgroup.WithContext(ctx)
	for _, do := range things {
		group.Go(func() error { return do(ctx) })
	}
	return group.Wait()
}

func (p *player) connect(ctx context.Context) (err error) {
	c := &p.result.Connect
	published, err := p.watchSlices(ctx)
	if err != nil {
		return err
	}
	defer published.Stop()
	begin := time.Now()
	p.driver.report(healthv1.HealthStatus_HEALTHY)
	if err := p.driver.start(); err != nil {
		return err
	}
	if err := p.driver.announce(ctx); err != nil {
		return err
	}
	if c.Registered, err = wait(ctx, begin, patience, p.awaitRegistration(begin)); err != nil || !c.Registered.Came {
		return needed("registration", c.Registered, err)
	}
	if err := p.driver.publish(ctx); err != nil {
		return err
	}
	if _, err := published.await(ctx, watch.Added); err != nil {
		return fmt.Errorf("wait for a ResourceSlice: %w", err)
	}
	for _, pod := range []string{first, second} {
		if err := p.createPod(ctx, pod); err != nil {
			return err
		}
	}
	ran, err := p.awaitBoth(ctx, "to run", running)
	if err != nil {
		return err
	}
	c.Healthy, err = wait(ctx, ran, patience, func(ctx context.Context) (time.Time, error) {
		return p.awaitBoth(ctx, "to be Healthy", is(corev1.ResourceHealthStatusHealthy))
	})
	if err != nil || !c.Healthy.Came {
		return needed("Healthy in the status of both Pods", c.Healthy, err)
	}
	c.Accepted, c.Prepares = p.driver.service.Accepted(), p.driver.prepares()
	c.Made, c.Lazy, err = p.clientLines(ctx, begin)
	return err
}

// needed is why the scenario cannot go on.
func needed(what string, w Wait, err error) error {
	if err != nil {
		return err
	}
	return fmt.Errorf("%s: %s", what, w)
}

// clientLines counts the log lines about connections and health clients made.
func (p *player) clientLines(ctx context.Context, since time.Time) (made, lazy int, err error) {
	lines, err := p.side.Journal(ctx, since, "Creating new gRPC connection")
	if err != nil {
		return 0, 0, err
	}
	for _, line := range lines {
		if strings.Contains(line, p.driver.serviceNode) {
			made++
		}
	}
	lines, err = p.side.Journal(ctx, since, "Initialized DRAResourceHealthClient lazily")
	return made, len(lines), err
}

// fallSilent ends the health streams. The kubelet forgets what they said, but
// tells the Pods only when it syncs them for another reason, so that for most of
// a minute their status goes on saying what nobody vouches for.
func (p *player) fallSilent(ctx context.Context) (err error) {
	s := &p.result.Silence
	accepted := p.driver.service.Accepted()
	p.driver.silence()
	ended := time.Now()
	p.driver.service.EndStreams()
	err = together(ctx, func(ctx context.Context) (err error) {
		if _, err := poll(ctx, func() bool { return p.driver.service.Streams() == 0 }); err != nil {
			return err
		}
		s.Reopened, err = wait(ctx, ended, patience, p.awaitStream)
		return err
	}, func(ctx context.Context) (err error) {
		s.Unknown, err = wait(ctx, ended, syncing+noticing, func(ctx context.Context) (time.Time, error) {
			return p.awaitPod(ctx, first, "to be Unknown", is(corev1.ResourceHealthStatusUnknown))
		})
		return err
	})
	if err != nil {
		return err
	}
	reported := time.Now()
	p.driver.report(healthv1.HealthStatus_HEALTHY)
	s.Healthy, err = wait(ctx, reported, patience, func(ctx context.Context) (time.Time, error) {
		return p.awaitPod(ctx, first, "to be Healthy", is(corev1.ResourceHealthStatusHealthy))
	})
	s.Accepted = p.driver.service.Accepted() - accepted
	return err
}

func (p *player) awaitRegistration(since time.Time) func(context.Context) (time.Time, error) {
	return func(ctx context.Context) (time.Time, error) { return p.driver.awaitRegistration(ctx, since) }
}

func (p *player) awaitStream(ctx context.Context) (time.Time, error) {
	return poll(ctx, func() bool { return p.driver.service.Streams() > 0 })
}

// kill kills the driver's process, lets a Pod fail without it, and replaces it.
func (p *player) kill(ctx context.Context) (err error) {
	k := &p.result.Kill
	wiped, err := p.watchSlices(ctx)
	if err != nil {
		return err
	}
	defer wiped.Stop()
	ended := time.Now()
	p.driver.killService()
	err = together(ctx, func(ctx context.Context) (err error) {
		if p.result.Verbosity < verbosityConnections {
			return nil
		}
		pattern := `"Connection changed".* driverName="` + strings.ReplaceAll(driverName, ".", `\.`) + `".* connected=false`
		k.Noticed, err = wait(ctx, ended, 2*noticing, func(ctx context.Context) (time.Time, error) {
			return p.awaitLog(ctx, ended, 2*noticing, pattern)
		})
		return err
	}, func(ctx context.Context) (err error) {
		created := time.Now()
		if err := p.createPod(ctx, third); err != nil {
			return err
		}
		k.Failed, err = wait(ctx, created, callTimeout+patience, func(ctx context.Context) (at time.Time, err error) {
			k.Message, at, err = p.awaitFailedPrepare(ctx, third)
			return at, err
		})
		return err
	})
	if err != nil {
		return err
	}
	started := time.Now()
	k.Away = started.Sub(ended)
	if err := p.driver.start(); err != nil {
		return err
	}
	err = together(ctx, func(ctx context.Context) (err error) {
		k.Connected, err = wait(ctx, started, patience, func(ctx context.Context) (time.Time, error) {
			return poll(ctx, func() bool { return p.driver.service.Accepted() > 0 })
		})
		return err
	}, func(ctx context.Context) (err error) {
		k.Reopened, err = wait(ctx, started, patience, p.awaitStream)
		return err
	}, func(ctx context.Context) (err error) {
		k.Prepared, err = wait(ctx, started, 2*patience, func(ctx context.Context) (time.Time, error) {
			return p.awaitPod(ctx, third, "to run", running)
		})
		return err
	})
	k.Accepted, k.Wiped = p.driver.service.Accepted(), wiped.had(watch.Deleted)
	return err
}

// restart restarts the kubelet. That it has synced a running Pod since, without a
// prepare, is shown by a report that reaches the Pod's status.
func (p *player) restart(ctx context.Context) (err error) {
	r := &p.result.Restart
	published, err := p.watchSlices(ctx)
	if err != nil {
		return err
	}
	defer published.Stop()
	accepted, prepares := p.driver.service.Accepted(), p.driver.prepares()
	began := time.Now()
	return together(ctx, func(ctx context.Context) error {
		if _, err := p.side.Node.Exec(ctx, nil, "systemctl", "restart", "kubelet"); err != nil {
			return fmt.Errorf("restart kubelet: %w", err)
		}
		return nil
	}, func(ctx context.Context) (err error) {
		r.Wiped, err = wait(ctx, began, patience, func(ctx context.Context) (time.Time, error) { return published.await(ctx, watch.Deleted) })
		if err != nil || !r.Wiped.Came {
			return needed("ResourceSlices wiped", r.Wiped, err)
		}
		r.Republished, err = wait(ctx, began, 2*patience, func(ctx context.Context) (time.Time, error) { return published.await(ctx, watch.Added) })
		return err
	}, func(ctx context.Context) (err error) {
		if r.Registered, err = wait(ctx, began, patience, p.awaitRegistration(began)); err != nil || !r.Registered.Came {
			return needed("registration", r.Registered, err)
		}
		p.driver.report(healthv1.HealthStatus_UNHEALTHY)
		r.Synced, err = wait(ctx, began, 2*patience, func(ctx context.Context) (time.Time, error) {
			return p.awaitPod(ctx, first, "to be Unhealthy", is(corev1.ResourceHealthStatusUnhealthy))
		})
		r.Accepted, r.Prepares = p.driver.service.Accepted()-accepted, p.driver.prepares()-prepares
		return err
	})
}

// deletePods ends the Pods while there is a driver that unprepares.
func (p *player) deletePods(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, 2*patience, fmt.Errorf("not within %s", 2*patience))
	defer cancel()
	for _, pod := range []string{first, second, third} {
		if err := p.side.Delete(ctx, pod); err != nil {
			return err
		}
	}
	for _, pod := range []string{first, second, third} {
		if err := p.side.AwaitPod(ctx, pod, "to be gone", gone); err != nil {
			return err
		}
	}
	return nil
}

// die kills the driver and leaves it so.
func (p *player) die(ctx context.Context) (err error) {
	published, err := p.watchSlices(ctx)
	if err != nil {
		return err
	}
	defer published.Stop()
	ended := time.Now()
	p.driver.kill()
	p.result.Death.Wiped, err = wait(ctx, ended, wipingDelay+patience, func(ctx context.Context) (time.Time, error) {
		return published.await(ctx, watch.Deleted)
	})
	return err
}

// createPod creates a Pod with a claim of the kind whose health the kubelet finds:
// before 1.35 that is one that the Pod calls by the claim's own name, in 1.35 only
// one that was made from a template, and from 1.36 on it is either.
func (p *player) createPod(ctx context.Context, name string) error {
	driver := &upstream.Driver{Name: driverName}
	if semver.Compare(p.result.Version, "v1.35.0-0") >= 0 {
		if err := p.side.Template(ctx, name, driver); err != nil {
			return err
		}
		_, err := p.side.Pod(ctx, name, corev1.PodResourceClaim{ResourceClaimTemplateName: &name})
		return err
	}
	if _, err := p.side.Claim(ctx, name, driver); err != nil {
		return err
	}
	_, err := p.side.Pod(ctx, name, corev1.PodResourceClaim{ResourceClaimName: &name}, func(pod *corev1.Pod) {
		pod.Spec.ResourceClaims[0].Name = name
		pod.Spec.Containers[0].Resources.Claims[0].Name = name
	})
	return err
}

// awaitBoth waits until the first two Pods are as they should be.
func (p *player) awaitBoth(ctx context.Context, what string, is func(*corev1.Pod) bool) (at time.Time, err error) {
	for _, pod := range []string{first, second} {
		if at, err = p.awaitPod(ctx, pod, what, is); err != nil {
			break
		}
	}
	return at, err
}
