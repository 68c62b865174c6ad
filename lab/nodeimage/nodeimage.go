package nodeimage

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"golang.org/x/mod/semver"

	"github.com/dra-lab/dra-lab/lab/host"
	"github.com/dra-lab/dra-lab/lab/internal/ui"
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
	if o.Kubelet != "" {
		if o.Kubelet, err = ParseVersion(o.Kubelet); err != nil {
			return o, err
		}
		o.Kubernetes = builtVersion(o)
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
		ref += "-kubelet-" + kubelet
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
	if o.Kubelet != "" {
		return ensureMixed(ctx, eng, o, u)
	}
	if image, ok, err := present(ctx, eng, o); err != nil || ok {
		return image, err
	}
	version := o.Kubernetes
	if version == "" {
		version = kindDefault()
	}
	ref := kindRef(o.Repository, version)
	err = pull(ctx, eng, ref, o.RegistryPatience, u)
	if err == nil {
		return o.inspect(ctx, eng, ref)
	}
	var refusal *pullError
	if !errors.As(err, &refusal) {
		return Image{}, err
	}
	switch refusal.answer {
	case answerNone:
		u.Info("no registry answers for %s: building the node image from source", ref)
	case answerNotFound:
		u.Info("there is no image %s: building the node image from source", ref)
	case answerRefused:
		return Image{}, ui.WithHint(err, "log in to the registry (docker login) or wait until it lets you in again; "+
			"or build the image: lab node-image build --kubernetes %s", version)
	default:
		return Image{}, err
	}
	image, err := Build(ctx, eng, o, u)
	if !errors.Is(err, ErrNoNetwork) {
		return image, err
	}
	// Somebody updated the lab and is on a train now: what was built before the
	// update is better than nothing.
	ref = builtRef(builtVersion(o), "")
	found, ok, lookErr := lookUp(ctx, eng, ref)
	if lookErr != nil || !ok {
		return Image{}, err
	}
	u.Warn("%v", err)
	u.Warn("taking the node image %s, which an older lab built", ref)
	return inspect(ctx, eng, ref, found, o.inspected())
}

// builtVersion is the version that would be built for o.
func builtVersion(o Options) string {
	if o.Kubernetes == "" {
		return DefaultKubernetes
	}
	return o.Kubernetes
}

// present looks for an image that will do among those the engine has.
func present(ctx context.Context, eng Engine, o Options) (Image, bool, error) {
	built := builtVersion(o)
	found, ok, err := lookUp(ctx, eng, builtRef(built, ""))
	if err != nil {
		return Image{}, false, err
	}
	if ok && found.Config.Labels[labelKey] == recipeKey(built) {
		image, err := inspect(ctx, eng, builtRef(built, ""), found, o.inspected())
		return image, err == nil, err
	}
	pulled := o.Kubernetes
	if pulled == "" {
		pulled = kindDefault()
	}
	ref := kindRef(o.Repository, pulled)
	found, ok, err = lookUp(ctx, eng, ref)
	if err != nil || !ok {
		return Image{}, false, err
	}
	image, err := inspect(ctx, eng, ref, found, o.inspected())
	return image, err == nil, err
}

func (o Options) inspected() string { return filepath.Join(o.CacheDir, "nodeimage", "inspected") }

func (o Options) inspect(ctx context.Context, eng Engine, ref string) (Image, error) {
	found, ok, err := lookUp(ctx, eng, ref)
	if err != nil {
		return Image{}, err
	}
	if !ok {
		return Image{}, fmt.Errorf("inspect image %q: the engine does not have it", ref)
	}
	return inspect(ctx, eng, ref, found, o.inspected())
}

// Build makes a node image from source, whatever a registry may have. It does
// nothing if the engine has one that was made from the same inputs.
func Build(ctx context.Context, eng Engine, o Options, u *ui.UI) (Image, error) {
	o, err := o.complete()
	if err != nil {
		return Image{}, err
	}
	o.Kubernetes = builtVersion(o)
	base, err := buildNode(ctx, eng, o, u)
	if err != nil || o.Kubelet == "" {
		return base, err
	}
	return buildMixed(ctx, eng, base, o, u)
}

// ensureMixed makes the image with another kubelet, on whatever image there is
// for the control plane's version.
func ensureMixed(ctx context.Context, eng Engine, o Options, u *ui.UI) (Image, error) {
	plain := o
	plain.Kubelet = ""
	base, err := Ensure(ctx, eng, plain, u)
	if err != nil {
		return Image{}, err
	}
	return buildMixed(ctx, eng, base, o, u)
}

