// Scenario config: a claim's configuration reaches the GPU and its programs, and
// a wrong one is refused when it is written.
//
// Given configurations for the driver, right and wrong ones, when they are
// written in a claim, a claim template or a device class, then the API server
// refuses the wrong ones and takes the right ones. Given a claim that wants its
// GPU for one process at a time, when two Pods share it, then the program of the
// second is refused as long as the first one's runs.

package scenarios

import (
	"bytes"
	"context"
	_ "embed"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/e2e-framework/pkg/envconf"
	"sigs.k8s.io/e2e-framework/pkg/features"

	"github.com/dra-lab/dra-lab/driver/api"
	"github.com/dra-lab/dra-lab/driver/api/v1alpha1"
	"github.com/dra-lab/dra-lab/lab/timeline"
	"github.com/dra-lab/dra-lab/scenarios/internal/stage"
)

//go:embed config.yaml
var configManifest []byte //nolint:gochecknoglobals // filled by the compiler

const exclusiveClaim = "exclusive-gpu"

type configured struct {
	*stage.Stage
	grant  stage.Grant
	second []byte // the second Pod
}

func TestConfig(t *testing.T) {
	s := &configured{Stage: stage.New(t, "config")}
	s.Play(t, features.New("config").
		Setup(s.Begin).
		Assess("the API server tells right from wrong", s.write).
		Assess("a program has its GPU for itself", s.startFirst).
		Assess("a second program is refused", s.startSecond).
		Assess("the claim is unprepared", s.stop))
}

// write tries all examples in all places, without leaving any.
func (s *configured) write(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
	dry := metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}
	for name, example := range v1alpha1.Examples() {
		config := resourcev1.DeviceConfiguration{Opaque: &resourcev1.OpaqueDeviceConfiguration{
			Driver: api.DriverName, Parameters: runtime.RawExtension{Raw: []byte(example.Parameters)},
		}}
		spec := resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{
			Requests: []resourcev1.DeviceRequest{{Name: "gpu", Exactly: &resourcev1.ExactDeviceRequest{DeviceClassName: api.DeviceClassName}}},
			Config:   []resourcev1.DeviceClaimConfiguration{{DeviceConfiguration: config}},
		}}
		meta := metav1.ObjectMeta{Name: "tried"}
		resources := s.Client.ResourceV1()
		for what, create := range map[string]func() error{
			"claim": func() error {
				_, err := resources.ResourceClaims(s.Namespace).Create(ctx, &resourcev1.ResourceClaim{ObjectMeta: meta, Spec: spec}, dry)
				return err
			},
			"claim template": func() error {
				_, err := resources.ResourceClaimTemplates(s.Namespace).Create(ctx, &resourcev1.ResourceClaimTemplate{
					ObjectMeta: meta, Spec: resourcev1.ResourceClaimTemplateSpec{Spec: spec},
				}, dry)
				return err
			},
			"device class": func() error {
				_, err := resources.DeviceClasses().Create(ctx, &resourcev1.DeviceClass{
					ObjectMeta: meta, Spec: resourcev1.DeviceClassSpec{Config: []resourcev1.DeviceClassConfiguration{{DeviceConfiguration: config}}},
				}, dry)
				return err
			},
		} {
			err := create()
			if refused := example.Says != "" && !example.Late; (err != nil) != refused {
				t.Errorf("%s with configuration %q: got %v, want it to be refused: %t", what, name, err, refused)
			}
			if err != nil && !bytes.Contains([]byte(err.Error()), []byte("configuration for "+api.DriverName)) {
				t.Errorf("%s with configuration %q: refused for another reason: %v", what, name, err)
			}
		}
	}
	return ctx
}

func (s *configured) startFirst(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
	parts := bytes.SplitN(configManifest, []byte("\n---\n"), 3)
	s.second = parts[2]
	for _, manifest := range parts[:2] {
		if err := s.Create(ctx, manifest); err != nil {
			t.Fatal(err)
		}
	}
	s.grant = s.AwaitGrant(ctx, t, stage.Claim(exclusiveClaim))
	s.AwaitProgram(ctx, t, "first", s.grant)
	s.Await(ctx, t, soon, "the driver's word that it is for one process",
		stage.Is(timeline.PrepareStep, stage.Claim(exclusiveClaim), stage.Says(s.grant.GPU.Name+" for one process at a time")))
	return ctx
}

func (s *configured) startSecond(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
	if err := s.Create(ctx, s.second); err != nil {
		t.Fatal(err)
	}
	s.Await(ctx, t, soon, "the second Pod to fail", stage.Is(timeline.PodFailed, stage.Pod("second")))
	logs, err := s.Client.CoreV1().Pods(s.Namespace).GetLogs("second", &corev1.PodLogOptions{}).DoRaw(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if want := fmt.Sprintf("use %s: the GPU is for one process at a time", s.grant.GPU.Name); !bytes.Contains(logs, []byte(want)) {
		t.Errorf("the second program said %q, want %q", logs, want)
	}
	return ctx
}

func (s *configured) stop(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
	for _, pod := range []string{"second", "first"} {
		if err := s.Client.CoreV1().Pods(s.Namespace).Delete(ctx, pod, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	s.Await(ctx, t, soon, "unprepare", stage.Is(timeline.Unprepared, stage.Claim(exclusiveClaim)))
	s.CheckNoTrace(ctx, t, s.grant)
	return ctx
}
