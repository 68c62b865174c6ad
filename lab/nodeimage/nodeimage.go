package nodeimage

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"golang.org/x/mod/semver"

	"github.com/dra-lab/dra-lab/lab/host"
	"github.com/dra-lab/dra-lab/lab/internal/ui"
	"github.com/dra-lab/dra-lab/lab/kubesource"
)

// DefaultKubernetes is the version that is built if nobody asks for one.
const DefaultKubernetes = "v1.37.2"

// Options say which node image is wanted. The zero value is the default image.
type Options struct {
	// Kubernetes is the version of the control plane and kubeadm, as v1.37.2.
	// "" takes what is easiest to get: the image that kind pins if a registry
	// answers, else DefaultKubernetes from source.
	Kubernetes string

	// Kubelet is the version of the kubelet if it is not to be that of the
	// control plane. Such images are always made here: one layer on top of the
	// image for Kubernetes. It must not be newer than Kubernetes.
	Kubelet string

	// Checkout, if not nil, is where the kubelet comes from, instead of a
	// version. What it is based on must not be newer than Kubernetes.
	Checkout *kubesource.Checkout

	// Repository is where to pull images from. "" is kindest/node at Docker's
	// registry, pinned by digest where kind's release notes have one.
	Repository string

	// CacheDir is where build outputs are kept. "" is host.CacheDir().
	CacheDir string

	// RegistryPatience bounds how long a registry may say nothing before it
	// counts as out of reach. 0 is 20 s.
	RegistryPatience time.Duration
}

// complete checks o and fills in what is empty.
func (o Options) complete() (Options, error) {
	var err error
	if o.Kubernetes != "" {
		if o.Kubernetes, err = ParseVersion(o.Kubernetes); err != nil {
			return o, err
		}
	}
	if o.Checkout != nil {
		o.Kubelet = o.Checkout.Version()
	} else if o.Kubelet != "" {
		if o.Kubelet, err = ParseVersion(o.Kubelet); err != nil {
			return o, err
		}
	}
	if o.Kubelet != "" {
		o.Kubernetes = orDefault(o.Kubernetes, DefaultKubernetes)
		if semver.Compare(o.Kubelet, o.Kubernetes) > 0 {
			err := fmt.Errorf("kubelet %s is newer than Kubernetes %s", o.Kubelet, o.Kubernetes)
			return o, ui.WithHint(ui.UsageError(err), "a kubelet may be older than the control plane, never newer")
		}
		if o.Kubelet == o.Kubernetes {
			o.Kubelet = ""
		}
	}
	if o.CacheDir == "" {
		if o.CacheDir, err = host.CacheDir(); err != nil {
			return o, err
		}
	}
	if o.RegistryPatience == 0 {
		o.RegistryPatience = answerWithin
	}
	return o, nil
}

// builtRef names an image that is made here.
func builtRef(kubernetes, kubelet string) string {
	ref := builtRepository + ":" + kubernetes
	if kubelet != "" {
		ref += "-kubelet-" + strings.ReplaceAll(kubelet, "+", "-") // which a tag cannot have
	}
	return ref
}

// Ensure returns a node image that the engine has: one that was built, else
// one that was pulled, else it pulls one. Where no registry answers, or kind
// has published none for the version, it builds one. A registry that answers
// but refuses is an error.
func Ensure(ctx context.Context, eng Engine, o Options, u *ui.UI) (Image, error) {
	o, err := o.complete()
	if err != nil {
		return Image{}, err
	}
	return maker{Options: o, eng: eng, ui: u}.ensure(ctx)
}

// A maker brings the image that its options, which are complete, ask for.
type maker struct {
	Options
	eng Engine
	ui  *ui.UI
}

// errBuildInstead says that no registry has the image.
var errBuildInstead = errors.New("no registry has it")

