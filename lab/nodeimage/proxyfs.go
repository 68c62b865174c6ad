package nodeimage

import (
	"context"
	"debug/elf"
	_ "embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/dra-lab/dra-lab/lab/internal/ui"
)

//go:embed files/iptables-select.sh
var iptablesSelect string

// proxyTools are the programs that kube-proxy and iptables-select.sh call.
func proxyTools() []string {
	return []string{
		"usr/sbin/xtables-nft-multi", "usr/sbin/xtables-legacy-multi", "usr/sbin/nft", "usr/sbin/ipset",
		"usr/sbin/conntrack", "usr/bin/kmod", "usr/bin/dash", "usr/bin/grep",
	}
}

// proxyRootStep picks what kube-proxy needs from the root file system of the
// nodes: a few programs and their libraries instead of all of Debian.
func proxyRootStep(rootfs step, rootfsDir string) step {
	return step{
		name:   "proxyroot",
		title:  "collecting the tools of kube-proxy",
		inputs: append([]string{rootfs.key(), iptablesSelect, "1"}, proxyTools()...),
		make: func(_ context.Context, out string, _ *ui.Step) error {
			return proxyRoot(rootfsDir, out)
		},
	}
}

func proxyRoot(root, out string) error {
	p := picker{root: root, out: out, picked: map[string]bool{}}
	for _, tool := range proxyTools() {
		if err := p.pick(tool); err != nil {
			return fmt.Errorf("pick %q: %w", tool, err)
		}
	}
	// iptables loads its matches and targets by name.
	extensions, err := filepath.Glob(filepath.Join(root, "usr/lib/*/xtables/*.so"))
	if err != nil {
		return err
	}
	if len(extensions) == 0 {
		return errors.New("the root file system has no extensions of iptables")
	}
	for _, path := range extensions {
		rel, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		if err := p.pick(rel); err != nil {
			return fmt.Errorf("pick %q: %w", rel, err)
		}
	}
	if err := writeFile(filepath.Join(out, "usr/sbin/iptables-select"), []byte(iptablesSelect), 0o755); err != nil {
		return err
	}
	return link(out, map[string]string{
		"bin": "usr/bin", "sbin": "usr/sbin", "lib": "usr/lib", "lib64": "usr/lib64",
		"usr/bin/sh":                 "dash",
		"usr/sbin/modprobe":          "../bin/kmod",
		"usr/sbin/iptables":          "iptables-select",
		"usr/sbin/iptables-save":     "iptables-select",
		"usr/sbin/iptables-restore":  "iptables-select",
		"usr/sbin/ip6tables":         "iptables-select",
		"usr/sbin/ip6tables-save":    "iptables-select",
		"usr/sbin/ip6tables-restore": "iptables-select",
	})
}

func link(root string, links map[string]string) error {
	for name, target := range links {
		if err := os.Symlink(target, filepath.Join(root, name)); err != nil {
			return err
		}
	}
	return nil
}

// A picker copies programs out of a root file system together with the shared
// libraries that they load.
type picker struct {
	root, out string
	picked    map[string]bool
}

// pick copies the file at the path rel below the root, and what it needs.
func (p *picker) pick(rel string) error {
	if p.picked[rel] {
		return nil
	}
	p.picked[rel] = true
	path := filepath.Join(p.root, rel)
	info, err := os.Lstat(path)
	if err != nil {
		return err
	}
	if info.Mode()&fs.ModeSymlink != 0 {
		// Libraries are links within their directory: libmnl.so.0 -> libmnl.so.0.2.0.
		target, err := os.Readlink(path)
		if err != nil {
			return err
		}
		if filepath.IsAbs(target) {
			return fmt.Errorf("%q links to %q outside its directory", rel, target)
		}
		if err := os.MkdirAll(filepath.Join(p.out, filepath.Dir(rel)), 0o755); err != nil {
			return err
		}
		if err := os.Symlink(target, filepath.Join(p.out, rel)); err != nil {
			return err
		}
		return p.pick(filepath.Join(filepath.Dir(rel), target))
	}
	if err := copyFile(path, filepath.Join(p.out, rel), info.Mode().Perm()); err != nil {
		return err
	}
	needed, loader, err := dependencies(path)
	if err != nil {
		return err
	}
	if loader != "" {
		if err := p.pickLoader(loader); err != nil {
			return fmt.Errorf("loader %q: %w", loader, err)
		}
	}
	for _, name := range needed {
		found, err := p.find(name)
		if err != nil {
			return err
		}
		if err := p.pick(found); err != nil {
			return fmt.Errorf("library %q: %w", name, err)
		}
	}
	return nil
}

// pickLoader copies the dynamic loader and makes it appear under the path that
// programs name it by, which may be a link to an absolute path in Debian.
func (p *picker) pickLoader(path string) error {
	found, err := p.find(filepath.Base(path))
	if err != nil {
		return err
	}
	if err := p.pick(found); err != nil {
		return err
	}
	asked := filepath.Join("usr", path) // /lib64 is usr/lib64
	if p.picked[asked] {
		return nil
	}
	p.picked[asked] = true
	target, err := filepath.Rel(filepath.Dir(asked), found)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Join(p.out, filepath.Dir(asked)), 0o755); err != nil {
		return err
	}
	return os.Symlink(target, filepath.Join(p.out, asked))
}

// find returns the path of a library.
func (p *picker) find(name string) (string, error) {
	dirs := []string{"usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu", "usr/lib"}
	for _, dir := range dirs {
		rel := filepath.Join(dir, name)
		if _, err := os.Lstat(filepath.Join(p.root, rel)); err == nil {
			return rel, nil
		}
	}
	return "", fmt.Errorf("library %q is not in the root file system", name)
}

// dependencies returns the names of the shared libraries that a program or
// library wants loaded, and the path of its loader. A static program has
// neither, a library has no loader.
func dependencies(path string) (libraries []string, loader string, err error) {
	f, err := elf.Open(path)
	if err != nil {
		return nil, "", err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	libraries, err = f.ImportedLibraries()
	if err != nil {
		return nil, "", err
	}
	for _, segment := range f.Progs {
		if segment.Type != elf.PT_INTERP {
			continue
		}
		text := make([]byte, segment.Filesz)
		if _, err := segment.ReadAt(text, 0); err != nil {
			return nil, "", err
		}
		loader = strings.TrimRight(string(text), "\x00")
	}
	return libraries, loader, nil
}
