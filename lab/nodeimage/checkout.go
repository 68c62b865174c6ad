package nodeimage

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/dra-lab/dra-lab/lab/internal/ui"
	"github.com/dra-lab/dra-lab/lab/kubesource"
)

// labelCheckout says of an image where the source of its kubelet lies.
const labelCheckout = "dra-lab.node.checkout"

// checkoutProgram builds the kubelet of a checkout. Its name tells the outputs of
// one checkout from those of others, its flags one state of it from the next.
func checkoutProgram(c kubesource.Checkout) program {
	p := kubernetesProgram("kubelet-"+c.Key(), c.Base, "kubelet")
	p.title = "kubelet " + c.Version()
	p.ldflags = kubernetesVersionFlags(c.Version())
	p.checkout = &c
	return p
}

// kubeletStep makes the kubelet that is not the control plane's.
func (m maker) kubeletStep(tools goTools) step {
	if m.Checkout == nil {
		return kubernetesProgram("kubelet", m.Kubelet, "kubelet").step(tools)
	}
	// Whoever has a checkout will edit it and build again, so what the compiler
	// made is kept, in the cache that the programs of single packages have, too.
	return checkoutProgram(*m.Checkout).step(goTools{buildCache: filepath.Join(m.CacheDir, "go-build")})
}

// stagingModule writes the go.mod of the module that builds p.
func (p program) stagingModule(ctx context.Context, tools goTools, dir string, progress *ui.Step) ([]byte, error) {
	if p.checkout != nil {
		return p.checkout.Module(ownModule(p.module))
	}
	progress.Update("downloading " + p.module)
	upstream, err := tools.module(ctx, dir, p.module, p.version)
	if err != nil {
		return nil, err
	}
	data, err := os.ReadFile(upstream.GoMod)
	if err != nil {
		return nil, fmt.Errorf("read go.mod of %s %s: %w", p.module, p.version, err)
	}
	goMod, err := kubesource.ReleaseModule(ownModule(p.module), data, p.version)
	if err != nil {
		return nil, fmt.Errorf("derive a module from %s %s: %w", p.module, p.version, err)
	}
	return goMod, nil
}

// notBuilt explains why "go build" in dir, with this output, failed for p.
func (p program) notBuilt(dir, output string, err error) error {
	classified := classifyModuleError(p.module, p.version, err)
	if p.checkout == nil || errors.Is(classified, ErrNoNetwork) {
		return classified
	}
	if broken := p.checkout.CompileError("the kubelet", dir, output); broken != nil {
		return broken
	}
	return classified
}

// checkKubeletSource asks whether a kubelet that is not built yet can be. Of a
// checkout only the compiler can tell.
func (m maker) checkKubeletSource(ctx context.Context, b *builder) error {
	if m.Checkout == nil {
		return b.tools.checkKubernetes(ctx, m.Kubelet)
	}
	if err := b.checkDisk(ctx, m.eng, compilingKubelet); err != nil {
		return err
	}
	if _, err := b.store.do(ctx, m.kubeletStep(b.tools)); err != nil {
		return unfinished(ctx, err)
	}
	return nil
}

// mixedLabels are those of an image with a kubelet of its own.
func (m maker) mixedLabels(key, kubernetes string) map[string]string {
	all := labels(key, kubernetes, m.Kubelet)
	if m.Checkout != nil {
		all[labelCheckout] = m.Checkout.Dir
	}
	return all
}

// dropOlder removes what was made from earlier states of the checkout, each of
// which is as large as a kubelet. An image that a node still has stays.
func (m maker) dropOlder(ctx context.Context, b *builder, ref string) {
	if m.Checkout == nil {
		return
	}
	program := checkoutProgram(*m.Checkout)
	current := program.step(b.tools).dir()
	outputs, err := filepath.Glob(filepath.Join(b.store.dir, program.name+"-*"))
	for _, dir := range outputs {
		if err == nil && filepath.Base(dir) != current {
			err = removeAll(dir)
		}
	}
	if err != nil {
		b.ui.Warn("earlier kubelets of %q stay: %v", m.Checkout.Dir, err)
	}
	listed, err := run(ctx, m.eng.Command(ctx, "image", "ls", "--filter", "reference="+builtRepository,
		"--filter", "label="+labelCheckout+"="+m.Checkout.Dir, "--format", "{{.Repository}}:{{.Tag}}"), nil)
	if err != nil {
		b.ui.Debug("earlier images of %q stay: %v", m.Checkout.Dir, err)
	}
	for older := range strings.FieldsSeq(listed) {
		if older == ref {
			continue
		}
		if _, err := run(ctx, m.eng.Command(ctx, "image", "rm", older), nil); err != nil {
			b.ui.Debug("image %s stays: %v", older, err)
		}
	}
}
