package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/kind/pkg/apis/config/v1alpha4"
	kind "sigs.k8s.io/kind/pkg/cluster"
	"sigs.k8s.io/yaml"

	"github.com/dra-lab/dra-lab/lab/host"
	"github.com/dra-lab/dra-lab/lab/internal/ui"
	"github.com/dra-lab/dra-lab/lab/nodeimage"
	"github.com/dra-lab/dra-lab/lab/passthrough"
)

const (
	// defaultWait is how long nodes get to become ready once kubeadm is done; on
	// a loaded machine with two cores they needed 20 s.
	defaultWait = 4 * time.Minute
	// abortTimeout is how long an interrupted creation may take to end.
	abortTimeout = time.Minute
	// How often an interrupted creation is looked at: kind goes on making
	// containers until it notices that one is gone.
	abortInterval = time.Second
)

// ErrExists means that a cluster of ours with that name is there already.
var ErrExists = errors.New("already there")

// Options is what a cluster is made from.
type Options struct {
	Name string
	// Config is the user's, from ParseConfig; nil is DefaultConfig.
	Config *Config
	// Image is for all nodes that the config names no image for.
	Image nodeimage.Image
	// Restrictions is what the host withholds, as the engine knows it.
	Restrictions host.Restrictions
	// GPUs are the host's, for the workers; nil is none.
	GPUs *passthrough.Source
	// Retain keeps the nodes of a cluster that does not come up, for a look. The
	// next Ensure makes them anew.
	Retain bool
	// Wait is how long nodes get to become ready; 0 is 4 minutes.
	Wait time.Duration
	// Meanwhile, if not nil, is called while kubeadm works, which leaves a machine
	// idle for much of its time: the nodes run, but are no cluster yet. It is not
	// called for a cluster that is there already. Its context ends when the
	// creation fails; the creation ends after it.
	Meanwhile func(context.Context, []Node)
}

// Create makes a cluster and returns when all of its nodes are ready. A
// half-made one of ours is removed first. The error is ErrExists if a complete
// one of ours has the name, and ErrForeign if somebody else's has; neither is
// touched.
//
// When it fails, the error has the last state of the worst node, and what there
// is of the cluster is removed unless Options.Retain is set. When ctx ends it
// stops, tidies up in the same way, and the error says if anything is left.
func Create(ctx context.Context, o Options, u *ui.UI) (*Cluster, error) {
	m, err := newMaker(ctx, o, u)
	if err != nil {
		return nil, fmt.Errorf("create cluster %q: %w", o.Name, err)
	}
	if m.found.complete() {
		err := fmt.Errorf("create cluster %q: %w", o.Name, ErrExists)
		return nil, ui.WithHint(err, "remove it first: lab down --name %s", o.Name)
	}
	return m.create(ctx)
}

// Ensure is Create, except that a complete cluster of ours is used as it is if
// it was made from the same plan. Nodes that do not run are started. If the plan
// differs, the error says where.
func Ensure(ctx context.Context, o Options, u *ui.UI) (*Cluster, error) {
	m, err := newMaker(ctx, o, u)
	if err != nil {
		return nil, fmt.Errorf("ensure cluster %q: %w", o.Name, err)
	}
	if m.found.complete() {
		return m.reuse(ctx)
	}
	return m.create(ctx)
}

type maker struct {
	Options
	ui        *ui.UI
	engine    engine
	found     survey
	version   string  // of the control plane
	config    *Config // the plan
	plan      string  // the same, as YAML
	additions []Addition
}

// newMaker finds out what there is and plans what there is to be. It changes
// nothing.
func newMaker(ctx context.Context, o Options, u *ui.UI) (*maker, error) {
	if o.Wait == 0 {
		o.Wait = defaultWait
	}
	m := &maker{Options: o, ui: u, engine: environmentEngine()}
	var err error
	if m.found, err = look(ctx, m.engine, o.Name); err != nil {
		return nil, err
	}
	images, err := m.images(ctx)
	if err != nil {
		return nil, err
	}
	podSubnet, err := m.podSubnet()
	if err != nil {
		return nil, err
	}
	m.config, m.additions, err = Plan(PlanInput{
		Name: o.Name, Config: o.Config, Image: o.Image, Images: images,
		Restrictions: o.Restrictions, Dir: string(m.found.dir), PodSubnet: podSubnet, GPUs: o.GPUs,
	})
	if err != nil {
		return nil, err
	}
	m.version = o.Image.Kubernetes
	for _, n := range slices.Backward(m.config.Nodes) {
		if image, ok := images[n.Image]; ok && n.Role == v1alpha4.ControlPlaneRole {
			m.version = image.Kubernetes
		}
	}
	data, err := yaml.Marshal(m.config)
	if err != nil {
		return nil, err
	}
	m.plan = string(data)
	return m, nil
}