func buildNode(ctx context.Context, eng Engine, o Options, u *ui.UI) (Image, error) {
	ref, key := builtRef(o.Kubernetes, ""), recipeKey(o.Kubernetes)
	found, ok, err := lookUp(ctx, eng, ref)
	if err != nil {
		return Image{}, err
	}
	if ok && found.Config.Labels[labelKey] == key {
		return inspect(ctx, eng, ref, found, o.inspected())
	}
	b, done, err := newBuilder(ctx, o, u)
	if err != nil {
		return Image{}, err
	}
	defer done()
	kubernetes := nodeProgram(o.Kubernetes).step(b.tools)
	if !b.store.has(kubernetes) {
		if err := b.tools.checkKubernetes(ctx, o.Kubernetes); err != nil {
			return Image{}, err
		}
	}
	if err := readyToBuild(ctx, u); err != nil {
		return Image{}, err
	}
	missing := !b.store.has(kubernetes)
	if err := b.checkDisk(ctx, eng, building{compiling: missing, everything: missing && !b.store.has(containerdProgram().step(b.tools))}); err != nil {
		return Image{}, err
	}
	layers, err := b.node(ctx, o.Kubernetes)
	if err != nil {
		return Image{}, unfinished(ctx, err)
	}
	progress := u.Step("loading node image %s into the engine", ref)
	err = assemble(ctx, eng, ref, layers, map[string]string{
		labelKey: key, labelKubernetes: o.Kubernetes, labelKubelet: o.Kubernetes,
	})
	progress.Done(err)
	if err != nil {
		return Image{}, unfinished(ctx, err)
	}
	if err := b.store.prune(time.Now().Add(-keepUnused)); err != nil {
		u.Warn("old build outputs stay: %v", err)
	}
	image, err := o.inspect(ctx, eng, ref)
	if err != nil {
		return Image{}, err
	}
	if image.Kubernetes != o.Kubernetes || image.Kubelet != o.Kubernetes {
		return Image{}, fmt.Errorf("built image %q has Kubernetes %s with kubelet %s", ref, image.Kubernetes, image.Kubelet)
	}
	return image, nil
}

func buildMixed(ctx context.Context, eng Engine, base Image, o Options, u *ui.UI) (Image, error) {
	ref := builtRef(base.Kubernetes, o.Kubelet)
	program := kubernetesProgram("kubelet", o.Kubelet, "kubelet")
	key := mixedKey(base, program.step(goTools{}))
	found, ok, err := lookUp(ctx, eng, ref)
	if err != nil {
		return Image{}, err
	}
	if ok && found.Config.Labels[labelKey] == key {
		return inspect(ctx, eng, ref, found, o.inspected())
	}
	b, done, err := newBuilder(ctx, o, u)
	if err != nil {
		return Image{}, err
	}
	defer done()
	kubelet := program.step(b.tools)
	if !b.store.has(kubelet) {
		if err := b.tools.checkKubernetes(ctx, o.Kubelet); err != nil {
			return Image{}, err
		}
	}
	if err := b.checkDisk(ctx, eng, building{compiling: !b.store.has(kubelet)}); err != nil {
		return Image{}, err
	}
	dir, err := b.store.do(ctx, kubelet)
	if err != nil {
		return Image{}, unfinished(ctx, err)
	}
	progress := u.Step("making node image %s", ref)
	err = replaceKubelet(ctx, eng, base.ID, filepath.Join(dir, "kubelet"), ref, map[string]string{
		labelKey: key, labelKubernetes: base.Kubernetes, labelKubelet: o.Kubelet,
	})
	progress.Done(err)
	if err != nil {
		return Image{}, unfinished(ctx, err)
	}
	image, err := o.inspect(ctx, eng, ref)
	if err != nil {
		return Image{}, err
	}
	if image.Kubelet != o.Kubelet {
		return Image{}, fmt.Errorf("built image %q has kubelet %s", ref, image.Kubelet)
	}
	return image, nil
}

// keepUnused is how long outputs are kept that no build asks for: those of
// other versions and older recipes.
const keepUnused = 30 * 24 * time.Hour

// unfinished tells somebody whose build stopped halfway how to go on.
func unfinished(ctx context.Context, err error) error {
	switch {
	case ctx.Err() != nil:
		return ui.WithHint(err, "finished steps are kept: run the same command again to go on")
	case containsAny(err.Error()+ui.Detail(err), "no space left on device", "disk quota exceeded"):
		return ui.WithHint(err, "make room, or set DRA_LAB_CACHE to a directory on a larger disk; "+
			"finished steps are kept: run the same command again to go on")
	}
	return err
}

// recipeKey hashes everything that a built image is made from, so that an
// image from an older recipe is not taken for a current one. It needs nothing
// but the version: what kubeadm asks for follows from it.
func recipeKey(version string) string {
	tools := goTools{}
	sum := sha256.New()
	rootfs, containerd := rootfsStep(""), containerdProgram().step(tools)
	for _, st := range []step{
		rootfs, containerd, nodeProgram(version).step(tools), planeProgram(version).step(tools),
		etcdProgram("").step(tools), coreDNSProgram("").step(tools),
		runcProgram().step(tools), crictlProgram().step(tools), cniProgram().step(tools),
		baseStep(tools, containerd, ""), pauseStep(), proxyRootStep(rootfs, ""),
	} {
		fmt.Fprintln(sum, st.dir())
	}
	fmt.Fprintln(sum, "assembly 1")
	return hex.EncodeToString(sum.Sum(nil))[:16]
}

// mixedKey is the same for an image with a kubelet of its own.
func mixedKey(base Image, kubelet step) string {
	sum := sha256.Sum256([]byte(base.ID + "\n" + kubelet.dir()))
	return hex.EncodeToString(sum[:])[:16]
}

// newBuilder opens the build cache. The caller must call done.
func newBuilder(ctx context.Context, o Options, u *ui.UI) (b *builder, done func(), err error) {
	if err := readyToCompile(); err != nil {
		return nil, nil, err
	}
	unlock, err := host.Lock(ctx, "node-image-build", u)
	if err != nil {
		return nil, nil, err
	}
	s, err := openStore(filepath.Join(o.CacheDir, "nodeimage", "steps"), u)
	if err != nil {
		unlock()
		return nil, nil, err
	}
	tools := goTools{buildCache: filepath.Join(o.CacheDir, "go-build")}
	return &builder{cacheDir: o.CacheDir, store: s, tools: tools, ui: u}, unlock, nil
}
