package nodeimage

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/dra-lab/dra-lab/lab/host"
	"github.com/dra-lab/dra-lab/lab/internal/ui"
)

// Build makes a node image from source, whatever a registry may have. It does
// nothing if the engine has one that was made from the same inputs.
func Build(ctx context.Context, eng Engine, o Options, u *ui.UI) (Image, error) {
	o, err := o.complete()
	if err != nil {
		return Image{}, err
	}
	m := maker{Options: o, eng: eng, ui: u}
	if err := m.checkKubelet(ctx); err != nil {
		return Image{}, err
	}
	base, err := m.withoutKubelet().buildNode(ctx)
	if err != nil || m.Kubelet == "" {
		return base, err
	}
	return m.buildMixed(ctx, base)
}

// buildNode builds a whole node image.
func (m maker) buildNode(ctx context.Context) (Image, error) {
	version := m.version()
	ref, key := builtRef(version, ""), recipeKey(version)
	if image, ok, err := m.current(ctx, ref, key); err != nil || ok {
		return image, err
	}
	b, done, err := m.builder(ctx)
	if err != nil {
		return Image{}, err
	}
	defer done()
	// Whoever had the lock until now may have built just this.
	if image, ok, err := m.current(ctx, ref, key); err != nil || ok {
		return image, err
	}
	// The programs of the node take most of it. Those of the control plane, the
	// other half of Kubernetes, take as much room when the build stopped between
	// the two.
	what := compilingNothing
	if !b.store.has(nodeProgram(version).step(b.tools)) || !b.store.has(planeProgram(version).step(b.tools)) {
		what = compilingNode
		if err := b.tools.checkKubernetes(ctx, version); err != nil {
			return Image{}, err
		}
	}
	if err := readyToBuild(ctx, m.ui); err != nil {
		return Image{}, err
	}
	if err := b.checkDisk(ctx, m.eng, what); err != nil {
		return Image{}, err
	}
	layers, err := b.node(ctx, version)
	if err != nil {
		return Image{}, unfinished(ctx, err)
	}
	progress := m.ui.Step("loading node image %s into the engine", ref)
	err = assemble(ctx, m.eng, ref, layers, labels(key, version, version))
	progress.Done(err)
	if err != nil {
		return Image{}, unfinished(ctx, err)
	}
	b.tidy()
	return m.verified(ctx, ref, version, version)
}

// buildMixed puts another kubelet on top of a node image, built or pulled.
func (m maker) buildMixed(ctx context.Context, base Image) (Image, error) {
	ref := builtRef(base.Kubernetes, m.Kubelet)
	key := mixedKey(base, m.kubeletStep(goTools{}))
	if image, ok, err := m.current(ctx, ref, key); err != nil || ok {
		return image, err
	}
	b, done, err := m.builder(ctx)
	if err != nil {
		return Image{}, err
	}
	defer done()
	kubelet := m.kubeletStep(b.tools)
	what := compilingNothing
	if !b.store.has(kubelet) {
		what = compilingKubelet
		if err := m.checkKubeletSource(ctx, b); err != nil {
			return Image{}, err
		}
	}
	if err := b.checkDisk(ctx, m.eng, what); err != nil {
		return Image{}, err
	}
	dir, err := b.store.do(ctx, kubelet)
	if err != nil {
		return Image{}, unfinished(ctx, err)
	}
	progress := m.ui.Step("making node image %s", ref)
	err = replaceKubelet(ctx, m.eng, base.ID, filepath.Join(dir, "kubelet"), ref, m.mixedLabels(key, base.Kubernetes))
	progress.Done(err)
	if err != nil {
		return Image{}, unfinished(ctx, err)
	}
	b.tidy()
	m.dropOlder(ctx, b, ref)
	return m.verified(ctx, ref, base.Kubernetes, m.Kubelet)
}

// checkKubelet asks whether the other kubelet can be had, before the node that it
// is for takes its time.
func (m maker) checkKubelet(ctx context.Context) error {
	if m.Kubelet == "" {
		return nil
	}
	// One that is there, of whatever recipe, shows that it can.
	if _, ok, err := lookUp(ctx, m.eng, builtRef(m.version(), m.Kubelet)); err != nil || ok {
		return err
	}
	b, done, err := m.builder(ctx)
	if err != nil {
		return err
	}
	defer done()
	if b.store.has(m.kubeletStep(b.tools)) {
		return nil
	}
	return m.checkKubeletSource(ctx, b)
}

// verified inspects an image that was just made: it must be what it was made
// to be.
func (m maker) verified(ctx context.Context, ref, kubernetes, kubelet string) (Image, error) {
	image, err := m.made(ctx, ref)
	if err != nil {
		return Image{}, err
	}
	if image.Kubernetes != kubernetes || image.Kubelet != kubelet {
		return Image{}, fmt.Errorf("built image %q has Kubernetes %s with kubelet %s, not %s with %s",
			ref, image.Kubernetes, image.Kubelet, kubernetes, kubelet)
	}
	return image, nil
}

// builder opens the build cache, which nobody else may write to until done is
// called.
func (m maker) builder(ctx context.Context) (b *builder, done func(), err error) {
	if err := readyToCompile(); err != nil {
		return nil, nil, err
	}
	unlock, err := host.LockIn(ctx, filepath.Join(m.CacheDir, "nodeimage"), "build", m.ui)
	if err != nil {
		return nil, nil, err
	}
	s, err := openStore(filepath.Join(m.CacheDir, "nodeimage", "steps"), m.ui)
	if err != nil {
		unlock()
		return nil, nil, err
	}
	tools := goTools{buildCache: filepath.Join(m.CacheDir, "nodeimage", "compiler")}
	return &builder{cacheDir: m.CacheDir, store: s, tools: tools, ui: m.ui}, unlock, nil
}

// keepUnused is how long outputs are kept that no build asks for: those of
// other versions and older recipes.
const keepUnused = 30 * 24 * time.Hour

// tidy removes what a finished build needs no more. The compiler's cache, 5 GB
// for a node, only serves builds that were interrupted: the outputs of all
// steps are kept anyway, and another version of Kubernetes shares little with it:
// 1341 packages were compiled for a kubelet v1.36.3 after a v1.37.2.
func (b *builder) tidy() {
	if err := errors.Join(removeAll(b.tools.buildCache), b.store.prune(time.Now().Add(-keepUnused))); err != nil {
		b.ui.Warn("leftovers of building the node image stay: %v", err)
	}
}

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
