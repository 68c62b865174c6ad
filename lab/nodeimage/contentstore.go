package nodeimage

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/google/go-containerregistry/pkg/compression"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/dra-lab/dra-lab/lab/internal/ui"
)

// contentStep makes the directory that the node's containerd starts with: the
// control plane's images, imported but not unpacked. The containerd that goes
// into the node does it, running on the host for a few seconds with its state
// in a directory of its own. That needs no engine and no privileges.
//
// Only the names of the images must be in c now; its directories are read when
// the step is made.
func contentStep(version string, c *controlPlane, containerdDir string, from ...step) step {
	st := step{
		name:   "images",
		title:  "packing the control plane's images for " + version,
		inputs: []string{"zstd", "1"},
	}
	for _, made := range from {
		st.inputs = append(st.inputs, made.key())
	}
	for _, image := range c.inner() {
		st.inputs = append(st.inputs, image.ref)
	}
	st.make = func(ctx context.Context, out string, progress *ui.Step) error {
		dir, err := work(out)
		if err != nil {
			return err
		}
		archive := filepath.Join(dir, "layout")
		if err := writeLayout(ctx, archive, c.inner(), progress); err != nil {
			return err
		}
		progress.Update("importing into containerd")
		return importInto(ctx, containerdDir, archive, out)
	}
	return st
}

// writeLayout writes the images as an OCI layout. Layers are compressed with
// zstd: it takes a third of the space, and nodes unpack it faster than gzip.
func writeLayout(ctx context.Context, dir string, images []innerImage, progress *ui.Step) error {
	index, err := layout.Write(dir, empty.Index)
	if err != nil {
		return err
	}
	for _, inner := range images {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		progress.Update(inner.ref)
		image, err := inner.image()
		if err != nil {
			return fmt.Errorf("make image %q: %w", inner.ref, err)
		}
		// containerd names an imported image by this annotation.
		named := layout.WithAnnotations(map[string]string{"io.containerd.image.name": inner.ref})
		if err := index.AppendImage(image, named); err != nil {
			return fmt.Errorf("write image %q: %w", inner.ref, err)
		}
	}
	return nil
}

// image wraps the files of an inner image.
func (i innerImage) image() (v1.Image, error) {
	packedLayer, err := tarball.LayerFromOpener(
		func() (io.ReadCloser, error) { return packed(i.files), nil },
		tarball.WithCompression(compression.ZStd),
		tarball.WithMediaType(types.OCILayerZStd),
		tarball.WithCompressedCaching,
	)
	if err != nil {
		return nil, err
	}
	image := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	if image, err = mutate.AppendLayers(image, packedLayer); err != nil {
		return nil, err
	}
	return mutate.ConfigFile(image, withConfig(image, v1.Config{
		Env:        []string{searchPath},
		Entrypoint: i.entrypoint,
		User:       i.user,
		WorkingDir: "/",
	}))
}

const searchPath = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// withConfig returns the image's config file with other settings and the
// host's architecture. It panics on no error of its own: an image whose config
// cannot be read cannot be written either.
func withConfig(image v1.Image, config v1.Config) *v1.ConfigFile {
	file, err := image.ConfigFile()
	if err != nil {
		file = &v1.ConfigFile{}
	}
	file = file.DeepCopy()
	file.Architecture, file.OS = runtime.GOARCH, "linux"
	file.Config = config
	return file
}

