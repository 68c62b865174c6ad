package host

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// errUnprivileged says that an engine works and runs no privileged containers,
// without which there is no node.
var errUnprivileged = errors.New("the engine does not run privileged containers")

// verify runs a privileged container and reports whether CAP_SYS_RESOURCE is
// missing in it. Nothing of the container and its image stays.
func (e *Engine) verify(ctx context.Context) (noSysResource bool, err error) {
	program, err := probeProgram(runtime.GOARCH)
	if err != nil {
		return false, err
	}
	if err := e.sweepProbes(ctx); err != nil {
		return false, err
	}
	// Names of its own, so that two of these at a time do not meet.
	unique := fmt.Sprintf("%d-%s", os.Getpid(), strings.ToLower(rand.Text()[:8]))
	tag := probeImage + ":" + unique
	archive, err := imageArchive(tag, "/probe", program)
	if err != nil {
		return false, err
	}
	load := e.Command(ctx, "load")
	load.Stdin = bytes.NewReader(archive)
	if _, err := output(load); err != nil {
		return false, fmt.Errorf("load probe image: %w", err)
	}
	defer func() {
		cleanup, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		if _, e := output(e.Command(cleanup, "rmi", "--force", tag)); e != nil {
			err = errors.Join(err, fmt.Errorf("remove probe image: %w", e))
		}
	}()
	_, err = output(e.Command(ctx, "run", "--rm", "--privileged", "--network=none",
		"--name="+probeContainer+unique, "--label="+temporaryLabel+"=probe", tag))
	var status *exec.ExitError
	switch {
	case err == nil:
		return false, nil
	case errors.As(err, &status) && status.ExitCode() == probeNoResource:
		return true, nil
	case errors.As(err, &status) && status.ExitCode() == probeUnprivileged:
		return false, errUnprivileged
	default:
		return false, fmt.Errorf("%w: %w", errUnprivileged, err)
	}
}

const (
	probeImage     = "localhost/dra-lab/probe" // the tag begins with the process that made it
	probeContainer = "dra-lab-probe-"          // the same follows
)

// sweepProbes removes what killed processes left in verify.
func (e *Engine) sweepProbes(ctx context.Context) error {
	containers, err := output(e.Command(ctx, "ps", "--all", "--filter=label="+temporaryLabel+"=probe", "--format={{.Names}}"))
	if err != nil {
		return fmt.Errorf("list probe containers: %w", err)
	}
	for _, unique := range abandoned(containers, probeContainer) {
		if _, err := output(e.Command(ctx, "rm", "--force", probeContainer+unique)); err != nil {
			return fmt.Errorf("remove probe container: %w", err)
		}
	}
	tags, err := output(e.Command(ctx, "images", "--filter=reference="+probeImage, "--format={{.Tag}}"))
	if err != nil {
		return fmt.Errorf("list probe images: %w", err)
	}
	for _, unique := range abandoned(tags, "") {
		if _, err := output(e.Command(ctx, "rmi", "--force", probeImage+":"+unique)); err != nil {
			return fmt.Errorf("remove probe image: %w", err)
		}
	}
	return nil
}

// abandoned returns, without prefix, the names in lines whose process is gone.
func abandoned(lines, prefix string) []string {
	var gone []string
	for name := range strings.FieldsSeq(lines) {
		unique := strings.TrimPrefix(name, prefix)
		digits, _, _ := strings.Cut(unique, "-")
		if pid, err := strconv.Atoi(digits); err == nil && commandLine(pid) == nil {
			gone = append(gone, unique)
		}
	}
	return gone
}

// imageArchive returns a container image with one program as a docker archive,
// which every engine can load.
func imageArchive(tag, path string, program []byte) ([]byte, error) {
	var layer bytes.Buffer
	w := tar.NewWriter(&layer)
	err := w.WriteHeader(&tar.Header{Name: path[1:], Mode: 0o755, Size: int64(len(program)), Typeflag: tar.TypeReg})
	if err == nil {
		_, err = w.Write(program)
	}
	// With its name inside, the image shares neither layer nor ID with another of
	// these: engines remove by ID, and would remove one under the other.
	if err == nil {
		err = w.WriteHeader(&tar.Header{Name: "name", Mode: 0o444, Size: int64(len(tag)), Typeflag: tar.TypeReg})
	}
	if err == nil {
		_, err = w.Write([]byte(tag))
	}
	if err = errors.Join(err, w.Close()); err != nil {
		return nil, fmt.Errorf("make probe image: %w", err)
	}
	content, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(layer.Bytes())), nil
	})
	if err != nil {
		return nil, fmt.Errorf("make probe image: %w", err)
	}
	image, err := mutate.AppendLayers(empty.Image, content)
	if err != nil {
		return nil, fmt.Errorf("make probe image: %w", err)
	}
	config, err := image.ConfigFile()
	if err != nil {
		return nil, fmt.Errorf("make probe image: %w", err)
	}
	config = config.DeepCopy()
	config.OS, config.Architecture = "linux", runtime.GOARCH
	config.Config = v1.Config{Entrypoint: []string{path}, WorkingDir: "/"}
	image, err = mutate.ConfigFile(image, config)
	if err != nil {
		return nil, fmt.Errorf("make probe image: %w", err)
	}
	ref, err := name.NewTag(tag)
	if err != nil {
		return nil, fmt.Errorf("make probe image: %w", err)
	}
	var archive bytes.Buffer
	if err := tarball.Write(ref, image, &archive); err != nil {
		return nil, fmt.Errorf("make probe image: %w", err)
	}
	return archive.Bytes(), nil
}
