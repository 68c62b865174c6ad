package install_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/dra-lab/dra-lab/driver/api"
	"github.com/dra-lab/dra-lab/lab/install"
	"github.com/dra-lab/dra-lab/lab/internal/live"
	"github.com/dra-lab/dra-lab/lab/internal/ui"
)

// logged is a UI that writes to the test's log.
func logged(t *testing.T) *ui.UI { return ui.New(t.Output(), t.Output(), 1) }

// options takes artifacts and GPUs from DRA_LAB_ARTIFACTS and DRA_LAB_GPUS.
func options(t *testing.T) install.Options {
	t.Helper()
	gpus, err := install.ParseGPUs(os.Getenv("DRA_LAB_GPUS"))
	if err != nil {
		t.Fatal(err)
	}
	directory := os.Getenv("DRA_LAB_ARTIFACTS")
	if directory == "" {
		directory = filepath.Join("..", "..", "bin")
	}
	return install.Options{Artifacts: directory, GPUs: gpus}
}

func TestLiveInstallIsQuickWhenNothingChanged(t *testing.T) {
	c, _ := live.Cluster(t)
	// Given a lab that is installed,
	if err := install.Install(t.Context(), c, options(t), logged(t)); err != nil {
		t.Fatal(err)
	}
	// when it is installed again, then that takes no time to speak of: 0.5
	// seconds on a quiet machine, and the limit allows for a busy one.
	start := time.Now()
	if err := install.Install(t.Context(), c, options(t), logged(t)); err != nil {
		t.Fatal(err)
	}
	took := time.Since(start)
	t.Logf("second install took %s", took)
	if limit := 5 * time.Second; took > limit {
		t.Errorf("second install took %s, want at most %s", took, limit)
	}
}

