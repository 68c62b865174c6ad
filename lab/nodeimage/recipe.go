package nodeimage

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/dra-lab/dra-lab/lab/internal/ui"
)

// The programs of a node that do not belong to Kubernetes. Versions of etcd,
// CoreDNS and pause are not here: kubeadm says which ones it wants.
const (
	containerdVersion = "v2.4.2"
	runcVersion       = "v1.4.4"
	criToolsVersion   = "v1.37.0"
	cniVersion        = "v1.10.0"
)

//go:embed files/pause.c
var pauseSource string

// kubernetesVersionFlags makes programs say which version of Kubernetes they
// are. The date is a constant, so that the same sources give the same bytes.
func kubernetesVersionFlags(version string) string {
	const pkg = "k8s.io/component-base/version"
	numbers := strings.SplitN(strings.TrimPrefix(version, "v"), ".", 3)
	return strings.Join([]string{
		"-X " + pkg + ".gitVersion=" + version,
		"-X " + pkg + ".gitMajor=" + numbers[0],
		"-X " + pkg + ".gitMinor=" + numbers[1],
		"-X " + pkg + ".gitTreeState=clean",
		"-X " + pkg + ".buildDate=1970-01-01T00:00:00Z",
	}, " ")
}

// kubernetesProgram builds commands of Kubernetes: all that a node needs, or
// the kubelet alone.
func kubernetesProgram(name, version string, commands ...string) program {
	p := program{
		name: name, title: "Kubernetes " + version, module: kubernetesModule, version: version,
		ldflags: kubernetesVersionFlags(version), staging: true,
	}
	if len(commands) == 1 {
		p.title = commands[0] + " " + version
	}
	for _, command := range commands {
		p.packages = append(p.packages, "cmd/"+command)
	}
	return p
}

// nodeProgram is the part of Kubernetes that nodes run themselves.
func nodeProgram(version string) program {
	return kubernetesProgram("kubernetes", version, "kubelet", "kubeadm", "kubectl")
}

// planeProgram is the part of Kubernetes that runs in containers.
func planeProgram(version string) program {
	p := kubernetesProgram("control-plane", version, kubernetesPrograms()...)
	p.title = "the control plane of Kubernetes " + version
	return p
}

func containerdProgram() program {
	return program{
		name: "containerd", title: "containerd " + containerdVersion,
		module: "github.com/containerd/containerd/v2", version: containerdVersion,
		packages: []string{"cmd/containerd", "cmd/containerd-shim-runc-v2", "cmd/ctr"},
		// Snapshotters that nodes never choose.
		tags:    []string{"no_btrfs", "no_devmapper", "no_zfs", "no_aufs"},
		ldflags: "-X github.com/containerd/containerd/v2/version.Version=" + containerdVersion,
	}
}

func runcProgram() program {
	return program{
		name: "runc", title: "runc " + runcVersion,
		module: "github.com/opencontainers/runc", version: runcVersion, packages: []string{""},
		tags: []string{"seccomp", "netgo", "osusergo"}, cgo: true,
		ldflags: "-X main.version=" + strings.TrimPrefix(runcVersion, "v"),
	}
}

func crictlProgram() program {
	return program{
		name: "crictl", title: "crictl " + criToolsVersion,
		module: "sigs.k8s.io/cri-tools", version: criToolsVersion, packages: []string{"cmd/crictl"},
		ldflags: "-X sigs.k8s.io/cri-tools/pkg/version.Version=" + criToolsVersion,
	}
}

func cniProgram() program {
	return program{
		name: "cni", title: "CNI plugins " + cniVersion,
		module: "github.com/containernetworking/plugins", version: cniVersion,
		packages: []string{"plugins/main/loopback", "plugins/main/ptp", "plugins/ipam/host-local", "plugins/meta/portmap"},
		ldflags:  "-X github.com/containernetworking/plugins/pkg/utils/buildversion.BuildVersion=" + cniVersion,
	}
}

func etcdProgram(version string) program {
	return program{
		name: "etcd", title: "etcd " + version,
		module: "go.etcd.io/etcd/server/v3", version: version, packages: []string{""},
	}
}

func coreDNSProgram(version string) program {
	return program{
		name: "coredns", title: "CoreDNS " + version,
		module: "github.com/coredns/coredns", version: version, main: coreDNSMain(),
	}
}

