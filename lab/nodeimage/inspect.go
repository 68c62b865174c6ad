package nodeimage

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/mod/semver"

	"github.com/dra-lab/dra-lab/lab/host"
	"github.com/dra-lab/dra-lab/lab/internal/ui"
)

// An Image is a node image in the engine.
type Image struct {
	Ref string `json:"ref"` // what to call it by
	ID  string `json:"id"`  // the engine's ID of its contents

	Kubernetes string `json:"kubernetes"` // of the control plane and kubeadm: v1.37.2
	Kubelet    string `json:"kubelet"`

	// What kind finds in the image to set up a cluster's network and default
	// StorageClass with. Without the first, somebody else must bring a network.
	DefaultCNI     bool `json:"defaultCNI"`
	DefaultStorage bool `json:"defaultStorage"`

	Built bool `json:"built"` // by this package, from source
}

// inspection is what a look into an image found. It holds as long as the
// image's ID does.
type inspection struct {
	Kubernetes, Kubelet        string
	DefaultCNI, DefaultStorage bool
}

// lookInside prints one fact per line. It runs in a container of the image.
const lookInside = `echo "kubernetes=$(cat /kind/version)"
echo "kubelet=$(kubelet --version)"
[ -s /kind/manifests/default-cni.yaml ] && echo cni=yes
[ -s /kind/manifests/default-storage.yaml ] && echo storage=yes
exit 0`

// Inspect says what the image ref brings: it starts a container of it, without
// network, that looks. What it found is remembered by the image's ID. An image
// that the engine does not have, or that is no node image, is an error.
func Inspect(ctx context.Context, eng Engine, ref string) (Image, error) {
	found, ok, err := lookUp(ctx, eng, ref)
	if err != nil {
		return Image{}, err
	}
	if !ok {
		err := fmt.Errorf("inspect image %q: the engine does not have it", ref)
		return Image{}, ui.WithHint(err, "see \"lab node-image list\", or let the lab choose by leaving the image out")
	}
	cache, err := host.CacheDir()
	if err != nil {
		return Image{}, err
	}
	return inspect(ctx, eng, ref, found, inspectionCache(cache))
}

// inspectionCache is where findings are remembered, one file per image.
func inspectionCache(cacheDir string) string {
	return filepath.Join(cacheDir, "nodeimage", "inspected")
}

func inspect(ctx context.Context, eng Engine, ref string, found engineImage, cacheDir string) (Image, error) {
	file := filepath.Join(cacheDir, strings.ReplaceAll(found.ID, ":", "-")+".json")
	inside, err := readInspection(file)
	if err != nil {
		out, err := run(ctx, eng.Command(ctx, "run", "--rm", temporary, "--network=none", "--entrypoint=/bin/sh",
			found.ID, "-c", lookInside), nil)
		if err != nil {
			return Image{}, fmt.Errorf("look into image %q: %w", ref, err)
		}
		if inside, err = parseInspection(out); err != nil {
			err = fmt.Errorf("image %q is not a node image: %w", ref, err)
			return Image{}, ui.WithHint(err, "use an image of kindest/node, or build one with \"lab node-image build\"")
		}
		_ = writeInspection(file, inside) // without it, the next look takes a second again
	}
	return Image{
		Ref: ref, ID: found.ID,
		Kubernetes: inside.Kubernetes, Kubelet: inside.Kubelet,
		DefaultCNI: inside.DefaultCNI, DefaultStorage: inside.DefaultStorage,
		Built: found.Config.Labels[labelKey] != "",
	}, nil
}

// parseInspection reads what lookInside printed.
func parseInspection(out string) (inspection, error) {
	var found inspection
	for line := range strings.Lines(out) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		switch name {
		case "kubernetes":
			found.Kubernetes = value
		case "kubelet":
			found.Kubelet = strings.TrimPrefix(value, "Kubernetes ")
		case "cni":
			found.DefaultCNI = true
		case "storage":
			found.DefaultStorage = true
		}
	}
	if !semver.IsValid(found.Kubernetes) {
		return inspection{}, fmt.Errorf("/kind/version has %q", found.Kubernetes)
	}
	if !semver.IsValid(found.Kubelet) {
		return inspection{}, fmt.Errorf("the kubelet calls its version %q", found.Kubelet)
	}
	return found, nil
}

func readInspection(file string) (inspection, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return inspection{}, err
	}
	var found inspection
	if err := json.Unmarshal(data, &found); err != nil {
		return inspection{}, err
	}
	if found.Kubernetes == "" {
		return inspection{}, errors.New("empty")
	}
	return found, nil
}

// writeInspection writes the file whole. It is a cache: losing it to a power
// cut costs a second.
func writeInspection(file string, found inspection) (err error) {
	data, err := json.Marshal(found)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	temp, err := os.CreateTemp(filepath.Dir(file), ".inspection-*")
	if err != nil {
		return err
	}
	_, err = temp.Write(data)
	err = errors.Join(err, temp.Close())
	if err == nil {
		err = os.Rename(temp.Name(), file)
	}
	if err != nil {
		return errors.Join(err, os.Remove(temp.Name()))
	}
	return nil
}

// List returns the node images that the engine has: those built by the lab and
// kind's own, sorted by reference. Images of these names that turn out to be
// no node images are left out.
func List(ctx context.Context, eng Engine) ([]Image, error) {
	refs := map[string]bool{}
	for _, repository := range []string{builtRepository, kindRepository} {
		out, err := run(ctx, eng.Command(ctx, "image", "ls", "--filter", "reference="+repository,
			"--format", "{{.Repository}} {{.Tag}} {{.Digest}} {{.ID}}"), nil)
		if err != nil {
			return nil, fmt.Errorf("list node images: %w", err)
		}
		for line := range strings.Lines(out) {
			if ref := listedRef(line); ref != "" {
				refs[ref] = true
			}
		}
	}
	var images []Image
	for ref := range refs {
		image, err := Inspect(ctx, eng, ref)
		if ctx.Err() != nil {
			return nil, fmt.Errorf("list node images: %w", context.Cause(ctx))
		}
		if err == nil {
			images = append(images, image)
		}
	}
	slices.SortFunc(images, func(a, b Image) int { return strings.Compare(a.Ref, b.Ref) })
	return images, nil
}

// listedRef makes a reference of a line "repository tag digest id", where what
// the image lacks is <none>.
func listedRef(line string) string {
	fields := strings.Fields(line)
	if len(fields) != 4 {
		return ""
	}
	repository, tag, digest := fields[0], fields[1], fields[2]
	switch {
	case repository == "<none>":
		return ""
	case tag != "<none>":
		return repository + ":" + tag
	case digest != "<none>":
		return repository + "@" + digest
	}
	return ""
}
