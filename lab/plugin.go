package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/kubernetes"

	"github.com/dra-lab/dra-lab/driver/draconn"
	"github.com/dra-lab/dra-lab/lab/cluster"
	"github.com/dra-lab/dra-lab/lab/internal/ui"
	"github.com/dra-lab/dra-lab/lab/plugin"
)

// pluginOptions says whose socket to speak to.
type pluginOptions struct {
	name, node, driver, namespace, format string
	force                                 bool
}

func newPlugin(l *lab) *cobra.Command {
	cmd := noun(&cobra.Command{
		Use:   "plugin",
		Short: "Speak to any DRA driver's socket on a node, as the kubelet does",
		Example: `  lab plugin list --node dra-lab-worker
  lab plugin watch --node dra-lab-worker --driver gpu.lab.example`,
	})
	cmd.AddCommand(
		newPluginList(l), newPluginInfo(l), newPluginWatch(l),
		newPluginClaim(l, "prepare", "Have the driver prepare an allocated claim", l.prepare),
		newPluginClaim(l, "unprepare", "Have the driver unprepare a claim", l.unprepare),
	)
	return cmd
}

func (o *pluginOptions) flags(cmd *cobra.Command, driver bool) {
	nameFlag(cmd, &o.name)
	cmd.Flags().StringVar(&o.node, "node", "", "`node` of the driver; needed where the lab has several workers")
	if driver {
		cmd.Flags().StringVar(&o.driver, "driver", "", "`name` of the driver; needed where the node has several")
	}
	formatFlag(cmd, &o.format)
}

func newPluginList(l *lab) *cobra.Command {
	var o pluginOptions
	cmd := &cobra.Command{
		Use:     "list",
		Short:   "List the plugins that offer themselves to the node's kubelet",
		Example: `  lab plugin list --node dra-lab-worker`,
		Args:    noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return l.reach(cmd.Context(), o, func(ctx context.Context, _ *cluster.Cluster, relay *plugin.Relay) error {
				plugins, err := plugin.List(ctx, relay, "")
				if err != nil {
					return err
				}
				if o.format == "json" {
					if plugins == nil {
						plugins = []plugin.Plugin{}
					}
					return printJSON(l.ui.Out(), plugins)
				}
				table := tabwriter.NewWriter(l.ui.Out(), 0, 0, 2, ' ', 0)
				fmt.Fprintln(table, "DRIVER\tTYPE\tSERVICES\tREGISTRATION SOCKET")
				for _, p := range plugins {
					if p.Err != nil {
						fmt.Fprintf(table, "-\t-\t%v\t%s\n", p.Err, p.Socket.Path)
						continue
					}
					fmt.Fprintf(table, "%s\t%s\t%s\t%s\n", p.Name, p.Type, strings.Join(p.Services, ","), p.Socket.Path)
				}
				return table.Flush()
			})
		},
	}
	o.flags(cmd, false)
	return cmd
}

func newPluginInfo(l *lab) *cobra.Command {
	var o pluginOptions
	cmd := &cobra.Command{
		Use:     "info",
		Short:   "Show what a driver says about itself when the kubelet registers it, and whether it serves",
		Example: `  lab plugin info --node dra-lab-worker --driver gpu.lab.example`,
		Args:    noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return l.connect(cmd.Context(), o, func(ctx context.Context, _ *cluster.Cluster, p plugin.Plugin, conn *draconn.Conn) error {
				if err := conn.Ping(ctx); err != nil {
					return fmt.Errorf("call driver %q: %w", p.Name, err)
				}
				if o.format == "json" {
					return printJSON(l.ui.Out(), p)
				}
				table := tabwriter.NewWriter(l.ui.Out(), 0, 0, 2, ' ', 0)
				fmt.Fprintf(table, "driver\t%s\n", p.Name)
				fmt.Fprintf(table, "type\t%s\n", p.Type)
				fmt.Fprintf(table, "services\t%s\n", strings.Join(p.Services, ", "))
				fmt.Fprintf(table, "registration socket\t%s\n", p.Socket.Path)
				fmt.Fprintf(table, "endpoint\t%s\n", p.Endpoint)
				fmt.Fprintf(table, "answers\tyes: an empty NodePrepareResources went through\n")
				return table.Flush()
			})
		},
	}
	o.flags(cmd, true)
	return cmd
}

func newPluginWatch(l *lab) *cobra.Command {
	var o pluginOptions
	cmd := &cobra.Command{
		Use:     "watch",
		Short:   "Show a driver's health stream until interrupted, one line or JSON document per report",
		Example: `  lab plugin watch --node dra-lab-worker -o json`,
		Args:    noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return l.connect(cmd.Context(), o, func(ctx context.Context, _ *cluster.Cluster, _ plugin.Plugin, conn *draconn.Conn) error {
				return plugin.Watch(ctx, conn, func(e plugin.Event) {
					if o.format == "json" {
						_ = printJSON(l.ui.Out(), e) // a reader that went away ends the process by SIGPIPE
						return
					}
					at := e.Time.Format(time.TimeOnly + ".000")
					if e.Stream != plugin.StreamHealth {
						fmt.Fprintf(l.ui.Out(), "%s  stream %s %s%s\n", at, e.Stream, e.Service, e.Error)
						return
					}
					for _, d := range e.Devices {
						fmt.Fprintf(l.ui.Out(), "%s  %s/%s  %s  %s\n", at, d.Pool, d.Device, d.Health, d.Message)
					}
				})
			})
		},
	}
	o.flags(cmd, true)
	return cmd
}

