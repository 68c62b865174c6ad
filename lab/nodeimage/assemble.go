package nodeimage

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// Labels of the images that this package makes. They say how an image came
// about, never what it brings: images derived from it inherit them.
const (
	labelKey        = "dra-lab.node.key" // hash of everything the image was made from
	labelKubernetes = "dra-lab.node.kubernetes"
	labelKubelet    = "dra-lab.node.kubelet"
)

func labels(key, kubernetes, kubelet string) map[string]string {
	return map[string]string{labelKey: key, labelKubernetes: kubernetes, labelKubelet: kubelet}
}

// builtRepository is the name of the images that this package makes.
const builtRepository = "dra-lab/node"

// assemble puts the layers together and hands the image to the engine as ref.
// It is streamed: nothing of its 1 GB is written on the way.
func assemble(ctx context.Context, eng Engine, ref string, layers []tree, labels map[string]string) error {
	image := v1.Image(empty.Image)
	for _, files := range layers {
		var err error
		if image, err = mutate.AppendLayers(image, &layer{tree: files}); err != nil {
			return fmt.Errorf("assemble image %q: %w", ref, err)
		}
	}
	image, err := mutate.ConfigFile(image, withConfig(image, v1.Config{
		Env:        []string{searchPath, "container=docker"}, // systemd looks for the second
		Entrypoint: []string{"/usr/local/bin/entrypoint", "/sbin/init"},
		StopSignal: "SIGRTMIN+3", // systemd takes SIGTERM for something else
		Labels:     labels,
	}))
	if err != nil {
		return fmt.Errorf("assemble image %q: %w", ref, err)
	}
	tag, err := name.NewTag(ref)
	if err != nil {
		return fmt.Errorf("assemble image %q: %w", ref, err)
	}
	r, w := io.Pipe()
	written := make(chan error, 1)
	go func() {
		err := tarball.Write(tag, image, w)
		w.CloseWithError(err)
		written <- err
	}()
	err = load(ctx, eng, r)
	r.CloseWithError(errors.New("the engine stopped reading"))
	if writeErr := <-written; err == nil {
		err = writeErr
	}
	if err != nil {
		return fmt.Errorf("load image %q into the engine: %w", ref, err)
	}
	return nil
}

// replaceKubelet makes the image ref out of another one with one more layer:
// another kubelet.
func replaceKubelet(ctx context.Context, eng Engine, base, kubelet, ref string, labels map[string]string) (err error) {
	out, err := run(ctx, eng.Command(ctx, "create", temporary, base), nil)
	if err != nil {
		return fmt.Errorf("create container of %q: %w", base, err)
	}
	container := strings.TrimSpace(out)
	defer func() {
		cleanup, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
		defer cancel()
		_, rmErr := run(cleanup, eng.Command(cleanup, "rm", "--force", container), nil)
		err = errors.Join(err, rmErr)
	}()
	if _, err := run(ctx, eng.Command(ctx, "cp", kubelet, container+":/usr/bin/kubelet"), nil); err != nil {
		return fmt.Errorf("copy kubelet into image %q: %w", ref, err)
	}
	// The container's label must not become the image's, or every node made
	// from it would count as temporary.
	args := []string{"commit", "--change", "LABEL dra-lab.temporary="}
	for _, label := range slices.Sorted(maps.Keys(labels)) {
		args = append(args, "--change", "LABEL "+label+"="+strconv.Quote(labels[label]))
	}
	if _, err := run(ctx, eng.Command(ctx, append(args, container, ref)...), nil); err != nil {
		return fmt.Errorf("commit image %q: %w", ref, err)
	}
	return nil
}
