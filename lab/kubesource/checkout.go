package kubesource

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/mod/modfile"

	"github.com/dra-lab/dra-lab/lab/internal/ui"
)

// A Checkout is a directory with the source of Kubernetes: a clone of its
// repository, or a copy of the module k8s.io/kubernetes as Go downloads it.
// Nothing is ever written there.
type Checkout struct {
	Dir    string // absolute, without symbolic links
	Base   string // the released version that it comes from, v1.37.2
	Digest string // of its contents, as they were when it was opened
	goMod  []byte
}

// Open reads a checkout. base is the version that it is based on; "" takes the
// last tag before its commit if it is a clone, else what its name ends with,
// as that of a downloaded module does: kubernetes@v1.37.2.
//
// An error is a usage error with a hint.
func Open(ctx context.Context, dir, base string) (Checkout, error) {
	c := Checkout{Base: base}
	var err error
	if c.Dir, err = resolve(dir); err != nil {
		return Checkout{}, notACheckout(dir, err)
	}
	if c.goMod, err = readGoMod(c.Dir); err != nil {
		return Checkout{}, notACheckout(dir, err)
	}
	if c.Base == "" {
		c.Base, err = baseOf(ctx, c.Dir)
	} else if !release().MatchString(c.Base) {
		err = fmt.Errorf("%q is not of the form v1.37.2", c.Base)
	}
	if err != nil {
		err = fmt.Errorf("tell which version the Kubernetes checkout %q is based on: %w", dir, err)
		return Checkout{}, ui.WithHint(ui.UsageError(err), "say it with --kubelet-base, as in --kubelet-base v1.37.2; "+
			"a clone without tags gets them by: git -C %s fetch --tags", dir)
	}
	if c.Digest, err = digest(c.Dir); err != nil {
		return Checkout{}, fmt.Errorf("read Kubernetes checkout %q: %w", dir, err)
	}
	return c, nil
}

func notACheckout(dir string, cause error) error {
	err := fmt.Errorf("%q is no Kubernetes checkout: %w", dir, cause)
	return ui.WithHint(ui.UsageError(err), "name the directory whose go.mod says \"module %s\": a clone of its repository, "+
		"or a writable copy of what \"go mod download -json %s@v1.37.2\" calls Dir", Module, Module)
}

func resolve(dir string) (string, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	abs, err = filepath.EvalSymlinks(abs)
	if err != nil {
		return "", errors.New("there is no such directory")
	}
	if info, err := os.Stat(abs); err != nil || !info.IsDir() {
		return "", errors.New("it is not a directory")
	}
	return abs, nil
}

func readGoMod(dir string) ([]byte, error) {
	data, err := os.ReadFile(filepath.Join(dir, "go.mod"))
	if errors.Is(err, os.ErrNotExist) {
		return nil, errors.New("it has no go.mod")
	}
	if err != nil {
		return nil, err
	}
	if is := modfile.ModulePath(data); is != Module {
		return nil, fmt.Errorf("its go.mod is that of %q", is)
	}
	return data, nil
}

// Version is what a kubelet from this checkout calls itself. It sorts as the
// version that the checkout is based on, and is another one after every edit.
func (c Checkout) Version() string { return c.Base + "+lab." + c.Digest }

// Key tells checkouts apart by where they lie: what was built from an earlier
// state of one has the same key.
func (c Checkout) Key() string {
	sum := sha256.Sum256([]byte(c.Dir))
	return hex.EncodeToString(sum[:])[:8]
}

// Unchanged returns an error if the checkout was edited since it was opened, so
// that what was built from it in between is called by the wrong digest.
func (c Checkout) Unchanged() error {
	now, err := digest(c.Dir)
	if err != nil {
		return fmt.Errorf("read Kubernetes checkout %q: %w", c.Dir, err)
	}
	if now != c.Digest {
		return ui.WithHint(fmt.Errorf("the Kubernetes checkout %q was edited while it was compiled", c.Dir), "run the same command again")
	}
	return nil
}

// release matches the versions that Kubernetes tags.
func release() *regexp.Regexp {
	return regexp.MustCompile(`^v1\.\d+\.\d+(-(alpha|beta|rc)\.\d+)?$`)
}

// baseOf finds out which release a checkout comes from.
func baseOf(ctx context.Context, dir string) (string, error) {
	tag, err := lastTag(ctx, dir)
	if err == nil {
		return tag, nil
	}
	if version := versionInName(filepath.Base(dir)); version != "" {
		return version, nil
	}
	return "", fmt.Errorf("%w, and its name does not end with a version", err)
}

// versionInName returns v1.37.2 for kubernetes@v1.37.2, as a downloaded module
// is called, and for kubernetes-1.37.2 and kubernetes@v1.37.2-mended.
func versionInName(name string) string {
	found := regexp.MustCompile(`[@-]v?(1\.\d+\.\d+(?:-(?:alpha|beta|rc)\.\d+)?)(?:[-+].*)?$`).FindStringSubmatch(name)
	if found == nil {
		return ""
	}
	return "v" + found[1]
}

// lastTag asks git for the last release before the commit that is checked out.
func lastTag(ctx context.Context, dir string) (string, error) {
	top, err := git(ctx, dir, "rev-parse", "--show-toplevel")
	if err != nil {
		return "", err
	}
	// A copy may lie in a repository of something else.
	if top, err = resolve(top); err != nil || top != dir {
		return "", errors.New("it is no git repository")
	}
	tag, err := git(ctx, dir, "describe", "--tags", "--abbrev=0", "--match=v1.*")
	if err != nil {
		return "", err
	}
	if !release().MatchString(tag) {
		return "", fmt.Errorf("git's last tag there is %q", tag)
	}
	return tag, nil
}

func git(ctx context.Context, dir string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "git", args...)
	cmd.Dir = dir
	// What git sets for its hooks would lead it to another repository.
	cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "GIT_") })
	out, err := cmd.Output()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		said, _, _ := strings.Cut(strings.TrimSpace(string(exit.Stderr)), "\n")
		return "", fmt.Errorf("git says %q", said)
	}
	if err != nil {
		return "", fmt.Errorf("ask git: %w", err)
	}
	return strings.TrimSpace(string(out)), nil
}
