package host

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/dra-lab/dra-lab/lab/internal/ui"
)

// ErrEngineInUse says that the private engine was left alone because it has
// containers that somebody may still want.
var ErrEngineInUse = errors.New("the private engine is in use")

// temporaryLabel marks containers that are never anybody's: leftovers of a
// build or a check that was interrupted.
const temporaryLabel = "dra-lab.temporary"

// StopEngine stops the lab's private engine and removes its network interfaces,
// firewall rules, mounts and run directory. Its data root stays: that is a
// cache. Without a private engine it only removes what one may have left, and
// without anything it does nothing.
//
// While the engine has containers other than temporary ones, it is left alone
// and the error is ErrEngineInUse, naming them. What was killed half-way,
// start or stop, is cleared up as well. Only root can have started the engine,
// so for anybody else this does nothing.
func StopEngine(ctx context.Context) error {
	if os.Geteuid() != 0 {
		return nil
	}
	p, err := newPrivateEngine()
	if err != nil {
		return err
	}
	return p.stopLocked(ctx)
}

func (p privateEngine) stopLocked(ctx context.Context) error {
	if !exists(p.run) && !p.unfinished() {
		return nil
	}
	unlock, err := p.lock(ctx, silent())
	if err != nil {
		return err
	}
	err = p.stop(ctx)
	unlock()
	// Whatever else is in there keeps it.
	_ = os.Remove(filepath.Dir(p.run))
	return err
}

// silent is for steps that are only a part of what the user asked for.
func silent() *ui.UI { return ui.New(io.Discard, io.Discard, 0) }

func (p privateEngine) stop(ctx context.Context) error {
	if err := p.removeContainers(ctx); err != nil {
		return err
	}
	dataRoot := p.dataRoot() // the configuration goes with the run directory
	err := errors.Join(
		endDaemon(ctx, p.dockerd()),
		p.killShims(),
		endDaemon(ctx, p.containerd()),
	)
	if err != nil {
		return err // with a process left, the rest would pull its ground away
	}
	return errors.Join(
		unmountBelow(p.run, dataRoot),
		removeBridges(p.prefix),
		firewall{prefix: p.prefix}.close(ctx),
		removeFile(p.networkFile()),
		removeTree(p.bin),
		removeTree(p.run),
		removeSharedDirectories(),
	)
}

// removeSharedDirectories removes the directories that all engines of a machine
// put sockets into, wherever else they keep theirs, if nobody needs them.
func removeSharedDirectories() error {
	others, err := findAll(func(argv []string) bool {
		program := filepath.Base(argv[0])
		return program == "dockerd" || strings.HasPrefix(program, "containerd")
	})
	if err != nil || len(others) > 0 {
		return err
	}
	// Without any containerd or shim, these are sockets of the dead.
	if err := removeTree("/run/containerd/s"); err != nil {
		return err
	}
	for _, dir := range []string{"/run/containerd", "/run/docker/plugins", "/run/docker"} {
		_ = os.Remove(dir) // only where it is empty
	}
	return nil
}

// unfinished reports whether the engine has run and was not stopped by the lab
// since: it runs, or it was killed, perhaps by a reboot. Then there may be
// containers in its data root.
func (p privateEngine) unfinished() bool { return exists(p.networkFile()) }

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// removeContainers removes the temporary containers and all networks of the
// engine. It refuses when there are other containers.
func (p privateEngine) removeContainers(ctx context.Context) error {
	if p.idle() && !p.unfinished() {
		return nil
	}
	if !p.serves(ctx) {
		// Containers or a daemon without the other: only the whole engine
		// knows what there is and how to remove it.
		if err := p.start(ctx, silent()); err != nil {
			if cause := context.Cause(ctx); cause != nil {
				return cause // that it did not start says nothing
			}
			if shims, listErr := p.shims(); listErr != nil || len(shims) > 0 {
				return errors.Join(err, listErr)
			}
			return nil // it never worked, and no container of it runs
		}
	}
	e := p.engine()
	kept, err := output(e.Command(ctx, "ps", "--all", "--format", "{{.Names}}\t{{.Label \""+temporaryLabel+"\"}}"))
	if err != nil {
		return fmt.Errorf("list containers: %w", err)
	}
	var names, temporary []string
	for line := range strings.Lines(kept) {
		name, label, _ := strings.Cut(strings.TrimSpace(line), "\t")
		switch {
		case name == "":
		case label != "":
			temporary = append(temporary, name)
		default:
			names = append(names, name)
		}
	}
	if len(names) > 0 {
		return ui.WithHint(fmt.Errorf("stop engine: %w by %s", ErrEngineInUse, strings.Join(names, ", ")),
			"delete the cluster with \"lab down --name NAME\", or a container with \"DOCKER_HOST=%s docker rm -f NAME\"", e.Host)
	}
	if len(temporary) > 0 {
		if _, err := output(e.Command(ctx, append([]string{"rm", "--force", "--volumes"}, temporary...)...)); err != nil {
			return fmt.Errorf("remove temporary containers: %w", err)
		}
	}
	networks, err := output(e.Command(ctx, "network", "ls", "--quiet", "--filter=type=custom"))
	if err != nil {
		return fmt.Errorf("list engine networks: %w", err)
	}
	if ids := strings.Fields(networks); len(ids) > 0 {
		if _, err := output(e.Command(ctx, append([]string{"network", "rm"}, ids...)...)); err != nil {
			return fmt.Errorf("remove engine networks: %w", err)
		}
	}
	return nil
}

// idle reports whether neither a daemon nor a container of the engine runs.
func (p privateEngine) idle() bool {
	shims, err := p.shims()
	return err == nil && len(shims) == 0 && !p.dockerd().running() && !p.containerd().running()
}

// shims returns the processes that hold the engine's containers. They outlive
// both daemons.
func (p privateEngine) shims() ([]*os.Process, error) {
	return findAll(func(argv []string) bool {
		return strings.HasPrefix(filepath.Base(argv[0]), "containerd-shim") && slices.Contains(argv[1:], p.containerdSocket())
	})
}

// killShims kills what is left of them. Those of removed containers end by
// themselves, but not always at once.
func (p privateEngine) killShims() error {
	shims, err := p.shims()
	if err != nil {
		return err
	}
	var errs error
	for _, shim := range shims {
		errs = errors.Join(errs, signal(shim, syscall.SIGKILL))
	}
	return errs
}

func removeFile(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove file: %w", err)
	}
	return nil
}