// coreDNSMain is the main package of CoreDNS with the plugins that kubeadm's
// Corefile names, and those that people add to it when they look into
// something. The ones for clouds and tracers are left out: they and what they
// need are four fifths of the compiling, and 1.3 GB of downloads.
func coreDNSMain() string {
	plugins := []string{
		"bind", "bufsize", "cache", "debug", "errors", "forward", "health", "hosts", "kubernetes",
		"loadbalance", "log", "loop", "metrics", "ready", "reload", "rewrite", "template",
	}
	var imports strings.Builder
	for _, plugin := range plugins {
		fmt.Fprintf(&imports, "\t_ \"github.com/coredns/coredns/plugin/%s\"\n", plugin)
	}
	return fmt.Sprintf("package main\n\nimport (\n\t\"github.com/coredns/coredns/coremain\"\n\n%s)\n\n"+
		"func main() { coremain.Run() }\n", imports.String())
}

// pauseStep compiles the program that holds a Pod's namespaces.
func pauseStep() step {
	return step{
		name:   "pause",
		title:  "building pause",
		inputs: []string{pauseSource},
		make: func(ctx context.Context, out string, _ *ui.Step) error {
			cmd := exec.CommandContext(ctx, "gcc", "-Os", "-Wall", "-static", "-s",
				"-x", "c", "-", "-o", filepath.Join(out, "pause"))
			cmd.Stdin = strings.NewReader(pauseSource)
			_, err := run(ctx, cmd, nil)
			return err
		},
	}
}

// A builder runs the steps of a node image.
type builder struct {
	cacheDir string
	store    *store
	tools    goTools
	ui       *ui.UI
}

// node makes everything that a node image for a version of Kubernetes
// consists of and returns it as layers, the lowest and most widely shared
// first. It reads from top to bottom; only the two longest steps overlap.
func (b *builder) node(ctx context.Context, version string) ([]tree, error) {
	rootfs := rootfsStep(b.debCache())
	kubernetes := nodeProgram(version).step(b.tools)

	// Debian comes over the network and is unpacked by one process, while the
	// compiler keeps the processors busy.
	var rootfsDir, kubernetesDir string
	group, groupCtx := errgroup.WithContext(ctx)
	group.Go(func() (err error) {
		rootfsDir, err = b.store.do(groupCtx, rootfs)
		return err
	})
	group.Go(func() (err error) {
		kubernetesDir, err = b.store.do(groupCtx, kubernetes)
		return err
	})
	if err := group.Wait(); err != nil {
		return nil, err
	}

	// What every node has, whatever its version of Kubernetes.
	containerd := containerdProgram().step(b.tools)
	containerdDir, err := b.store.do(ctx, containerd)
	if err != nil {
		return nil, err
	}
	runcDir, err := b.store.do(ctx, runcProgram().step(b.tools))
	if err != nil {
		return nil, err
	}
	crictlDir, err := b.store.do(ctx, crictlProgram().step(b.tools))
	if err != nil {
		return nil, err
	}
	cniDir, err := b.store.do(ctx, cniProgram().step(b.tools))
	if err != nil {
		return nil, err
	}
	baseDir, err := b.store.do(ctx, baseStep(b.tools, containerd, containerdDir))
	if err != nil {
		return nil, err
	}

	// What depends on it.
	images, err := b.requiredImages(ctx, version, kubernetes, kubernetesDir)
	if err != nil {
		return nil, err
	}
	contentDir, err := b.content(ctx, version, images, rootfs, rootfsDir, containerd, containerdDir)
	if err != nil {
		return nil, err
	}
	versionedDir, err := b.store.do(ctx, versionedStep(version, images["pause"], baseDir))
	if err != nil {
		return nil, err
	}

	return []tree{
		{{from: rootfsDir, modes: true, skip: below("dev", "proc", "sys", "run")}},
		{
			{from: baseDir},
			{from: containerdDir, to: "usr/local/bin"},
			{from: crictlDir, to: "usr/local/bin"},
			{from: runcDir, to: "usr/local/sbin"},
			{from: cniDir, to: "opt/cni/bin"},
		},
		{
			{from: contentDir, to: "var/lib/containerd", modes: true},
			{from: versionedDir},
		},
		{{from: kubernetesDir, to: "usr/bin"}},
	}, nil
}