func TestLiveStatusShowsHealthyGPUs(t *testing.T) {
	c, _ := live.Cluster(t)
	status, err := install.GetStatus(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	if err := status.WriteText(t.Output()); err != nil {
		t.Fatal(err)
	}
	if status.Driver.Ready == 0 || status.Driver.Ready != status.Driver.Desired {
		t.Errorf("driver %d of %d ready", status.Driver.Ready, status.Driver.Desired)
	}
	uuids := map[string]bool{}
	for _, n := range status.Nodes {
		for _, d := range n.Devices {
			if d.Health != api.HealthHealthy || len(d.Taints) > 0 || d.UUID == "" || d.Product == "" {
				t.Errorf("node %s: device %+v, want a healthy one with UUID and product", n.Name, d)
			}
			uuids[d.UUID] = true
		}
	}
	if want := len(options(t).GPUs.Inventory().Profiles()) * status.Driver.Desired; len(uuids) != want {
		t.Errorf("%d different GPUs, want %d", len(uuids), want)
	}
}

func TestLiveDriverMayOnlyWriteSlicesOfItsNode(t *testing.T) {
	c, admin := live.Cluster(t)
	ctx := t.Context()
	// Given the token that the driver Pod of one node has,
	pods, err := admin.CoreV1().Pods(api.Namespace).List(ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=" + api.AppLabel})
	if err != nil {
		t.Fatal(err)
	}
	if len(pods.Items) < 2 {
		t.Skipf("NOT RUN: needs two nodes with a driver, have %d", len(pods.Items))
	}
	own, other := pods.Items[0], pods.Items[1].Spec.NodeName
	token, err := admin.CoreV1().ServiceAccounts(api.Namespace).CreateToken(ctx, own.Spec.ServiceAccountName, &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{
			BoundObjectRef: &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: own.Name, UID: own.UID},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	config, err := c.RESTConfig()
	if err != nil {
		t.Fatal(err)
	}
	config = rest.AnonymousClientConfig(config)
	config.BearerToken = token.Status.Token
	driver, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	write := func(node, driverName string) error {
		_, err := driver.ResourceV1().ResourceSlices().Create(ctx, &resourcev1.ResourceSlice{
			ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"},
			Spec: resourcev1.ResourceSliceSpec{
				Driver: driverName, NodeName: &node,
				Pool: resourcev1.ResourcePool{Name: "test", ResourceSliceCount: 1},
			},
		}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err
	}

	// then it may write for its own node, and neither for another nor as
	// another driver,
	if err := write(own.Spec.NodeName, api.DriverName); err != nil {
		t.Errorf("write for the own node: %v", err)
	}
	if err := write(other, api.DriverName); err == nil || !strings.Contains(err.Error(), "may only write the ResourceSlices of that node") {
		t.Errorf("write for another node: %v, want a refusal", err)
	}
	if err := write(own.Spec.NodeName, "nic.example"); err == nil || !strings.Contains(err.Error(), "of gpu.lab.example") {
		t.Errorf("write as another driver: %v, want a refusal", err)
	}
	// and delete only its own.
	slices, err := admin.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{FieldSelector: resourcev1.ResourceSliceSelectorNodeName + "=" + other})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range slices.Items {
		err := driver.ResourceV1().ResourceSlices().Delete(ctx, s.Name, metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}})
		if err == nil {
			t.Errorf("delete slice %s of another node: allowed, want a refusal", s.Name)
		}
	}
}

// pause is an image that every node of kind has.
func pause(t *testing.T, client *kubernetes.Clientset) string {
	t.Helper()
	nodes, err := client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range nodes.Items {
		for _, image := range n.Status.Images {
			for _, name := range image.Names {
				if strings.Contains(name, "/pause:") {
					return name
				}
			}
		}
	}
	t.Fatal("no node lists a pause image")
	return ""
}

func TestLivePodWithClaimIsReadySoon(t *testing.T) {
	_, client := live.Cluster(t)
	ctx := t.Context()
	const namespace, runs = "default", 5
	template := &resourcev1.ResourceClaimTemplate{
		ObjectMeta: metav1.ObjectMeta{Name: "live-test", Namespace: namespace},
		Spec: resourcev1.ResourceClaimTemplateSpec{Spec: resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{
			Requests: []resourcev1.DeviceRequest{{Name: "gpu", Exactly: &resourcev1.ExactDeviceRequest{DeviceClassName: api.DeviceClassName}}},
		}}},
	}
	if _, err := client.ResourceV1().ResourceClaimTemplates(namespace).Create(ctx, template, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := client.ResourceV1().ResourceClaimTemplates(namespace).Delete(context.WithoutCancel(ctx), template.Name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	var all []time.Duration
	for i := range runs {
		all = append(all, runPod(t, client, fmt.Sprintf("live-test-%d", i), template.Name, pause(t, client)))
	}
	slices.Sort(all)
	t.Logf("create to Ready: median %s, all %v", all[runs/2], all)
	if all[runs/2] > 1500*time.Millisecond {
		t.Errorf("Pod with a claim was ready after %s (median), want at most 1.5s", all[runs/2])
	}
}

// runPod runs a Pod with a claim and returns how long it took to be ready. The
// Pod is gone at the end.
func runPod(t *testing.T, client *kubernetes.Clientset, name, template, image string) time.Duration {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	pods := client.CoreV1().Pods("default")
	events, err := pods.Watch(ctx, metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", name).String()})
	if err != nil {
		t.Fatal(err)
	}
	defer events.Stop()
	// Not 0: that would forget the Pod before its node has unprepared the claim,
	// and the driver refuses the next claim for a GPU that is still held.
	grace := int64(1)
	t.Cleanup(func() {
		err := pods.Delete(context.WithoutCancel(ctx), name, metav1.DeleteOptions{GracePeriodSeconds: &grace})
		if err != nil && !apierrors.IsNotFound(err) {
			t.Error(err)
		}
	})
	start := time.Now()
	_, err = pods.Create(ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{
			ResourceClaims: []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimTemplateName: &template}},
			Containers: []corev1.Container{{
				Name: "main", Image: image, ImagePullPolicy: corev1.PullNever,
				Resources: corev1.ResourceRequirements{Claims: []corev1.ResourceClaim{{Name: "gpu"}}},
			}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var ready time.Duration
	for event := range events.ResultChan() {
		pod, ok := event.Object.(*corev1.Pod)
		if !ok {
			t.Fatalf("watch Pod %s: %v", name, event.Object)
		}
		if event.Type == watch.Deleted {
			return ready
		}
		isReady := slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
		})
		if isReady && ready == 0 {
			ready = time.Since(start)
			if err := pods.Delete(ctx, name, metav1.DeleteOptions{GracePeriodSeconds: &grace}); err != nil {
				t.Fatal(err)
			}
		}
	}
	t.Fatalf("watch Pod %s: ended before the Pod was gone (ready after %s)", name, ready)
	return 0
}
