package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/dra-lab/dra-lab/lab/internal/ui"
)

// Remove removes the cluster with that name, complete or not: its containers and
// their volumes, its state directory with the shared one, its context in the
// user's kubeconfig, and kind's network if the lab made it and nothing uses it.
// If there is nothing it says so; that is no error. A cluster that is not ours
// is left alone: the error is ErrForeign.
func Remove(ctx context.Context, name string, u *ui.UI) error {
	e := environmentEngine()
	found, err := look(ctx, e, name)
	if err != nil {
		return fmt.Errorf("remove cluster %q: %w", name, err)
	}
	if !found.there() {
		u.Info("there is no cluster %q", name)
		return removeFound(ctx, e, found) // what a failed one may have left
	}
	step := u.Step("removing cluster %q", name)
	err = removeFound(ctx, e, found)
	step.Done(err)
	return err
}

// Delete removes the cluster; see Remove.
func (c *Cluster) Delete(ctx context.Context) error {
	found, err := look(ctx, c.engine, c.Name())
	if err != nil {
		return fmt.Errorf("remove cluster %q: %w", c.Name(), err)
	}
	return removeFound(ctx, c.engine, found)
}

func removeFound(ctx context.Context, e engine, found survey) error {
	if err := errors.Join(found.remove(ctx, e), removeNetwork(ctx, e)); err != nil {
		err = fmt.Errorf("remove cluster %q: %w", found.dir.name(), err)
		left := names(found.containers)
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), diagnosisTimeout)
		defer cancel()
		if now, lookErr := e.containers(ctx, found.dir.name()); lookErr == nil {
			left = names(now)
		}
		if _, statErr := os.Stat(string(found.dir)); statErr == nil {
			left += " and " + string(found.dir)
		}
		return ui.WithHint(err, "left are %s; run \"lab down --name %s\" again", left, found.dir.name())
	}
	return nil
}