// debCache is where downloaded Debian packages lie until they are installed.
func (b *builder) debCache() string { return filepath.Join(b.store.dir, "debian-packages") }

// content makes the images of the control plane. The programs inside are
// needed for nothing else, so they are not even built if the images are there.
// They are kept all the same: another list of Debian packages makes new images,
// and must not compile Kubernetes again.
func (b *builder) content(
	ctx context.Context, version string, images requiredImages,
	rootfs step, rootfsDir string, containerd step, containerdDir string,
) (string, error) {
	etcd, err := companion(images["etcd"], etcdProgram)
	if err != nil {
		return "", err
	}
	coreDNS, err := companion(images["coredns"], coreDNSProgram)
	if err != nil {
		return "", err
	}
	kubernetes := planeProgram(version).step(b.tools)
	pause, proxyRoot := pauseStep(), proxyRootStep(rootfs, rootfsDir)
	plane := controlPlane{images: images}
	packing := contentStep(version, &plane, containerdDir,
		kubernetes, etcd.step(b.tools), coreDNS.step(b.tools), pause, proxyRoot, containerd)
	if b.store.has(packing) {
		return b.store.do(ctx, packing)
	}

	etcdStep, err := b.available(ctx, etcd)
	if err != nil {
		return "", err
	}
	coreDNSStep, err := b.available(ctx, coreDNS)
	if err != nil {
		return "", err
	}
	for _, part := range []struct {
		step step
		dir  *string
	}{
		{kubernetes, &plane.kubernetes},
		{etcdStep, &plane.etcd},
		{coreDNSStep, &plane.coredns},
		{pause, &plane.pause},
		{proxyRoot, &plane.proxyRoot},
	} {
		if *part.dir, err = b.store.do(ctx, part.step); err != nil {
			return "", err
		}
	}
	dir, err := b.store.do(ctx, packing)
	if err != nil {
		return "", err
	}
	return dir, removeAll(b.debCache())
}

// companion returns the program for an image that kubeadm wants.
func companion(ref string, of func(version string) program) (program, error) {
	version, err := companionVersion(imageTag(ref))
	if err != nil {
		return program{}, fmt.Errorf("read version of image %q: %w", ref, err)
	}
	return of(version), nil
}

// available returns the step that builds p. Where its version is not to be had
// as a Go module, the closest one that is takes its place, under the image tag
// that was asked for, and the user is told.
func (b *builder) available(ctx context.Context, p program) (step, error) {
	_, err := b.tools.module(ctx, "", p.module, p.version)
	if err == nil {
		return p.step(b.tools), nil
	}
	if !errors.Is(err, ErrNoVersion) {
		return step{}, err
	}
	served, listErr := b.tools.versions(ctx, p.module)
	if listErr != nil {
		return step{}, errors.Join(err, listErr)
	}
	instead := closest(p.version, served)
	if instead == "" {
		return step{}, err
	}
	b.ui.Warn("%s is not to be had as a Go module: the node image gets %s instead", p.title, instead)
	p.title = strings.Replace(p.title, p.version, instead, 1)
	p.version = instead
	return p.step(b.tools), nil
}

// requiredImages returns what kubeadm wants.
func (b *builder) requiredImages(ctx context.Context, version string, kubernetes step, kubernetesDir string) (requiredImages, error) {
	dir, err := b.store.do(ctx, requiredImagesStep(version, kubernetes, kubernetesDir))
	if err != nil {
		return nil, err
	}
	text, err := os.ReadFile(filepath.Join(dir, "list"))
	if err != nil {
		return nil, err
	}
	return parseRequiredImages(string(text))
}

// versionedStep makes the small files of a node that depend on its version of
// Kubernetes.
func versionedStep(version, sandboxImage, baseDir string) step {
	return step{
		name:   "versioned",
		title:  "writing version files",
		inputs: []string{version, sandboxImage, filepath.Base(baseDir), "1"},
		make: func(_ context.Context, out string, _ *ui.Step) error {
			config, err := os.ReadFile(filepath.Join(baseDir, containerdConfig))
			if err != nil {
				return err
			}
			if config, err = withSandboxImage(config, sandboxImage); err != nil {
				return err
			}
			if err := writeFile(filepath.Join(out, containerdConfig), config, 0o644); err != nil {
				return err
			}
			return writeFile(filepath.Join(out, "kind/version"), []byte(version), 0o644)
		},
	}
}