type claimAction func(ctx context.Context, o pluginOptions, conn *draconn.Conn, c plugin.Claim) error

func newPluginClaim(l *lab, verb, short string, act claimAction) *cobra.Command {
	var o pluginOptions
	cmd := &cobra.Command{
		Use:   verb + " CLAIM",
		Short: short,
		Long: short + `, directly on the driver's socket.
The kubelet is not told: a claim that a Pod uses is refused without --force.`,
		Example: "  lab plugin " + verb + " my-claim --node dra-lab-worker",
		Args:    oneArgument("CLAIM"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return l.connect(cmd.Context(), o, func(ctx context.Context, c *cluster.Cluster, p plugin.Plugin, conn *draconn.Conn) error {
				config, err := c.RESTConfig()
				if err != nil {
					return err
				}
				client, err := kubernetes.NewForConfig(config)
				if err != nil {
					return fmt.Errorf("reach cluster %q: %w", c.Name(), err)
				}
				claim, err := plugin.GetClaim(ctx, client.ResourceV1().ResourceClaims(o.namespace), args[0], p.Name)
				if err != nil {
					return ui.WithHint(err, "see the claims: lab kubectl --name %s get resourceclaims --namespace %s", o.name, o.namespace)
				}
				if err := claim.InUse(); err != nil && !o.force {
					return ui.WithHint(err, "--force, to do it all the same")
				}
				return act(ctx, o, conn, claim)
			})
		},
	}
	o.flags(cmd, true)
	cmd.Flags().StringVarP(&o.namespace, "namespace", "n", "default", "`namespace` of the claim")
	cmd.Flags().BoolVar(&o.force, "force", false, "also when a Pod uses the claim")
	return cmd
}

func (l *lab) prepare(ctx context.Context, o pluginOptions, conn *draconn.Conn, c plugin.Claim) error {
	devices, err := plugin.Prepare(ctx, conn, c)
	if err != nil {
		return err
	}
	if o.format == "json" {
		return printJSON(l.ui.Out(), devices)
	}
	for _, d := range devices {
		fmt.Fprintf(l.ui.Out(), "%s/%s\t%s\n", d.Pool, d.Device, strings.Join(d.CDI, " "))
	}
	return nil
}

func (l *lab) unprepare(ctx context.Context, o pluginOptions, conn *draconn.Conn, c plugin.Claim) error {
	if err := plugin.Unprepare(ctx, conn, c); err != nil {
		return err
	}
	if o.format == "json" {
		return printJSON(l.ui.Out(), c)
	}
	fmt.Fprintf(l.ui.Out(), "%s/%s unprepared\n", c.Namespace, c.Name)
	return nil
}

// reach runs f with a relay into the node that o names.
func (l *lab) reach(ctx context.Context, o pluginOptions, f func(context.Context, *cluster.Cluster, *plugin.Relay) error) (err error) {
	if err := checkFormat(o.format, "text", "json"); err != nil {
		return err
	}
	c, engine, err := l.openOn(ctx, o.name)
	if err != nil {
		return err
	}
	node, err := chooseNode(ctx, c, o.node)
	if err != nil {
		return err
	}
	relay := plugin.NewRelay(plugin.InNode(engine, node), "")
	defer func() { err = errors.Join(err, relay.Close()) }()
	return f(ctx, c, relay)
}

// connect runs f with a connection to the driver that o names.
func (l *lab) connect(ctx context.Context, o pluginOptions, f func(context.Context, *cluster.Cluster, plugin.Plugin, *draconn.Conn) error) error {
	return l.reach(ctx, o, func(ctx context.Context, c *cluster.Cluster, relay *plugin.Relay) (err error) {
		plugins, err := plugin.List(ctx, relay, "")
		if err != nil {
			return err
		}
		p, err := plugin.Find(plugins, o.driver)
		if err != nil {
			return ui.WithHint(err, "see the drivers: lab plugin list --name %s", c.Name())
		}
		conn, err := plugin.Connect(ctx, relay, p)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, conn.Close()) }()
		return f(ctx, c, p, conn)
	})
}

// chooseNode returns the node called name; if name is "", the only worker, or the
// only node.
func chooseNode(ctx context.Context, c *cluster.Cluster, name string) (string, error) {
	nodes, err := c.Nodes(ctx)
	if err != nil {
		return "", err
	}
	var names, workers []string
	for _, n := range nodes {
		if n.Name() == name {
			return name, nil
		}
		names = append(names, n.Name())
		if !n.ControlPlane() {
			workers = append(workers, n.Name())
		}
	}
	switch {
	case name == "" && len(workers) == 1:
		return workers[0], nil
	case name == "" && len(names) == 1:
		return names[0], nil
	}
	err = errors.New("which node is missing: the lab has several")
	if name != "" {
		err = fmt.Errorf("lab %q has no node %q", c.Name(), name)
	}
	return "", ui.UsageError(ui.WithHint(err, "--node, one of %s", strings.Join(names, ", ")))
}