// importInto runs containerd with the root directory out and imports the
// layout into it.
func importInto(ctx context.Context, containerdDir, archive, out string) (err error) {
	// Sockets have short names only, so not below the cache.
	state, err := os.MkdirTemp("", "dra-lab-containerd-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(state)) }()
	daemon, err := startContainerd(ctx, filepath.Join(containerdDir, "containerd"), out, state)
	if err != nil {
		return err
	}
	ctr := exec.CommandContext(ctx, filepath.Join(containerdDir, "ctr"), "--address", daemon.socket,
		"--namespace", "k8s.io", "images", "import",
		"--label", "io.cri-containerd.image=managed", // what the CRI plugin marks its images with
		"--all-platforms", "--no-unpack", "-")
	stream := packed(tree{{from: archive, modes: true}})
	defer stream.Close()
	ctr.Stdin = stream
	_, err = run(ctx, ctr, nil)
	if err = errors.Join(err, daemon.stop()); err != nil {
		return err
	}
	return keepOnly(out, "io.containerd.content.v1.content", "io.containerd.metadata.v1.bolt")
}

// A containerd is one that runs on the host for a moment.
type containerd struct {
	socket string
	cmd    *exec.Cmd
	log    *lineWriter
	exited chan struct{} // closed when the process has ended; err is set then
	err    error
}

// startContainerd starts containerd with nothing switched on but what an
// import needs, and waits until it answers.
func startContainerd(ctx context.Context, program, root, state string) (*containerd, error) {
	socket := filepath.Join(state, "c.sock")
	config := filepath.Join(state, "config.toml")
	text := fmt.Sprintf("version = 3\nroot = %q\nstate = %q\n"+
		"disabled_plugins = [\n"+
		"  \"io.containerd.cri.v1.images\", \"io.containerd.cri.v1.runtime\", \"io.containerd.grpc.v1.cri\",\n"+
		"  \"io.containerd.nri.v1.nri\", \"io.containerd.internal.v1.opt\", \"io.containerd.snapshotter.v1.native\",\n"+
		"  \"io.containerd.snapshotter.v1.blockfile\", \"io.containerd.snapshotter.v1.erofs\",\n"+
		"]\n[grpc]\naddress = %q\n[ttrpc]\naddress = %q\n[debug]\naddress = \"\"\n",
		root, filepath.Join(state, "state"), socket, socket+".ttrpc")
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		return nil, err
	}
	d := &containerd{socket: socket, log: &lineWriter{}, exited: make(chan struct{})}
	d.cmd = exec.CommandContext(ctx, program, "--config", config)
	d.cmd.Stdout, d.cmd.Stderr = d.log, d.log
	isolate(d.cmd)
	if err := d.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start containerd: %w", err)
	}
	go func() {
		d.err = d.cmd.Wait()
		close(d.exited)
	}()
	if err := d.ready(ctx, filepath.Join(filepath.Dir(program), "ctr")); err != nil {
		return nil, errors.Join(err, d.stop())
	}
	return d, nil
}

// ready waits until the daemon answers, at most half a minute.
func (d *containerd) ready(ctx context.Context, ctr string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, 30*time.Second, errors.New("no answer in 30 s"))
	defer cancel()
	retry := time.NewTicker(100 * time.Millisecond)
	defer retry.Stop()
	for {
		_, err := run(ctx, exec.CommandContext(ctx, ctr, "--address", d.socket, "version"), nil)
		if err == nil {
			return nil
		}
		select {
		case <-retry.C:
		case <-d.exited:
			return ui.WithDetail(fmt.Errorf("containerd ended: %w", d.err), "log of containerd", d.log.String())
		case <-ctx.Done():
			err = fmt.Errorf("wait for containerd: %w (last: %w)", context.Cause(ctx), err)
			return ui.WithDetail(err, "log of containerd", d.log.String())
		}
	}
}

// stop ends the daemon in good order, so that its database is whole, and
// waits for it.
func (d *containerd) stop() error {
	_ = d.cmd.Process.Signal(syscall.SIGTERM) // fails only if it has ended
	patience := time.NewTimer(20 * time.Second)
	defer patience.Stop()
	select {
	case <-d.exited:
		return nil
	case <-patience.C:
		_ = d.cmd.Process.Kill()
		<-d.exited
		return errors.New("containerd did not end when asked to")
	}
}

// keepOnly removes all entries of dir but the named ones, which must be there.
func keepOnly(dir string, names ...string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	kept := 0
	for _, entry := range entries {
		if strings.Contains(" "+strings.Join(names, " ")+" ", " "+entry.Name()+" ") {
			kept++
			continue
		}
		if err := os.RemoveAll(filepath.Join(dir, entry.Name())); err != nil {
			return err
		}
	}
	if kept != len(names) {
		return fmt.Errorf("%q has %d of the %d directories %v", dir, kept, len(names), names)
	}
	return nil
}
