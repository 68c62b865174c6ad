package stage

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"os"
	"path"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
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

// CreatePods creates so many Pods of one manifest in the scenario's namespace,
// all at once.
func (s *Stage) CreatePods(ctx context.Context, manifest []byte, count int) error {
	var pod corev1.Pod
	if err := decoder.Decode(bytes.NewReader(manifest), &pod, decoder.MutateOption(s.fillIn)); err != nil {
		return fmt.Errorf("create Pods: %w", err)
	}
	var creating errgroup.Group
	for range count {
		creating.Go(func() error {
			_, err := s.Client.CoreV1().Pods(s.Namespace).Create(ctx, &pod, metav1.CreateOptions{})
			return err
		})
	}
	if err := creating.Wait(); err != nil {
		return fmt.Errorf("create Pods: %w", err)
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
	client := s.Client.BatchV1().Jobs(s.Namespace)
	err := awaitAll(ctx, d, "Jobs", listWatch("", client.List, client.Watch), &batchv1.Job{}, func(jobs map[string]*batchv1.Job) bool {
		for _, job := range jobs {
			if !Ended(job) {
				return false
			}
		}
		return true
	})
	if err != nil {
		return nil, err
	}
	list, err := client.List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list Jobs: %w", err)
	}
	return list.Items, nil
}

// Ended says whether a Job has, one way or the other.
func Ended(job *batchv1.Job) bool {
	return slices.ContainsFunc(job.Status.Conditions, func(c batchv1.JobCondition) bool {
		return (c.Type == batchv1.JobComplete || c.Type == batchv1.JobFailed) && c.Status == corev1.ConditionTrue
	})
}

// AwaitReady waits until so many Pods of the scenario are Ready, or with 0 until
// there are none at all.
func (s *Stage) AwaitReady(ctx context.Context, d time.Duration, count int) error {
	client := s.Client.CoreV1().Pods(s.Namespace)
	what := fmt.Sprintf("%d Pods to be Ready", count)
	return awaitAll(ctx, d, what, listWatch("", client.List, client.Watch), &corev1.Pod{}, func(pods map[string]*corev1.Pod) bool {
		ready := 0
		for _, p := range pods {
			if isReady(*p) {
				ready++
			}
		}
		return ready == count && (count > 0 || len(pods) == 0)
	})
}

// AwaitDevices waits until a driver has published so many devices of a node.
func (s *Stage) AwaitDevices(ctx context.Context, d time.Duration, driver, node string, count int) error {
	client := s.Client.ResourceV1().ResourceSlices()
	what := fmt.Sprintf("%d devices of driver %s", count, driver)
	selector := resourcev1.ResourceSliceSelectorDriver + "=" + driver + "," + resourcev1.ResourceSliceSelectorNodeName + "=" + node
	return awaitAll(ctx, d, what, listWatch(selector, client.List, client.Watch), &resourcev1.ResourceSlice{}, func(all map[string]*resourcev1.ResourceSlice) bool {
		published := 0
		for _, slice := range all {
			published += len(slice.Spec.Devices)
		}
		return published == count
	})
}

// named is an object with a name.
type named interface {
	runtime.Object
	GetName() string
}

// awaitAll waits until all objects of a list, by name, are as they should be.
func awaitAll[P named](ctx context.Context, d time.Duration, what string, lw *cache.ListWatch, kind P, done func(map[string]P) bool) error {
	ctx, cancel := context.WithTimeoutCause(ctx, d, fmt.Errorf("not within %s", d))
	defer cancel()
	all := map[string]P{}
	_, err := watchtools.UntilWithSync(ctx, lw, kind,
		func(store cache.Store) (bool, error) {
			for _, object := range store.List() {
				if o, ok := object.(P); ok {
					all[o.GetName()] = o
				}
			}
			return done(all), nil
		},
		func(e watch.Event) (bool, error) {
			if o, ok := e.Object.(P); ok {
				all[o.GetName()] = o
				if e.Type == watch.Deleted {
					delete(all, o.GetName())
				}
			}
			return done(all), nil
		})
	if err != nil {
		return fmt.Errorf("wait for %s: %w", what, cmp.Or(context.Cause(ctx), err))
	}
	return nil
}

// uninstallTime bounds the removal of what a scenario has installed.
const uninstallTime = time.Minute

// Install creates the objects of a manifest where that says, outside of the
// scenario's namespace, after whatever a run that was killed left of them. The
// caller has to Uninstall them.
func (s *Stage) Install(ctx context.Context, manifest []byte) error {
	if err := s.Uninstall(ctx, manifest); err != nil {
		return err
	}
	client, err := resources.New(s.config)
	if err != nil {
		return fmt.Errorf("install objects: %w", err)
	}
	if err := decoder.DecodeEach(ctx, bytes.NewReader(manifest), decoder.CreateHandler(client), decoder.MutateOption(s.fillIn)); err != nil {
		return fmt.Errorf("install objects: %w", err)
	}
	return nil
}

// Uninstall deletes the objects of a manifest that are there, and waits until
// they are gone.
func (s *Stage) Uninstall(ctx context.Context, manifest []byte) error {
	ctx, cancel := context.WithTimeoutCause(ctx, uninstallTime, fmt.Errorf("not within %s", uninstallTime))
	defer cancel()
	client, err := resources.New(s.config)
	if err != nil {
		return fmt.Errorf("uninstall objects: %w", err)
	}
	err = decoder.DecodeEach(ctx, bytes.NewReader(manifest), func(ctx context.Context, object k8s.Object) error {
		if err := client.Delete(ctx, object); apierrors.IsNotFound(err) {
			return nil
		} else if err != nil {
			return err
		}
		for {
			err := client.Get(ctx, object.GetName(), object.GetNamespace(), object)
			switch {
			case apierrors.IsNotFound(err):
				return nil
			case err != nil:
				return err
			}
			select {
			case <-ctx.Done():
				return fmt.Errorf("%s is still there: %w", object.GetName(), context.Cause(ctx))
			case <-time.After(200 * time.Millisecond):
			}
		}
	})
	if err != nil {
		return fmt.Errorf("uninstall objects: %w", err)
	}
	return nil
}
