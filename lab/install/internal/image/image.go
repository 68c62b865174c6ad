package image

import (
	"archive/tar"
	"bytes"
	"debug/elf"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// tagLength is how much of the content's hash names an image: 64 bits, far
// more than the images that ever meet on one node.
const tagLength = 16

// Image is a container image in memory. It is immutable, so it may be written
// to several nodes at once.
type Image struct {
	tag   name.Tag
	image v1.Image
}

// Build makes the image repository:<content hash> that runs program as
// /<file name of program>. The repository must be complete, as in
// "docker.io/dra-lab/driver". Nothing is compressed: the image goes over a
// local pipe and is stored unpacked anyhow. What it may need is as for Closure.
func Build(repository, program string, may ...string) (*Image, error) {
	libraries, err := Closure(program, may...)
	if err != nil {
		return nil, fmt.Errorf("build image %s: %w", repository, err)
	}
	architecture, err := architectureOf(program)
	if err != nil {
		return nil, fmt.Errorf("build image %s: %w", repository, err)
	}
	entrypoint := "/" + filepath.Base(program)
	sources := map[string]string{entrypoint: program}
	for _, library := range libraries {
		sources[library] = library
	}
	layer, err := archive(sources)
	if err != nil {
		return nil, fmt.Errorf("build image %s: %w", repository, err)
	}
	image, err := assemble(layer, architecture, entrypoint)
	if err != nil {
		return nil, fmt.Errorf("build image %s: %w", repository, err)
	}
	digest, err := image.Digest()
	if err != nil {
		return nil, fmt.Errorf("build image %s: hash its content: %w", repository, err)
	}
	tag, err := name.NewTag(repository+":"+digest.Hex[:tagLength], name.StrictValidation)
	if err != nil {
		return nil, fmt.Errorf("build image %s: %w", repository, err)
	}
	return &Image{tag: tag, image: image}, nil
}

// Ref is the full reference, as containerd lists it and Pods name it.
func (i *Image) Ref() string { return i.tag.String() }

// Write writes images as one archive that docker and containerd load. The
// bytes of an archive with one image are the same every time.
func Write(w io.Writer, images ...*Image) error {
	byTag := make(map[name.Reference]v1.Image, len(images))
	refs := make([]string, 0, len(images))
	for _, i := range images {
		byTag[i.tag] = i.image
		refs = append(refs, i.Ref())
	}
	if err := tarball.MultiRefWrite(byTag, w); err != nil {
		return fmt.Errorf("write images %s: %w", strings.Join(refs, ", "), err)
	}
	return nil
}

func assemble(layer []byte, architecture, entrypoint string) (v1.Image, error) {
	image, err := mutate.AppendLayers(empty.Image, static.NewLayer(layer, types.DockerUncompressedLayer))
	if err != nil {
		return nil, fmt.Errorf("add layer: %w", err)
	}
	config, err := image.ConfigFile()
	if err != nil {
		return nil, fmt.Errorf("read image config: %w", err)
	}
	config = config.DeepCopy()
	config.OS = "linux"
	config.Architecture = architecture
	config.Created = v1.Time{Time: epoch()}
	config.Config.Entrypoint = []string{entrypoint}
	config.Config.WorkingDir = "/"
	if image, err = mutate.ConfigFile(image, config); err != nil {
		return nil, fmt.Errorf("set image config: %w", err)
	}
	return image, nil
}

// epoch is the date of everything in an image: the real one would make every
// build another image.
func epoch() time.Time { return time.Unix(0, 0).UTC() }

// archive makes a layer of sources, which maps paths in the image to files on
// this machine. Links are followed.
func archive(sources map[string]string) ([]byte, error) {
	var targets []string
	directories := map[string]bool{"/": true}
	for target := range sources {
		targets = append(targets, target)
		for d := path.Dir(target); !directories[d]; d = path.Dir(d) {
			directories[d] = true
			targets = append(targets, d)
		}
	}
	slices.Sort(targets)
	var buffer bytes.Buffer
	w := tar.NewWriter(&buffer)
	for _, target := range targets {
		header := &tar.Header{
			Typeflag: tar.TypeDir,
			Name:     target[1:] + "/",
			Mode:     0o755,
			ModTime:  epoch(),
			Format:   tar.FormatUSTAR,
		}
		var data []byte
		if source, ok := sources[target]; ok {
			var err error
			if data, err = os.ReadFile(source); err != nil {
				return nil, fmt.Errorf("read %q: %w", source, err)
			}
			header.Typeflag, header.Name, header.Size = tar.TypeReg, target[1:], int64(len(data))
			// The content of a file is its own growth step: without this the
			// buffer would double past the largest one.
			buffer.Grow(len(data) + 4096)
		}
		if err := w.WriteHeader(header); err != nil {
			return nil, fmt.Errorf("archive %q: %w", target, err)
		}
		if _, err := w.Write(data); err != nil {
			return nil, fmt.Errorf("archive %q: %w", target, err)
		}
	}
	if err := w.Close(); err != nil {
		return nil, fmt.Errorf("close archive: %w", err)
	}
	return buffer.Bytes(), nil
}

// architectureOf says for which machine program was built, in the words of
// image configs.
func architectureOf(program string) (string, error) {
	file, err := elf.Open(program)
	if err != nil {
		return "", fmt.Errorf("read %q as an ELF file: %w", program, err)
	}
	defer file.Close() //nolint:errcheck // only read
	switch file.Machine {
	case elf.EM_X86_64:
		return "amd64", nil
	case elf.EM_AARCH64:
		return "arm64", nil
	}
	return "", fmt.Errorf("read %q: built for %s, want amd64 or arm64", program, file.Machine)
}
