package host

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/user"
	"slices"
	"strings"

	"github.com/dra-lab/dra-lab/lab/internal/ui"
)

// ErrNoEngine says that there is no engine to use.
var ErrNoEngine = errors.New("no container engine")

// Environment variables with which the user chooses the engine.
const (
	dockerHostEnv = "DOCKER_HOST"
	providerEnv   = "KIND_EXPERIMENTAL_PROVIDER"
)

// EnsureEngine returns an engine that has just run a privileged container.
//
// An engine that the user named with DOCKER_HOST or KIND_EXPERIMENTAL_PROVIDER
// is used or the cause of an error, never replaced by another one. Else it is
// the private engine if that runs or, for root, if it has a cache from earlier;
// then whichever of docker, podman and nerdctl serves. If none does, root gets a
// private engine, with Debian's packages for it installed first where they are
// missing; anybody else gets an error with the command to run as hint.
//
// It is idempotent and may be killed at any time: the next call finishes what
// this one began.
func EnsureEngine(ctx context.Context, u *ui.UI) (*Engine, error) {
	p, err := newPrivateEngine()
	if err != nil {
		return nil, err
	}
	return ensurer{private: p, ui: u, root: os.Geteuid() == 0}.ensure(ctx)
}

// FindEngine returns the engine that EnsureEngine would, if it serves already.
// It starts, installs and verifies nothing, and Restrictions has only what the
// engine says by itself. The error is ErrNoEngine if there is none; a private
// engine of another user is not none.
func FindEngine(ctx context.Context) (*Engine, error) {
	p, err := newPrivateEngine()
	if err != nil {
		return nil, err
	}
	var others error // there is a private engine, and it is not for us
	for _, e := range candidates(p, os.Getenv) {
		if err := e.check(); err != nil {
			return nil, err
		}
		facts := inspect(ctx, e.Engine)
		if cause := context.Cause(ctx); cause != nil {
			return nil, fmt.Errorf("find engine: %w", cause)
		}
		if facts.Unreachable == "" {
			return facts.engine(), nil
		}
		if e.from != "" {
			return nil, unreachable(e, facts)
		}
		if e.Private && facts.Unreachable == denied {
			others = ui.WithHint(fmt.Errorf("reach private engine %q: %s", e.Host, denied),
				"that lab is another user's, as a rule root's: do this as that user, or with sudo")
		}
	}
	if others != nil {
		return nil, others
	}
	return nil, ui.WithHint(fmt.Errorf("find engine: %w", ErrNoEngine), "start a lab with: lab up")
}

// ResumeEngine is FindEngine for what ends a lab: if the private engine was
// killed, perhaps by a reboot, with clusters in it, root gets it started again,
// so that they can be removed.
func ResumeEngine(ctx context.Context, u *ui.UI) (*Engine, error) {
	p, err := newPrivateEngine()
	if err != nil {
		return nil, err
	}
	n := ensurer{private: p, ui: u, root: os.Geteuid() == 0}
	if chosen := candidates(p, os.Getenv)[0]; chosen.Private && n.root && p.unfinished() && !p.serves(ctx) {
		return n.startPrivate(ctx)
	}
	return FindEngine(ctx)
}

// candidate is an engine that there might be.
type candidate struct {
	Engine
	from string // the environment variable that names it; "": nobody did
}

// candidates returns the engines to look for, in order. If the user named one,
// it is the only one.
func candidates(p privateEngine, getenv func(string) string) []candidate {
	private := candidate{Engine: *p.engine()}
	address, kind := getenv(dockerHostEnv), getenv(providerEnv)
	if address != "" && (kind == "" || kind == "docker") {
		if address == private.Host {
			private.from = dockerHostEnv
			return []candidate{private}
		}
		return []candidate{{Engine: Engine{Kind: "docker", Host: address}, from: dockerHostEnv}}
	}
	if kind != "" && kind != "docker" {
		return []candidate{{Engine: Engine{Kind: kind}, from: providerEnv}}
	}
	found := []candidate{private, {Engine: Engine{Kind: "docker"}}}
	if kind == "" {
		found = append(found, candidate{Engine: Engine{Kind: "podman"}}, candidate{Engine: Engine{Kind: "nerdctl"}})
	}
	return found
}

// ensurer looks for an engine and starts one if it has to.
type ensurer struct {
	private privateEngine
	ui      *ui.UI
	root    bool
}

func (n ensurer) ensure(ctx context.Context) (*Engine, error) {
	var rejected []EngineFacts
	for _, c := range candidates(n.private, os.Getenv) {
		if c.Private {
			// A service that came with our packages may have started at
			// boot, but the node images are in here.
			cached := n.root && exists(n.private.dataRoot())
			if c.from == "" && n.private.idle() && !cached {
				continue // started only if nothing else serves
			}
			return n.startPrivate(ctx)
		}
		if err := c.check(); err != nil {
			return nil, err
		}
		facts := inspect(ctx, c.Engine)
		if cause := context.Cause(ctx); cause != nil {
			return nil, fmt.Errorf("find engine: %w", cause)
		}
		if facts.Unreachable == "" {
			err := n.check(ctx, &facts)
			if err == nil {
				return facts.engine(), nil
			}
			if cause := context.Cause(ctx); cause != nil {
				return nil, cause
			}
			if c.from != "" {
				return nil, ui.WithHint(fmt.Errorf("use engine %q (%s): %w", c.address(), c.from, err),
					"unset %s, and the lab looks for another engine or starts its own as root", c.from)
			}
		}
		if c.from != "" {
			return nil, unreachable(c, facts)
		}
		rejected = append(rejected, facts)
	}
	for _, facts := range rejected {
		if facts.Unprivileged != "" {
			n.ui.Warn("the %s engine at %s is left alone: %s", facts.Kind, facts.Host, facts.Unprivileged)
		}
	}
	if !n.root {
		return nil, noEngine(rejected, readOSRelease("/etc/os-release"), userName())
	}
	return n.startPrivate(ctx)
}