// images returns what is known of the images that the config names. Those that
// the engine does not have are pulled: their versions are needed to plan.
func (m *maker) images(ctx context.Context) (map[string]nodeimage.Image, error) {
	images := make(map[string]nodeimage.Image)
	if m.Config == nil {
		return images, nil
	}
	for _, n := range m.Config.Nodes {
		ref := n.Image
		if _, ok := images[ref]; ok || ref == "" {
			continue
		}
		if _, err := m.engine.output(ctx, "image", "inspect", "--format", "{{.Id}}", ref); err != nil {
			step := m.ui.Step("pulling node image %s", ref)
			_, err := m.engine.output(ctx, "pull", "--quiet", ref)
			step.Done(err)
			if err != nil {
				return nil, ui.WithHint(fmt.Errorf("get node image %q: %w", ref, err),
					`see "lab node-image list", or build one with "lab node-image build"`)
			}
		}
		image, err := nodeimage.Inspect(ctx, m.engine.Engine, ref)
		if err != nil {
			return nil, err
		}
		images[ref] = image
	}
	return images, nil
}

// reuse makes sure that a complete cluster is what is wanted, and that it runs.
func (m *maker) reuse(ctx context.Context) (*Cluster, error) {
	fail := func(err error) (*Cluster, error) {
		return nil, fmt.Errorf("reuse cluster %q: %w", m.Name, err)
	}
	if m.found.state.Plan != m.plan {
		err := fmt.Errorf("it was made from another plan: %s", difference(m.found.state.Plan, m.plan))
		return fail(ui.WithHint(err, "remove it first: lab down --name %s; or choose another --name", m.Name))
	}
	if have, want := len(m.found.nodes()), len(m.config.Nodes); have != want {
		return fail(ui.WithHint(fmt.Errorf("it has %d nodes, not %d", have, want), "make it anew: lab down --name %s, then lab up --name %s", m.Name, m.Name))
	}
	c := newCluster(m.engine, m.found)
	if slices.ContainsFunc(m.found.containers, func(c container) bool { return !c.running() }) {
		step := m.ui.Step("starting the nodes of cluster %q", m.Name)
		err := m.engine.start(ctx, m.found.containers)
		if err == nil {
			m.found, err = look(ctx, m.engine, m.Name) // when they were started
			c = newCluster(m.engine, m.found)
		}
		step.Done(err)
		if err != nil {
			return fail(err)
		}
	}
	if _, err := clientcmd.LoadFromFile(c.Kubeconfig()); err != nil { // kind does not replace it whole
		if err := m.engine.kindProvider(newLogger(m.ui)).ExportKubeConfig(m.Name, c.Kubeconfig(), false); err != nil {
			return fail(kindError(ctx, err))
		}
	}
	if err := m.waitReady(ctx, c); err != nil {
		return fail(explain(ctx, m.engine, m.found, err))
	}
	m.ui.Info("cluster %q is there: using it", m.Name)
	return c, nil
}

// create makes the cluster, after removing what there is of it.
func (m *maker) create(ctx context.Context) (*Cluster, error) {
	if len(m.found.containers) > 0 {
		m.ui.Info("cluster %q is half-made: making it anew", m.Name)
	}
	if err := m.found.remove(ctx, m.engine); err != nil {
		return nil, fmt.Errorf("remove half-made cluster %q: %w", m.Name, err)
	}
	for _, a := range m.additions {
		m.ui.Info("added %s", a)
	}
	if err := os.MkdirAll(string(m.found.dir), 0o755); err != nil {
		return nil, fmt.Errorf("create cluster %q: %w", m.Name, err)
	}
	s := state{
		Name: m.Name, Phase: phaseCreating, Since: time.Now().UTC().Truncate(time.Second),
		Version: m.version, Plan: m.plan,
	}
	err := m.found.dir.write(s)
	if err == nil {
		err = m.found.dir.prepare(m.additions)
	}
	if err == nil {
		err = m.make(ctx, &s)
	}
	if err != nil {
		return nil, m.failed(ctx, s, err)
	}
	found, err := look(ctx, m.engine, m.Name)
	if err != nil {
		return nil, fmt.Errorf("create cluster %q: %w", m.Name, err)
	}
	return newCluster(m.engine, found), nil
}