func (m maker) ensure(ctx context.Context) (Image, error) {
	if m.Kubelet != "" {
		if err := m.checkKubelet(ctx); err != nil {
			return Image{}, err
		}
		// On whatever image there is for the control plane's version.
		base, err := m.withoutKubelet().ensure(ctx)
		if err != nil {
			return Image{}, err
		}
		return m.buildMixed(ctx, base)
	}
	if image, ok, err := m.present(ctx); err != nil || ok {
		return image, err
	}
	image, err := m.pull(ctx)
	if !errors.Is(err, errBuildInstead) {
		return image, err
	}
	image, err = m.buildNode(ctx)
	if errors.Is(err, ErrNoNetwork) {
		return m.olderBuild(ctx, err)
	}
	return image, err
}

func (m maker) withoutKubelet() maker {
	m.Kubelet = ""
	return m
}

// version is the one that would be built.
func (m maker) version() string { return orDefault(m.Kubernetes, DefaultKubernetes) }

// pulledRef names the image that would be pulled.
func (m maker) pulledRef() string {
	return kindRef(m.Repository, orDefault(m.Kubernetes, kindDefault()))
}

func orDefault(version, otherwise string) string {
	if version == "" {
		return otherwise
	}
	return version
}

// present looks for an image that will do among those the engine has.
func (m maker) present(ctx context.Context) (Image, bool, error) {
	image, ok, err := m.current(ctx, builtRef(m.version(), ""), recipeKey(m.version()))
	if err != nil || ok {
		return image, ok, err
	}
	found, ok, err := lookUp(ctx, m.eng, m.pulledRef())
	if err != nil || !ok {
		return Image{}, false, err
	}
	image, err = m.inspect(ctx, m.pulledRef(), found)
	return image, err == nil, err
}

// current looks for an image that was built from the inputs that key hashes.
func (m maker) current(ctx context.Context, ref, key string) (Image, bool, error) {
	found, ok, err := lookUp(ctx, m.eng, ref)
	if err != nil || !ok || found.Config.Labels[labelKey] != key {
		return Image{}, false, err
	}
	image, err := m.inspect(ctx, ref, found)
	return image, err == nil, err
}

// inspect is Inspect for an image that was looked up.
func (m maker) inspect(ctx context.Context, ref string, found engineImage) (Image, error) {
	return inspect(ctx, m.eng, ref, found, inspectionCache(m.CacheDir))
}

// pull gets kind's image. The error is errBuildInstead if that cannot be, for
// a reason that building gets round.
func (m maker) pull(ctx context.Context) (Image, error) {
	ref := m.pulledRef()
	err := pull(ctx, m.eng, ref, m.RegistryPatience, m.ui)
	if err == nil {
		return m.made(ctx, ref)
	}
	var refusal *pullError
	if !errors.As(err, &refusal) {
		return Image{}, err
	}
	switch refusal.answer {
	case answerNone:
		m.ui.Info("no registry answers for %s: building the node image from source", ref)
		return Image{}, errBuildInstead
	case answerNotFound:
		m.ui.Info("there is no image %s: building the node image from source", ref)
		return Image{}, errBuildInstead
	case answerRefused:
		return Image{}, ui.WithHint(err, "log in to the registry (docker login) or wait until it lets you in again; "+
			"or build the image: lab node-image build --kubernetes %s", m.version())
	default:
		return Image{}, err
	}
}

// made inspects an image that must be in the engine by now.
func (m maker) made(ctx context.Context, ref string) (Image, error) {
	found, ok, err := lookUp(ctx, m.eng, ref)
	if err != nil {
		return Image{}, err
	}
	if !ok {
		return Image{}, fmt.Errorf("inspect image %q: the engine does not have it", ref)
	}
	return m.inspect(ctx, ref, found)
}

// olderBuild returns the image that an older lab built, with another recipe,
// for somebody who has updated the lab and is on a train now; cause is why it
// cannot be built anew.
func (m maker) olderBuild(ctx context.Context, cause error) (Image, error) {
	ref := builtRef(m.version(), "")
	found, ok, err := lookUp(ctx, m.eng, ref)
	if err != nil || !ok {
		return Image{}, cause
	}
	m.ui.Warn("%v", cause)
	m.ui.Warn("taking the node image %s, which an older lab built", ref)
	return m.inspect(ctx, ref, found)
}
