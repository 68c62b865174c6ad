package nodeimage

import (
	"strings"
	"testing"
)

// What kubeadm v1.37.2 printed.
const imageList = `registry.k8s.io/kube-apiserver:v1.37.2
registry.k8s.io/kube-controller-manager:v1.37.2
registry.k8s.io/kube-scheduler:v1.37.2
registry.k8s.io/kube-proxy:v1.37.2
registry.k8s.io/coredns/coredns:v1.14.6
registry.k8s.io/pause:3.10.2
registry.k8s.io/etcd:3.7.0-0
`

func TestParseRequiredImages(t *testing.T) {
	images, err := parseRequiredImages(imageList)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"kube-proxy": "registry.k8s.io/kube-proxy:v1.37.2",
		"coredns":    "registry.k8s.io/coredns/coredns:v1.14.6",
		"pause":      "registry.k8s.io/pause:3.10.2",
		"etcd":       "registry.k8s.io/etcd:3.7.0-0",
	} {
		if images[name] != want {
			t.Errorf("%s is %q, want %q", name, images[name], want)
		}
	}
	if len(images) != 7 {
		t.Errorf("%d images: %v", len(images), images)
	}
	for what, text := range map[string]string{
		"one is missing": strings.Replace(imageList, "registry.k8s.io/etcd:3.7.0-0\n", "", 1),
		"one has no tag": strings.Replace(imageList, ":3.10.2", "", 1),
		"nothing":        "",
	} {
		if images, err := parseRequiredImages(text); err == nil {
			t.Errorf("%s: accepted as %v", what, images)
		}
	}
}

func TestCompanionVersion(t *testing.T) {
	for tag, want := range map[string]string{
		"3.7.0-0":      "v3.7.0",
		"3.6.0-rc.0-1": "v3.6.0-rc.0",
		"v1.14.6":      "v1.14.6",
		"3.10.2":       "v3.10.2",
		"latest":       "",
		"":             "",
	} {
		if got, err := companionVersion(tag); got != want || (err == nil) != (want != "") {
			t.Errorf("companionVersion(%q) = %q, %v; want %q", tag, got, err, want)
		}
	}
}

func TestImageTag(t *testing.T) {
	for ref, want := range map[string]string{
		"registry.k8s.io/etcd:3.7.0-0":       "3.7.0-0",
		"kindest/node:v1.37.0@sha256:a1ed56": "v1.37.0",
		"127.0.0.1:5000/kindest/node":        "",
		"127.0.0.1:5000/kindest/node:v1":     "v1",
		"kindest/node":                       "",
	} {
		if got := imageTag(ref); got != want {
			t.Errorf("imageTag(%q) = %q, want %q", ref, got, want)
		}
	}
}

// Every image that kubeadm wants is made, under the name that it wants.
func TestControlPlaneImages(t *testing.T) {
	images, err := parseRequiredImages(imageList)
	if err != nil {
		t.Fatal(err)
	}
	made := map[string]bool{}
	for _, inner := range (controlPlane{images: images}).inner() {
		if made[inner.ref] || len(inner.files) == 0 {
			t.Errorf("image %q: again or empty", inner.ref)
		}
		made[inner.ref] = true
	}
	for _, ref := range images {
		if !made[ref] {
			t.Errorf("no image %q", ref)
		}
	}
}
