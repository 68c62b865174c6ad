package nodeimage

import (
	"context"
	"fmt"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"strings"

	"golang.org/x/mod/semver"

	"github.com/dra-lab/dra-lab/lab/internal/ui"
)

// requiredImages are the images that kubeadm of some version starts a cluster
// with, by the last part of their name ("etcd", "coredns").
type requiredImages map[string]string

// requiredImagesStep asks kubeadm which images it wants. It needs no network
// for a version that is given in full.
func requiredImagesStep(version string, kubernetes step, kubernetesDir string) step {
	return step{
		name:   "required-images",
		title:  "asking kubeadm " + version + " for its images",
		inputs: []string{version, kubernetes.key()},
		make: func(ctx context.Context, out string, _ *ui.Step) error {
			cmd := exec.CommandContext(ctx, filepath.Join(kubernetesDir, "kubeadm"),
				"config", "images", "list", "--kubernetes-version", version)
			text, err := run(ctx, cmd, nil)
			if err != nil {
				return err
			}
			if _, err := parseRequiredImages(text); err != nil {
				return err
			}
			return writeFile(filepath.Join(out, "list"), []byte(text), 0o644)
		},
	}
}

// parseRequiredImages reads what "kubeadm config images list" prints: one
// reference per line.
func parseRequiredImages(text string) (requiredImages, error) {
	images := requiredImages{}
	for line := range strings.Lines(text) {
		ref := strings.TrimSpace(line)
		if ref == "" {
			continue
		}
		if imageTag(ref) == "" {
			return nil, fmt.Errorf("read kubeadm's list of images: %q has no tag", ref)
		}
		images[path.Base(strings.TrimSuffix(ref, ":"+imageTag(ref)))] = ref
	}
	for _, name := range append(kubernetesPrograms(), "etcd", "coredns", "pause") {
		if images[name] == "" {
			return nil, fmt.Errorf("read kubeadm's list of images: no image for %q", name)
		}
	}
	return images, nil
}

// kubernetesPrograms are the parts of Kubernetes that run in containers.
func kubernetesPrograms() []string {
	return []string{"kube-apiserver", "kube-controller-manager", "kube-scheduler", "kube-proxy"}
}

// companionVersion returns the version of a Go module for the tag of the image
// that it is published in. The image of CoreDNS v1.14.6 is tagged v1.14.6,
// that of etcd v3.7.0 3.7.0-0, where the last number counts rebuilds.
func companionVersion(tag string) (string, error) {
	version := "v" + strings.TrimPrefix(regexp.MustCompile(`-\d+$`).ReplaceAllString(tag, ""), "v")
	if !semver.IsValid(version) {
		return "", fmt.Errorf("tag %q is no version", tag)
	}
	return version, nil
}

// An inner image is one that the node's containerd holds.
type innerImage struct {
	ref        string
	files      tree
	entrypoint []string
	user       string
}

// controlPlane lists the images that a node holds, round the programs in the
// given directories.
type controlPlane struct {
	images                                      requiredImages
	kubernetes, etcd, coredns, pause, proxyRoot string
}

func (c controlPlane) inner() []innerImage {
	const bin = "usr/local/bin/"
	return []innerImage{
		{ref: c.images["kube-apiserver"], files: tree{{from: filepath.Join(c.kubernetes, "kube-apiserver"), to: bin + "kube-apiserver"}}},
		{ref: c.images["kube-controller-manager"], files: tree{{from: filepath.Join(c.kubernetes, "kube-controller-manager"), to: bin + "kube-controller-manager"}}},
		{ref: c.images["kube-scheduler"], files: tree{{from: filepath.Join(c.kubernetes, "kube-scheduler"), to: bin + "kube-scheduler"}}},
		{ref: c.images["kube-proxy"], files: tree{
			{from: c.proxyRoot, modes: true},
			{from: filepath.Join(c.kubernetes, "kube-proxy"), to: bin + "kube-proxy"},
		}},
		{ref: c.images["etcd"], files: tree{{from: filepath.Join(c.etcd, "server"), to: bin + "etcd"}}},
		{
			ref: c.images["coredns"], entrypoint: []string{"/coredns"},
			files: tree{{from: filepath.Join(c.coredns, "coredns"), to: "coredns"}},
		},
		{
			ref: c.images["pause"], entrypoint: []string{"/pause"}, user: "65535:65535",
			files: tree{{from: filepath.Join(c.pause, "pause"), to: "pause"}},
		},
	}
}
