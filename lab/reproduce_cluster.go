package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/mod/semver"

	"github.com/dra-lab/dra-lab/lab/cluster"
	"github.com/dra-lab/dra-lab/lab/host"
	"github.com/dra-lab/dra-lab/lab/kubesource"
	"github.com/dra-lab/dra-lab/lab/nodeimage"
)

// kubelet is one that a cluster is to have.
type kubelet struct {
	version  string
	checkout *kubesource.Checkout // where it comes from, if that is no release
}

// arg names it to the program that has the reproductions, which compiles packages
// of a checkout itself.
func (k kubelet) arg() string {
	if k.checkout != nil {
		return "-checkout=" + k.checkout.Base + ":" + k.checkout.Dir
	}
	return "-kubelet=" + k.version
}

// kubeletChoices are kubelets as the user names them.
type kubeletChoices struct {
	names []string
	base  string // of checkouts
}

func (c *kubeletChoices) flags(cmd *cobra.Command, usage string) {
	cmd.Flags().Var(repeated{&c.names, checkKubelet}, "kubelet", usage)
	kubeletBaseFlag(cmd, &c.base)
}

// open finds the source of those that are checkouts.
func (c *kubeletChoices) open(ctx context.Context) ([]kubelet, error) {
	choices := make([]kubeletChoice, 0, len(c.names))
	base := c.base
	for _, name := range c.names {
		choice := kubeletChoice{name: name}
		if isPath(name) {
			choice.base, base = c.base, ""
		}
		choices = append(choices, choice)
	}
	if base != "" {
		choices = append(choices, kubeletChoice{base: base}) // which is for no checkout
	}
	var all []kubelet
	for _, choice := range choices {
		version, checkout, err := choice.open(ctx)
		if err != nil {
			return nil, err
		}
		if !slices.ContainsFunc(all, func(k kubelet) bool { return k.version == version }) {
			all = append(all, kubelet{version, checkout})
		}
	}
	return all, nil
}

// repeated is a flag that may be given several times. Its values are checked as
// those of checked are.
type repeated struct {
	values *[]string
	check  func(string) error
}

func (r repeated) String() string {
	if r.values == nil { // the zero value, which pflag compares with
		return ""
	}
	return strings.Join(*r.values, " ")
}

func (r repeated) Type() string { return "string" }

func (r repeated) Set(value string) error {
	if err := r.check(value); err != nil {
		return err
	}
	*r.values = append(*r.values, value)
	return nil
}

// bringKubelets brings up a cluster that has a worker with each of these kubelets,
// and holds it until unlock is called. Without any it takes the cluster as it
// is, or makes one with two.
func (l *lab) bringKubelets(ctx context.Context, name string, wanted []kubelet, partly bool) (unlock func(), err error) {
	engine, err := host.EnsureEngine(ctx, l.ui)
	if err != nil {
		return nil, err
	}
	if err := engine.Use(); err != nil {
		return nil, err
	}
	unlock, err = host.Lock(ctx, "cluster-"+name, l.ui)
	if err != nil {
		return nil, err
	}
	bring := bringing{lab: l, engine: engine, name: name, partly: partly}
	if err := bring.kubelets(ctx, wanted); err != nil {
		unlock()
		return nil, err
	}
	return unlock, nil
}

// bringing is the making of a cluster with several kubelets.
type bringing struct {
	lab    *lab
	engine *host.Engine
	name   string
	partly bool // go on without a kubelet that cannot be had
}

func (b bringing) kubelets(ctx context.Context, wanted []kubelet) error {
	controlPlane, present, err := b.nodes(ctx)
	if err != nil {
		return err
	}
	exists := controlPlane.Ref != ""
	if exists {
		// This refuses one that was not made here, and starts nodes that do not
		// run.
		if err := b.ensure(ctx, controlPlane, present); err != nil {
			return err
		}
	} else if len(wanted) == 0 {
		wanted = []kubelet{{version: "v1.36.3"}, {version: nodeimage.DefaultKubernetes}}
	}
	missing, failed := b.images(ctx, lacking(present, wanted))
	switch {
	case ctx.Err() != nil || failed != nil && (!b.partly || len(present)+len(missing) == 0):
		return failed
	case failed != nil:
		b.lab.ui.Warn("going on without a kubelet: %v", failed)
	}
	if len(missing) == 0 {
		return nil
	}
	controlPlane, err = nodeimage.Ensure(ctx, b.engine, nodeimage.Options{Kubernetes: nodeimage.DefaultKubernetes}, b.lab.ui)
	if err != nil {
		return err
	}
	if exists {
		b.lab.ui.Info("cluster %q, which only reproductions use, has the kubelets %s: making it anew to add %s",
			b.name, kubeletVersions(present), kubeletVersions(missing))
		if err := cluster.Remove(ctx, b.name, b.lab.ui); err != nil {
			return err
		}
	}
	// Earlier states of a checkout are not needed again.
	present = slices.DeleteFunc(present, func(i nodeimage.Image) bool {
		return semver.Build(i.Kubelet) != "" && !slices.ContainsFunc(wanted, func(k kubelet) bool { return k.version == i.Kubelet })
	})
	return b.ensure(ctx, controlPlane, append(present, missing...))
}