// make runs kind and waits for the nodes.
func (m *maker) make(ctx context.Context, s *state) (err error) {
	network, err := newNetwork(ctx, m.engine)
	if err != nil {
		return err
	}
	meanwhile, cancel := context.WithCancelCause(ctx)
	var group sync.WaitGroup
	defer func() {
		if err != nil {
			cancel(err)
		}
		group.Wait()
		cancel(nil)
	}()
	log := newLogger(m.ui)
	log.kubeadmStarts = sync.OnceFunc(func() { group.Go(func() { m.meanwhile(meanwhile) }) })
	provider := m.engine.kindProvider(log)
	err = m.runKind(ctx, provider)
	log.close(err)
	if err := errors.Join(err, network.made(ctx, m.engine)); err != nil {
		return err
	}
	found := m.found
	if found.containers, err = m.engine.containers(ctx, m.Name); err != nil {
		return err
	}
	if err := m.waitReady(ctx, newCluster(m.engine, found)); err != nil {
		return err
	}
	if s.Merged, err = planMerge(m.Name, s.Merged); err == nil {
		// Recorded first: an interruption must leave no context that nobody removes.
		if err := m.found.dir.write(*s); err != nil {
			return err
		}
		err = s.Merged.merge(provider, m.Name)
	}
	if err != nil {
		m.ui.Warn("%v; use \"lab env\"", err) // the cluster has its own
	}
	s.Phase = phaseReady
	return m.found.dir.write(*s)
}

// meanwhile has the caller do what it wants to do while kubeadm works.
func (m *maker) meanwhile(ctx context.Context) {
	if m.Meanwhile == nil {
		return
	}
	nodes, err := newCluster(m.engine, m.found).Nodes(ctx)
	if err != nil {
		m.ui.Debug("%v", err) // what cannot be done now is done later
		return
	}
	m.Meanwhile(ctx, nodes)
}

// runKind runs kind's creation, which takes no context. If ctx ends, the nodes
// are taken away from under it, which makes it end.
func (m *maker) runKind(ctx context.Context, provider *kind.Provider) error {
	done := make(chan error, 1)
	go func() {
		done <- provider.Create(m.Name,
			kind.CreateWithV1Alpha4Config(m.config.DeepCopy()),
			kind.CreateWithKubeconfigPath(m.found.dir.kubeconfig()),
			// We remove nodes ourselves: after a look at them, and only ours.
			kind.CreateWithRetain(true),
		)
	}()
	var ended error
	select {
	case ended = <-done:
		// An interrupt on a terminal reaches kind's commands, too, and may reach
		// them first.
		if !interrupted(ended) {
			return ended
		}
		select {
		case <-ctx.Done():
		case <-time.After(abortInterval):
			return ended // somebody else's
		}
	case <-ctx.Done():
	}
	cause := context.Cause(ctx)
	m.ui.Info("stopping: %v", cause)
	if ended != nil {
		return cause
	}
	stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), abortTimeout)
	defer cancel()
	ticker := time.NewTicker(abortInterval)
	defer ticker.Stop()
	for {
		if !m.Retain {
			if err := m.removeNodes(stop); err != nil {
				m.ui.Debug("%v", err) // tried again, and reported at the end
			}
		}
		select {
		case err := <-done:
			m.ui.Debug("kind stopped: %v", err) // at what it stopped is of no interest
			return cause
		case <-stop.Done():
			return fmt.Errorf("%w; kind did not stop within %s", cause, abortTimeout)
		case <-ticker.C:
		}
	}
}

// interrupted says whether kind failed because a command of its got an interrupt.
func interrupted(err error) bool {
	failed := failedCommand(err)
	if failed == nil {
		return false
	}
	var exit *exec.ExitError
	if !errors.As(failed.Inner, &exit) {
		return false
	}
	status, ok := exit.Sys().(syscall.WaitStatus)
	return ok && (status.Signaled() && status.Signal() == syscall.SIGINT || status.ExitStatus() == 128+int(syscall.SIGINT))
}

// removeNodes removes the containers of the cluster that are ours.
func (m *maker) removeNodes(ctx context.Context) error {
	found, err := look(ctx, m.engine, m.Name)
	if err != nil {
		return err
	}
	return m.engine.remove(ctx, found.containers)
}

