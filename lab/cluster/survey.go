package cluster

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/dra-lab/dra-lab/lab/host"
	"github.com/dra-lab/dra-lab/lab/internal/ui"
)

var (
	// ErrNotFound means that there is no cluster with that name.
	ErrNotFound = errors.New("no such cluster")
	// ErrIncomplete means that a cluster of ours is there but not all of it: its
	// creation was interrupted or failed. It is also ErrNotFound: Ensure makes
	// it anew.
	ErrIncomplete = fmt.Errorf("half-made: %w", ErrNotFound)
	// ErrForeign means that somebody else's cluster has that name.
	ErrForeign = errors.New("not made by this lab")
)

// survey is what there is of a cluster.
type survey struct {
	dir        stateDir
	containers []container
	state      state
	hasState   bool
}

// look finds out what there is of a cluster. The error is ErrForeign if any of
// its containers is not ours.
func look(ctx context.Context, e engine, name string) (survey, error) {
	dir, err := stateDirOf(name)
	if err != nil {
		return survey{}, err
	}
	s := survey{dir: dir}
	if s.state, s.hasState, err = dir.read(); err != nil {
		return survey{}, err
	}
	if s.containers, err = e.containers(ctx, name); err != nil {
		return survey{}, err
	}
	if err := s.checkOwner(); err != nil {
		return survey{}, err
	}
	return s, nil
}

// checkOwner refuses containers that do not have our shared directory.
func (s survey) checkOwner() error {
	for _, c := range s.containers {
		// A load balancer has no mounts; its nodes speak for it, and where it is
		// alone, our state does.
		if !c.isNode() && (s.hasState || slices.ContainsFunc(s.containers, container.isNode)) {
			continue
		}
		source, ok := c.mounts[SharedDir]
		if ok && samePath(source, s.dir.shared()) {
			continue
		}
		if ok {
			state := filepath.Dir(filepath.Dir(filepath.Dir(source)))
			return ui.WithHint(fmt.Errorf("container %s belongs to the lab whose state is in %s: %w", c.name, state, ErrForeign),
				"choose another --name, or go on with that lab: export %s=%s", host.StateEnv, state)
		}
		return ui.WithHint(fmt.Errorf("container %s is in a kind cluster of that name: %w", c.name, ErrForeign),
			"choose another --name, or remove that cluster yourself: kind delete cluster --name %s", s.dir.name())
	}
	return nil
}

// there reports whether there is anything of it.
func (s survey) there() bool { return len(s.containers) > 0 || s.hasState }

// complete reports whether its creation came to its end.
func (s survey) complete() bool {
	return s.hasState && s.state.Phase == phaseReady && len(s.containers) > 0
}

// nodes returns the containers that are nodes.
func (s survey) nodes() []container {
	var nodes []container
	for _, c := range s.containers {
		if c.isNode() {
			nodes = append(nodes, c)
		}
	}
	return nodes
}