// check refuses what kind cannot use.
func (c candidate) check() error {
	if slices.Contains([]string{"docker", "podman", "nerdctl"}, c.Kind) {
		return nil
	}
	return ui.WithHint(fmt.Errorf("use engine %q (%s): not one that kind can use", c.Kind, c.from),
		"set %s to docker, podman or nerdctl", c.from)
}

func (c candidate) address() string {
	if c.Host != "" {
		return c.Host
	}
	return c.Kind
}

func unreachable(c candidate, facts EngineFacts) error {
	err := fmt.Errorf("reach engine %q (%s): %s", c.address(), c.from, facts.Unreachable)
	switch {
	case facts.CommandMissing:
		return ui.WithHint(err, "install the program %q, or unset %s", c.Kind, c.from)
	case strings.Contains(facts.Unreachable, denied):
		return ui.WithHint(err, "run this as root, join the group that may use it (sudo usermod -aG docker %s && newgrp docker), or unset %s", userName(), c.from)
	}
	return ui.WithHint(err, "start the engine there, or unset %s, and the lab looks for another one or starts its own as root", c.from)
}

func (n ensurer) check(ctx context.Context, facts *EngineFacts) (err error) {
	step := n.ui.Step("checking that %s %s runs privileged containers", facts.Kind, facts.Version)
	defer func() { step.Done(err) }()
	return facts.check(ctx, *facts.engine())
}

// startPrivate brings the private engine up, whatever of it is missing.
func (n ensurer) startPrivate(ctx context.Context) (*Engine, error) {
	p := n.private
	switch {
	case n.root:
		if err := n.bringUp(ctx); err != nil {
			return nil, err
		}
	case !p.serves(ctx):
		return nil, ui.WithHint(fmt.Errorf("start private engine %q: not root", p.socket()), "sudo make lab-up")
	}
	facts := inspect(ctx, *p.engine())
	if facts.Unreachable != "" {
		return nil, fmt.Errorf("reach private engine %q: %s", p.socket(), facts.Unreachable)
	}
	if err := n.check(ctx, &facts); err != nil {
		err = fmt.Errorf("use private engine %q: %w", p.socket(), err)
		if context.Cause(ctx) != nil {
			return nil, err // nothing is wrong with the engine
		}
		return nil, ui.WithHint(ui.WithDetail(err, "last lines of "+p.log(), tail(p.log())),
			"this machine may itself be a container: give it more privileges (docker run --privileged), or run the lab on the machine below it")
	}
	return facts.engine(), nil
}

// bringUp installs and starts the private engine as far as that is needed.
func (n ensurer) bringUp(ctx context.Context) error {
	unlock, err := n.private.lock(ctx, n.ui)
	if err != nil {
		return err
	}
	defer unlock()
	if missing := missingPrograms(); len(missing) > 0 {
		n.ui.Info("no usable container engine and no %s: installing Debian's, without starting it as a service", strings.Join(missing, ", "))
		if err := installEngine(ctx, n.ui); err != nil {
			return err
		}
	}
	return n.private.start(ctx, n.ui)
}

// missingPrograms returns the programs of a private engine that are not here.
func missingPrograms() []string {
	return slices.DeleteFunc([]string{"dockerd", "docker", "containerd", "containerd-shim-runc-v2", "runc", "iptables"},
		func(name string) bool { return findProgram(name) != "" })
}

// installEngine installs the packages behind the missing programs.
func installEngine(ctx context.Context, u *ui.UI) error {
	if err := EnsurePackages(ctx, u, "a container engine", EnginePackages()...); err != nil {
		return err
	}
	if findProgram("docker") == "" {
		// Newer Debian has the command in a package of its own.
		if err := EnsurePackages(ctx, u, "a container engine", "docker-cli"); err != nil {
			return err
		}
	}
	if missing := missingPrograms(); len(missing) > 0 {
		return ui.WithHint(fmt.Errorf("install container engine: still no %s", strings.Join(missing, ", ")),
			"apt-get install -y --reinstall %s", strings.Join(EnginePackages(), " "))
	}
	return nil
}

// noEngine tells somebody who is not root what to do.
func noEngine(rejected []EngineFacts, system OSRelease, name string) error {
	var reasons []string
	hint := "sudo make lab-up"
	if system.debianLike() {
		hint = fmt.Sprintf("sudo apt-get install -y docker.io && sudo usermod -aG docker %s && newgrp docker", name)
	}
	for _, facts := range rejected {
		switch {
		case strings.Contains(facts.Unreachable, denied):
			hint = fmt.Sprintf("sudo usermod -aG docker %s && newgrp docker", name)
			fallthrough
		case !facts.CommandMissing:
			reasons = append(reasons, facts.Kind+": "+facts.Unreachable+facts.Unprivileged)
		}
	}
	if len(reasons) == 0 {
		reasons = []string{"neither docker nor podman nor nerdctl is here"}
	}
	return ui.WithHint(fmt.Errorf("find engine: %w that can be used: %s", ErrNoEngine, strings.Join(reasons, "; ")), "%s", hint)
}

func userName() string {
	if current, err := user.Current(); err == nil {
		return current.Username
	}
	return "$USER"
}