// failed tidies up after a creation that failed, and says what is left.
func (m *maker) failed(ctx context.Context, s state, cause error) error {
	stopped := ctx.Err() != nil
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), diagnosisTimeout+abortTimeout)
	defer cancel()
	found, err := look(ctx, m.engine, m.Name)
	if err != nil {
		return fmt.Errorf("create cluster %q: %w", m.Name, errors.Join(cause, err))
	}
	if !stopped {
		cause = explain(ctx, m.engine, found, cause)
	}
	cause = fmt.Errorf("create cluster %q: %w", m.Name, cause)
	if m.Retain {
		s.Phase = phaseFailed
		return ui.WithHint(errors.Join(cause, found.dir.write(s)),
			"nodes are kept: %s; \"lab up --name %s\" makes them anew, \"lab down --name %s\" removes them%s",
			names(found.containers), m.Name, m.Name, hintLine(cause))
	}
	if err := found.removeFailed(ctx, m.engine); err != nil {
		return ui.WithHint(errors.Join(cause, fmt.Errorf("tidy up: %w", err)),
			"left are %s and %s; \"lab down --name %s\" removes them, \"lab up --name %s\" starts again%s",
			names(found.containers), found.dir, m.Name, m.Name, hintLine(cause))
	}
	if stopped {
		return ui.WithHint(cause, "nothing of the cluster is left; \"lab up --name %s\" starts again", m.Name)
	}
	return ui.WithHint(cause, "nothing of the cluster is left, --retain keeps it for a look%s", hintLine(cause))
}

// hintLine returns the hint of an error as one more line of another hint.
func hintLine(err error) string {
	if hint := ui.Hint(err); hint != "" {
		return "\n" + hint
	}
	return ""
}

func names(containers []container) string {
	if len(containers) == 0 {
		return "no containers"
	}
	var names []string
	for _, c := range containers {
		names = append(names, c.name)
	}
	return strings.Join(names, ", ")
}

// waitReady waits until all nodes are.
func (m *maker) waitReady(ctx context.Context, c *Cluster) error {
	if m.Config != nil && m.Config.Networking.DisableDefaultCNI {
		m.ui.Info("not waiting for nodes: the config has disableDefaultCNI, so they get ready with your network")
		return nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, m.Wait, fmt.Errorf("not within %s", m.Wait))
	defer cancel()
	step := m.ui.Step("waiting for nodes")
	err := waitNodes(ctx, c, c.found.nodes(), step.Update)
	step.Done(err)
	return err
}

// difference describes where two plans differ, by their first lines that do.
func difference(had, want string) string {
	a, b := strings.Split(had, "\n"), strings.Split(want, "\n")
	for i := range max(len(a), len(b)) {
		var x, y string
		if i < len(a) {
			x = strings.TrimSpace(a[i])
		}
		if i < len(b) {
			y = strings.TrimSpace(b[i])
		}
		if x != y {
			return fmt.Sprintf("it has %q where %q is wanted", x, y)
		}
	}
	return "nothing"
}

// remove removes all that there is of a cluster, except for kind's network.
func (s survey) remove(ctx context.Context, e engine) error {
	if err := s.emptyShared(ctx, e); err != nil {
		return err
	}
	if err := e.remove(ctx, s.containers); err != nil {
		return err
	}
	return errors.Join(s.state.Merged.unmerge(s.dir.name()), s.dir.remove())
}

// removeFailed removes a cluster that did not come up, and its network if that
// is new. What its nodes said last stays in its state directory.
func (s survey) removeFailed(ctx context.Context, e engine) error {
	log, readErr := os.ReadFile(s.dir.failure())
	if err := s.remove(ctx, e); err != nil {
		return err
	}
	// A call of the engine that was cut off may still have had its effect.
	if late, err := e.containers(ctx, s.dir.name()); err == nil {
		s.containers = late
		if s.checkOwner() == nil {
			if err := e.remove(ctx, late); err != nil {
				return err
			}
		}
	}
	err := removeNetwork(ctx, e)
	if readErr == nil {
		err = errors.Join(err, os.MkdirAll(string(s.dir), 0o755), host.WriteFile(s.dir.failure(), log, 0o600))
	}
	return err
}

// emptyShared empties the shared directory from inside of a node if we may not:
// Pods leave files of root there. If no node runs, one is started for it.
func (s survey) emptyShared(ctx context.Context, e engine) error {
	if os.Geteuid() == 0 {
		return nil
	}
	nodes := s.nodes()
	if len(nodes) == 0 {
		return nil
	}
	node := nodes[max(0, slices.IndexFunc(nodes, container.running))]
	if err := e.start(ctx, []container{node}); err != nil {
		return err
	}
	return e.exec(ctx, node.name, nil, nil, "find", SharedDir, "-mindepth", "1", "-delete")
}
