package stage

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"maps"
	"os"
	"path"
	"slices"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"
	"sigs.k8s.io/e2e-framework/klient/decoder"
	"sigs.k8s.io/e2e-framework/klient/k8s"
	"sigs.k8s.io/e2e-framework/klient/k8s/resources"

	"github.com/dra-lab/dra-lab/driver/api"
)

const (
	// labConfig is the ConfigMap in which the lab says which images it
	// brought; keyTrainer is the trainer's.
	labConfig  = "lab"
	keyTrainer = "trainerImage"

	// placeholderImage stands in manifests for the trainer's image.
	placeholderImage = "trainer"
	// sharedVolume is the name of a volume that is to be the scenario's
	// folder on the disk that all nodes share.
	sharedVolume = "shared"
	// sharedRoot is where nodes have that disk.
	sharedRoot = "/var/lib/dra-lab/shared"
)

// trainerImage is the image that the lab has put on the nodes.
func (s *Stage) trainerImage(ctx context.Context) (string, error) {
	if image := os.Getenv(EnvTrainer); image != "" {
		return image, nil
	}
	m, err := s.Client.CoreV1().ConfigMaps(api.Namespace).Get(ctx, labConfig, metav1.GetOptions{})
	if err != nil {
		return "", fmt.Errorf("find the trainer's image: %w", err)
	}
	image := m.Data[keyTrainer]
	if image == "" {
		return "", fmt.Errorf("find the trainer's image: ConfigMap %s/%s has no %s", api.Namespace, labConfig, keyTrainer)
	}
	return image, nil
}

// sharedDir is a namespace's folder on the disk that all nodes share.
func sharedDir(namespace string) string { return path.Join(sharedRoot, namespace) }

// Create creates the objects of a manifest in the scenario's namespace. The
// trainer's image and the shared volume are filled in.
func (s *Stage) Create(ctx context.Context, manifest []byte) error {
	client, err := resources.New(s.config)
	if err != nil {
		return fmt.Errorf("create objects: %w", err)
	}
	err = decoder.DecodeEach(ctx, bytes.NewReader(manifest), decoder.CreateHandler(client),
		decoder.MutateNamespace(s.Namespace), decoder.MutateOption(s.fillIn))
	if err != nil {
		return fmt.Errorf("create objects: %w", err)
	}
	return nil
}

func (s *Stage) fillIn(object k8s.Object) error {
	switch o := object.(type) {
	case *corev1.Pod:
		s.fillInPod(&o.Spec)
	case *batchv1.Job:
		s.fillInPod(&o.Spec.Template.Spec)
	}
	return nil
}

func (s *Stage) fillInPod(spec *corev1.PodSpec) {
	for i := range spec.Containers {
		c := &spec.Containers[i]
		if c.Image == placeholderImage {
			// The image is on the nodes and nowhere else.
			c.Image, c.ImagePullPolicy = s.trainer, corev1.PullNever
		}
	}
	for i := range spec.Volumes {
		if v := &spec.Volumes[i]; v.Name == sharedVolume {
			kind := corev1.HostPathDirectoryOrCreate
			v.VolumeSource = corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: sharedDir(s.Namespace), Type: &kind}}
		}
	}
}

// AwaitJobs waits until every Job of the scenario has ended, and returns them.
func (s *Stage) AwaitJobs(ctx context.Context, d time.Duration) ([]batchv1.Job, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, d, fmt.Errorf("not within %s", d))
	defer cancel()
	client := s.Client.BatchV1().Jobs(s.Namespace)
	running := map[string]bool{}
	note := func(object any) {
		if job, ok := object.(*batchv1.Job); ok {
			running[job.Name] = !slices.ContainsFunc(job.Status.Conditions, func(c batchv1.JobCondition) bool {
				return (c.Type == batchv1.JobComplete || c.Type == batchv1.JobFailed) && c.Status == corev1.ConditionTrue
			})
		}
	}
	ended := func() bool { return !slices.Contains(slices.Collect(maps.Values(running)), true) }
	_, err := watchtools.UntilWithSync(ctx, listWatch("", client.List, client.Watch), &batchv1.Job{},
		func(store cache.Store) (bool, error) {
			for _, object := range store.List() {
				note(object)
			}
			return ended(), nil
		},
		func(e watch.Event) (bool, error) { note(e.Object); return ended(), nil })
	if err != nil {
		return nil, fmt.Errorf("wait for Jobs: %w", cmp.Or(context.Cause(ctx), err))
	}
	list, err := client.List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list Jobs: %w", err)
	}
	return list.Items, nil
}
