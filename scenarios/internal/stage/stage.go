package stage

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/e2e-framework/klient/conf"
	"sigs.k8s.io/e2e-framework/pkg/env"
	"sigs.k8s.io/e2e-framework/pkg/envconf"
	"sigs.k8s.io/e2e-framework/pkg/features"

	"github.com/dra-lab/dra-lab/driver/api"
	"github.com/dra-lab/dra-lab/lab/cluster"
	"github.com/dra-lab/dra-lab/lab/timeline"
	"github.com/dra-lab/dra-lab/scenarios/catalog"
)

// Environment that says which cluster to play on.
const (
	// EnvCluster names a lab on this machine.
	EnvCluster = "DRA_LAB_CLUSTER"
	// EnvKubeconfig is for a cluster that is no lab of this machine.
	EnvKubeconfig = "KUBECONFIG"
	// EnvTrainer is the image of the trainer, for a cluster without the lab's
	// ConfigMap.
	EnvTrainer = "DRA_LAB_TRAINER_IMAGE"
)

const (
	// cleanupTime bounds the cleaning up after a scenario.
	cleanupTime = 90 * time.Second
	// setupTime bounds the preparations of a scenario.
	setupTime = 2 * time.Minute

	labelScenario = api.DriverName + "/scenario"
)

// Stage is where one scenario plays.
type Stage struct {
	scenario catalog.Scenario
	lab      *cluster.Cluster // nil when only a kubeconfig is known
	config   *rest.Config
	env      *envconf.Config
	trainer  string // image

	// Client is the administrator's.
	Client kubernetes.Interface
	// Namespace is the scenario's own, "" before Begin.
	Namespace string
	// Recorder records what happens in Namespace, nil before Begin.
	Recorder *timeline.Recorder
	// Unrecorded leaves Namespace out, before Begin: a scenario that starts
	// hundreds of Pods would fill the timeline with nothing else.
	Unrecorded bool

	ended sync.Once
}

// New takes the cluster that the environment names for the scenario of this
// name, or skips the test. What Begin makes goes when t ends.
func New(t *testing.T, name string) *Stage {
	t.Helper()
	found, err := catalog.Find([]string{name})
	if err != nil {
		t.Fatal(err)
	}
	s := &Stage{scenario: found[0]}
	if testing.Short() && !s.scenario.Short {
		t.Skipf("scenario %s is not short", name)
	}
	lab, kubeconfig := os.Getenv(EnvCluster), os.Getenv(EnvKubeconfig)
	switch {
	case lab == "" && kubeconfig == "":
		t.Skipf("set %s to the name of a lab, or %s", EnvCluster, EnvKubeconfig)
	case lab == "" && s.scenario.Nodes:
		t.Skipf("scenario %s reaches into nodes: set %s to the name of a lab", name, EnvCluster)
	}
	if err := s.connect(t.Context(), lab, kubeconfig); err != nil {
		t.Fatal(err)
	}
	if s.scenario.Nodes {
		switch real, err := s.realGPUs(t.Context()); {
		case err != nil:
			t.Fatal(err)
		case real:
			t.Skipf("NOT PLAYED: scenario %s reads and breaks simulated hardware, and the GPUs of this lab are real", name)
		}
	}
	return s
}

// realGPUs says whether a device is hardware, of which there are no files in
// nodes to read or to break.
func (s *Stage) realGPUs(ctx context.Context) (real bool, err error) {
	err = s.EachDevice(ctx, func(_ GPU, d resourcev1.Device) {
		simulated := d.Attributes[api.AttributeSimulated].BoolValue
		real = real || simulated != nil && !*simulated
	})
	return real, err
}

func (s *Stage) connect(ctx context.Context, lab, kubeconfig string) (err error) {
	if lab != "" {
		if s.lab, err = cluster.Open(ctx, lab); err != nil {
			return err
		}
		kubeconfig = s.lab.Kubeconfig()
	}
	if s.config, err = conf.New(kubeconfig); err != nil {
		return fmt.Errorf("read kubeconfig %q: %w", kubeconfig, err)
	}
	s.config.QPS, s.config.Burst = 100, 200
	s.env = envconf.NewWithKubeConfig(kubeconfig)
	if s.Client, err = kubernetes.NewForConfig(s.config); err != nil {
		return fmt.Errorf("connect to the cluster: %w", err)
	}
	return nil
}