// nodes returns the images of a cluster that is there, the control plane's and
// the workers'; none if there is no cluster, or half of one, which Ensure makes
// anew.
func (b bringing) nodes(ctx context.Context) (controlPlane nodeimage.Image, workers []nodeimage.Image, err error) {
	c, err := cluster.Open(ctx, b.name)
	if errors.Is(err, cluster.ErrNotFound) {
		return controlPlane, nil, nil
	}
	if err != nil {
		return controlPlane, nil, err
	}
	nodes, err := c.Nodes(ctx)
	if err != nil {
		return controlPlane, nil, err
	}
	for _, n := range nodes {
		ref, err := b.engine.Command(ctx, "inspect", "--type=container", "--format={{.Config.Image}}", n.Name()).Output()
		if err != nil {
			return controlPlane, nil, fmt.Errorf("find image of node %q: %w", n.Name(), err)
		}
		image, err := nodeimage.Inspect(ctx, b.engine, strings.TrimSpace(string(ref)))
		switch {
		case err != nil:
			return controlPlane, nil, err
		case n.ControlPlane():
			controlPlane = image
		default:
			workers = append(workers, image)
		}
	}
	return controlPlane, workers, nil
}

// lacking returns the kubelets that are wanted and not there.
func lacking(present []nodeimage.Image, wanted []kubelet) []kubelet {
	var missing []kubelet
	for _, k := range wanted {
		there := slices.ContainsFunc(present, func(i nodeimage.Image) bool { return i.Kubelet == k.version })
		if !there && !slices.ContainsFunc(missing, func(m kubelet) bool { return m.version == k.version }) {
			missing = append(missing, k)
		}
	}
	return missing
}

// images brings the node images with these kubelets. The error is about those
// that cannot be had.
func (b bringing) images(ctx context.Context, kubelets []kubelet) (images []nodeimage.Image, failed error) {
	for _, k := range kubelets {
		o := nodeimage.Options{Kubernetes: nodeimage.DefaultKubernetes, Kubelet: k.version, Checkout: k.checkout}
		image, err := nodeimage.Ensure(ctx, b.engine, o, b.lab.ui)
		if ctx.Err() != nil {
			return nil, err
		}
		if err != nil {
			failed = errors.Join(failed, err)
			continue
		}
		images = append(images, image)
	}
	return images, failed
}

// ensure makes the cluster with a worker per image, or finds it made so. Its
// kubelets log what the experiments look for, which also tells it from any other
// cluster.
func (b bringing) ensure(ctx context.Context, controlPlane nodeimage.Image, workers []nodeimage.Image) error {
	slices.SortFunc(workers, func(x, y nodeimage.Image) int {
		return cmp.Or(semver.Compare(x.Kubelet, y.Kubelet), strings.Compare(x.Kubelet, y.Kubelet))
	})
	refs := make([]string, len(workers))
	for i, image := range workers {
		refs[i] = image.Ref
	}
	config := cluster.ConfigWithWorkers(refs...)
	config.KubeadmConfigPatches = []string{"kind: KubeletConfiguration\nlogging:\n  verbosity: 4\n"}
	_, err := cluster.Ensure(ctx, cluster.Options{
		Name: b.name, Config: config, Image: controlPlane, Restrictions: b.engine.Restrictions,
	}, b.lab.ui)
	return err
}

func kubeletVersions(images []nodeimage.Image) string {
	var versions []string
	for _, image := range images {
		versions = append(versions, image.Kubelet)
	}
	return strings.Join(versions, " ")
}
