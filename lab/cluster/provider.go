package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"

	"k8s.io/client-go/rest"
	"sigs.k8s.io/e2e-framework/klient"
	"sigs.k8s.io/e2e-framework/support"

	"github.com/dra-lab/dra-lab/lab/host"
	"github.com/dra-lab/dra-lab/lab/internal/ui"
)

// Provider makes clusters for e2e-framework. Unlike the framework's own kind
// provider it runs no kind command, uses a cluster of the same name only if it is
// ours and was made from the same plan, and never deletes one that is not ours.
//
// It takes host.Lock for the cluster's name while it makes or removes it. It is
// not safe for concurrent use, as the framework does not ask for it.
type Provider struct {
	options Options
	ui      *ui.UI
	cluster *Cluster
}

var (
	_ support.E2EClusterProvider                = (*Provider)(nil)
	_ support.E2EClusterProviderWithImageLoader = (*Provider)(nil)
)

// NewProvider returns a provider of clusters like o. Progress goes to u.
func NewProvider(o Options, u *ui.UI) *Provider { return &Provider{options: o, ui: u} }

// Cluster returns the cluster, or nil before Create.
func (p *Provider) Cluster() *Cluster { return p.cluster }

// WithName sets the cluster's name.
func (p *Provider) WithName(name string) support.E2EClusterProvider {
	p.options.Name = name
	return p
}

// WithVersion does nothing: the version is the node image's, in Options.
func (p *Provider) WithVersion(string) support.E2EClusterProvider { return p }

// WithPath does nothing: no program is run.
func (p *Provider) WithPath(string) support.E2EClusterProvider { return p }

// WithOpts applies options of the framework.
func (p *Provider) WithOpts(opts ...support.ClusterOpts) support.E2EClusterProvider {
	for _, o := range opts {
		o(p)
	}
	return p
}

// SetDefaults does nothing: Options has its own.
func (p *Provider) SetDefaults() support.E2EClusterProvider { return p }

// Create makes the cluster, as Ensure does, and returns the path of its
// kubeconfig. Arguments are refused: there is no command to give them to.
func (p *Provider) Create(ctx context.Context, args ...string) (string, error) {
	if len(args) > 0 {
		return "", fmt.Errorf("create cluster %q: unknown arguments %q", p.options.Name, args)
	}
	unlock, err := host.Lock(ctx, p.lockName(), p.ui)
	if err != nil {
		return "", err
	}
	defer unlock()
	if p.cluster, err = Ensure(ctx, p.options, p.ui); err != nil {
		return "", err
	}
	return p.cluster.Kubeconfig(), nil
}

// CreateWithConfig is Create with the kind config in a file.
func (p *Provider) CreateWithConfig(ctx context.Context, file string) (string, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("read kind config: %w", err)
	}
	if p.options.Config, err = ParseConfig(data); err != nil {
		return "", fmt.Errorf("%s: %w", file, err)
	}
	return p.Create(ctx)
}

// lockName is the name of the lock for the cluster, as all verbs take it.
func (p *Provider) lockName() string { return "cluster-" + p.options.Name }

// GetKubeconfig returns the path of the cluster's kubeconfig, "" before Create.
func (p *Provider) GetKubeconfig() string {
	if p.cluster == nil {
		return ""
	}
	return p.cluster.Kubeconfig()
}

var errNotCreated = errors.New("the cluster has not been made")

// GenerateKubeconfig returns the same as GetKubeconfig: nothing in it changes.
func (p *Provider) GenerateKubeconfig(...string) (string, error) {
	if p.cluster == nil {
		return "", errNotCreated
	}
	return p.cluster.Kubeconfig(), nil
}

// GetKubectlContext returns the cluster's context.
func (p *Provider) GetKubectlContext() string { return ContextName(p.options.Name) }

// ExportLogs is Cluster.CollectLogs.
func (p *Provider) ExportLogs(ctx context.Context, dest string) error {
	if p.cluster == nil {
		return errNotCreated
	}
	return p.cluster.CollectLogs(ctx, dest)
}

// Destroy removes the cluster. Without one it does nothing.
func (p *Provider) Destroy(ctx context.Context) error {
	if p.cluster == nil {
		return nil
	}
	unlock, err := host.Lock(ctx, p.lockName(), p.ui)
	if err != nil {
		return err
	}
	defer unlock()
	if err := p.cluster.Delete(ctx); err != nil {
		return err
	}
	p.cluster = nil
	return nil
}

// WaitForControlPlane does nothing: Create returns when all nodes are ready.
func (p *Provider) WaitForControlPlane(context.Context, klient.Client) error { return nil }

// KubernetesRestConfig returns access to the cluster, nil before Create.
func (p *Provider) KubernetesRestConfig() *rest.Config {
	if p.cluster == nil {
		return nil
	}
	config, err := p.cluster.RESTConfig()
	if err != nil {
		return nil
	}
	return config
}

// LoadImage loads an image that the engine has into all nodes.
func (p *Provider) LoadImage(ctx context.Context, image string, _ ...string) error {
	if p.cluster == nil {
		return errNotCreated
	}
	archive, err := os.CreateTemp("", "image-*.tar")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(archive.Name()) }()
	if err := archive.Close(); err != nil {
		return err
	}
	if _, err := p.cluster.engine.output(ctx, "save", "--output", archive.Name(), image); err != nil {
		return fmt.Errorf("save image %q: %w", image, err)
	}
	return p.LoadImageArchive(ctx, archive.Name())
}

// LoadImageArchive loads an archive into all nodes, one after the other.
func (p *Provider) LoadImageArchive(ctx context.Context, file string, _ ...string) error {
	if p.cluster == nil {
		return errNotCreated
	}
	nodes, err := p.cluster.Nodes(ctx)
	if err != nil {
		return err
	}
	for _, n := range nodes {
		if err := loadFile(ctx, n, file); err != nil {
			return err
		}
	}
	return nil
}

func loadFile(ctx context.Context, n Node, file string) error {
	archive, err := os.Open(file)
	if err != nil {
		return err
	}
	defer archive.Close()
	return n.LoadImageArchive(ctx, archive)
}
