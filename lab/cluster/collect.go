package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"sigs.k8s.io/kind/pkg/log"

	"github.com/dra-lab/dra-lab/lab/host"
	"github.com/dra-lab/dra-lab/lab/internal/ui"
)

// Collect is CollectLogs for what there is of the cluster with that name, complete
// or not. If its creation failed, dir gets its failure.log, too, even if that is
// all that is left. The error is ErrNotFound if there is nothing, and ErrForeign if
// it is not ours.
func Collect(ctx context.Context, name, dir string) error {
	e := environmentEngine()
	found, err := look(ctx, e, name)
	if err != nil {
		return fmt.Errorf("collect logs of cluster %q: %w", name, err)
	}
	log, readErr := os.ReadFile(found.dir.failure())
	if readErr != nil && len(found.containers) == 0 {
		return notFound("collect logs of", name)
	}
	if readErr == nil {
		err := os.MkdirAll(dir, 0o755)
		if err == nil {
			err = host.WriteFile(filepath.Join(dir, filepath.Base(found.dir.failure())), log, 0o644)
		}
		if err != nil {
			return fmt.Errorf("collect logs of cluster %q: %w", name, err)
		}
	}
	if len(found.containers) == 0 {
		return nil
	}
	return newCluster(e, found).CollectLogs(ctx, dir)
}

// CollectLogs writes into dir what helps to find a fault: per node its journal,
// the logs of its Pods, its container's description and what DRA drivers and the
// kubelet have on its disk, and the objects and events of the cluster. The
// directory is made. What cannot be had is in the error; the rest is there all
// the same.
func (c *Cluster) CollectLogs(ctx context.Context, dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("collect logs of cluster %q: %w", c.Name(), err)
	}
	nodes, err := c.Nodes(ctx)
	if err != nil {
		return err
	}
	errs := make([]error, len(nodes)+2)
	var group sync.WaitGroup
	group.Go(func() { errs[0] = c.collectKind(ctx, dir) })
	group.Go(func() { errs[1] = c.collectObjects(ctx, dir) })
	for i, n := range nodes {
		group.Go(func() { errs[i+2] = collectDRA(ctx, n, filepath.Join(dir, n.Name())) })
	}
	group.Wait()
	if err := errors.Join(errs...); err != nil {
		short := fmt.Errorf("collect logs of cluster %q: not all could be had", c.Name())
		return ui.WithDetail(short, "what is missing", err.Error())
	}
	return nil
}

// collectKind runs kind's own collection, which takes no context.
func (c *Cluster) collectKind(ctx context.Context, dir string) error {
	done := make(chan error, 1)
	go func() { done <- c.engine.kindProvider(log.NoopLogger{}).CollectLogs(c.Name(), dir) }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// collectObjects asks the control plane's own kubectl, which fits the version.
func (c *Cluster) collectObjects(ctx context.Context, dir string) error {
	node, err := c.ControlPlane(ctx)
	if err != nil {
		return err
	}
	var errs []error
	for file, args := range map[string][]string{
		"objects.yaml": {"get", "--output=yaml", "--all-namespaces",
			"nodes,pods,jobs,daemonsets,deployments,resourceclaims,resourceclaimtemplates,resourceslices,deviceclasses"},
		"events.txt": {"get", "events", "--all-namespaces", "--sort-by=.lastTimestamp", "--output=wide"},
	} {
		argv := append([]string{"kubectl", "--kubeconfig=/etc/kubernetes/admin.conf"}, args...)
		errs = append(errs, collectFile(ctx, node, filepath.Join(dir, file), argv...))
	}
	return errors.Join(errs...)
}

// collectDRA writes the small files that drivers and the kubelet keep.
func collectDRA(ctx context.Context, n Node, dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	const script = `find /var/run/cdi /etc/cdi /var/lib/kubelet/plugins /var/lib/kubelet/plugins_registry \
	/var/lib/dra-lab/hardware /var/lib/kubelet/dra_manager_state /var/lib/kubelet/dra_health_state \
	2>/dev/null | sort | while read -r file; do
	echo "== $(ls -ld "$file")"
	if [ -f "$file" ] && [ "$(wc -c <"$file")" -lt 1000000 ]; then cat "$file"; echo; fi
done`
	return collectFile(ctx, n, filepath.Join(dir, "dra.txt"), "/bin/sh", "-c", script)
}

// collectFile writes the output of a command in a node to a file, also if the
// command fails.
func collectFile(ctx context.Context, n Node, file string, argv ...string) error {
	out, err := n.Exec(ctx, nil, argv...)
	if err != nil {
		out = append(bytes.TrimSpace(out), ("\n" + err.Error() + "\n")...)
	}
	return errors.Join(err, os.WriteFile(file, out, 0o644)) //nolint:gosec // a bundle to hand on
}