// RESTConfig is how the cluster is reached, for a client that the stage does not
// have. It is the caller's own.
func (s *Stage) RESTConfig() *rest.Config { return rest.CopyConfig(s.config) }

// Play runs the feature. An interrupt ends what it waits for, and then tidies
// up as after any failure.
func (s *Stage) Play(t *testing.T, feature *features.FeatureBuilder) {
	t.Helper()
	t.Cleanup(func() { s.end(t) })
	Interruptible(t, func(ctx context.Context) {
		environment, err := env.NewWithContext(ctx, s.env)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("scenario %s: %s", s.scenario.Name, s.scenario.Proves)
		environment.Test(t, feature.Teardown(s.teardown).Feature())
		s.end(t) //nolint:contextcheck // an interrupted feature may not have got to its teardown, and its context has ended
	})
}

// Interruptible plays something whose context ends with an interrupt. When play
// has tidied up after that, the signal has its usual effect: the scenarios after
// this one do not begin.
func Interruptible(t *testing.T, play func(context.Context)) {
	t.Helper()
	ctx, stop := signal.NotifyContext(t.Context(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	play(ctx)
	if ctx.Err() != nil {
		stop()
		if err := syscall.Kill(os.Getpid(), syscall.SIGINT); err != nil {
			t.Fatalf("end after an interrupt: %v", err)
		}
	}
}

// Begin is the first setup step of a feature: it removes what a killed run left
// behind, makes the namespace and starts the recorder.
func (s *Stage) Begin(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
	t.Helper()
	preparing, cancel := context.WithTimeoutCause(ctx, setupTime, fmt.Errorf("not within %s", setupTime))
	defer cancel()
	if err := s.begin(preparing); err != nil {
		t.Fatal(err)
	}
	return ctx
}

func (s *Stage) begin(ctx context.Context) error {
	if err := s.removeLeftovers(ctx); err != nil {
		return err
	}
	image, err := s.trainerImage(ctx)
	if err != nil {
		return err
	}
	s.trainer = image
	made, err := s.Client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		GenerateName: s.scenario.Name + "-",
		Labels:       map[string]string{labelScenario: s.scenario.Name},
	}}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("make namespace of scenario %q: %w", s.scenario.Name, err)
	}
	s.Namespace = made.Name
	recorded := s.Namespace
	if s.Unrecorded {
		recorded += "-unrecorded" // there is none of that name
	}
	s.Recorder, err = timeline.Start(ctx, s.config, timeline.Config{
		Title: "scenario " + s.scenario.Name, Namespace: recorded, Live: os.Stdout,
	})
	return err
}

// teardown ends the scenario within its feature, so that trouble in tidying up
// is the feature's failure.
func (s *Stage) teardown(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
	t.Helper()
	s.end(t)
	return ctx
}

// end undoes what the scenario did, once.
func (s *Stage) end(t *testing.T) {
	t.Helper()
	s.ended.Do(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), cleanupTime)
		defer cancel()
		if err := s.tidy(ctx); err != nil {
			t.Errorf("tidy up after scenario %s: %v", s.scenario.Name, err)
		}
	})
}

func (s *Stage) tidy(ctx context.Context) error {
	mended, err := s.mendAll(ctx)
	errs := []error{err}
	if s.Namespace != "" {
		errs = append(errs, s.removeNamespace(ctx, s.Namespace), s.removeShared(ctx, s.Namespace))
	}
	// Last: a driver that is gone untaints nothing, and must not keep the rest
	// from being removed.
	errs = append(errs, s.waitUntainted(ctx, mended))
	if s.Recorder != nil {
		recorded, err := s.Recorder.Stop()
		errs = append(errs, err, s.save(recorded))
	}
	return errors.Join(errs...)
}

// save keeps the timeline under the scenario's name, and as the last one.
func (s *Stage) save(recorded timeline.Timeline) error {
	var failed error
	for _, name := range []string{s.scenario.Name, timeline.Last} {
		path, err := timeline.Kept(name)
		if err == nil {
			err = recorded.Save(path)
		}
		failed = errors.Join(failed, err)
	}
	return failed
}
