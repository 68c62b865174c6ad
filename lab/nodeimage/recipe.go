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

// nodeProgram is all of Kubernetes that a node holds.
func nodeProgram(version string) program {
	return kubernetesProgram("kubernetes", version, append(kubernetesPrograms(), "kubelet", "kubeadm", "kubectl")...)
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
		module: "github.com/coredns/coredns", version: version, packages: []string{""},
	}
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
	store *store
	tools goTools
	ui    *ui.UI
}

// node makes everything that a node image for a version of Kubernetes
// consists of and returns it as layers, the lowest and most widely shared
// first. It reads from top to bottom; only the two longest steps overlap.
func (b *builder) node(ctx context.Context, version string) ([]tree, error) {
	rootfs := rootfsStep(filepath.Join(b.store.dir, "debian-packages"))
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
	containerdStep := containerdProgram().step(b.tools)
	containerdDir, err := b.store.do(ctx, containerdStep)
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
	baseDir, err := b.store.do(ctx, baseStep(b.tools, containerdStep, containerdDir))
	if err != nil {
		return nil, err
	}

	// The control plane in its images.
	images, err := b.requiredImages(ctx, version, kubernetes, kubernetesDir)
	if err != nil {
		return nil, err
	}
	etcd, err := b.companion(ctx, images["etcd"], etcdProgram)
	if err != nil {
		return nil, err
	}
	etcdDir, err := b.store.do(ctx, etcd)
	if err != nil {
		return nil, err
	}
	coreDNS, err := b.companion(ctx, images["coredns"], coreDNSProgram)
	if err != nil {
		return nil, err
	}
	coreDNSDir, err := b.store.do(ctx, coreDNS)
	if err != nil {
		return nil, err
	}
	pause := pauseStep()
	pauseDir, err := b.store.do(ctx, pause)
	if err != nil {
		return nil, err
	}
	proxyRoot := proxyRootStep(rootfs, rootfsDir)
	proxyRootDir, err := b.store.do(ctx, proxyRoot)
	if err != nil {
		return nil, err
	}
	plane := controlPlane{
		images: images, kubernetes: kubernetesDir, etcd: etcdDir, coredns: coreDNSDir,
		pause: pauseDir, proxyRootFS: proxyRootDir,
	}
	contentDir, err := b.store.do(ctx, contentStep(version, plane, containerdDir,
		kubernetes, etcd, coreDNS, pause, proxyRoot, containerdStep))
	if err != nil {
		return nil, err
	}
	versioned := versionedStep(version, images["pause"], baseDir)
	versionedDir, err := b.store.do(ctx, versioned)
	if err != nil {
		return nil, err
	}

	return []tree{
		{{from: rootfsDir, modes: true, skip: outside("dev", "proc", "sys", "run")}},
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
		{
			{from: filepath.Join(kubernetesDir, "kubeadm"), to: "usr/bin/kubeadm"},
			{from: filepath.Join(kubernetesDir, "kubectl"), to: "usr/bin/kubectl"},
			{from: filepath.Join(kubernetesDir, "kubelet"), to: "usr/bin/kubelet"},
		},
	}, nil
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

// companion returns the step that builds the program for an image that kubeadm
// wants. Where its version is not to be had as a Go module, the closest one
// that is takes its place under the tag that was asked for, and the user is
// told.
func (b *builder) companion(ctx context.Context, ref string, of func(version string) program) (step, error) {
	wanted, err := companionVersion(imageTag(ref))
	if err != nil {
		return step{}, fmt.Errorf("read version of image %q: %w", ref, err)
	}
	p := of(wanted)
	if b.store.has(p.step(b.tools)) {
		return p.step(b.tools), nil
	}
	_, err = b.tools.module(ctx, "", p.module, p.version)
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
	instead := closest(wanted, served)
	if instead == "" {
		return step{}, err
	}
	b.ui.Warn("%s is not to be had as a Go module: using %s", p.title, instead)
	return of(instead).step(b.tools), nil
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
