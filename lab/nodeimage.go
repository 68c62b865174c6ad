package main

import (
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/dra-lab/dra-lab/lab/host"
	"github.com/dra-lab/dra-lab/lab/nodeimage"
)

func newNodeImage(l *lab) *cobra.Command {
	cmd := noun(&cobra.Command{
		Use:     "node-image",
		Short:   "Build and list node images",
		Example: `  lab node-image build --kubernetes v1.36.3`,
	})
	cmd.AddCommand(newNodeImageBuild(l), newNodeImageList(l))
	return cmd
}

func newNodeImageBuild(l *lab) *cobra.Command {
	var o nodeimage.Options
	var kubelet kubeletChoice
	cmd := &cobra.Command{
		Use:   "build",
		Short: "Build a node image from source, with no image registry",
		Long: `Builds a node image from Go modules and Debian packages. Takes 10 to 20 minutes on two
cores the first time; interrupted, it goes on where it stopped; a second time it does
nothing. With --kubelet the kubelet is older than the rest, for clusters of mixed
versions, or comes from a Kubernetes checkout: a clone, or a copy of the module
k8s.io/kubernetes. It is compiled again when a file of the checkout has changed.`,
		Example: `  lab node-image build --kubernetes v1.36.3
  lab node-image build --kubernetes v1.37.2 --kubelet v1.36.3
  lab node-image build --kubelet ./kubernetes`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if o.Kubelet, o.Checkout, err = kubelet.open(cmd.Context()); err != nil {
				return err
			}
			engine, err := host.EnsureEngine(cmd.Context(), l.ui)
			if err != nil {
				return err
			}
			image, err := nodeimage.Build(cmd.Context(), engine, o, l.ui)
			if err != nil {
				return err
			}
			fmt.Fprintln(l.ui.Out(), image.Ref)
			return nil
		},
	}
	versionFlag(cmd, &o.Kubernetes, "kubernetes", nodeimage.DefaultKubernetes, "Kubernetes `version`")
	kubeletFlags(cmd, &kubelet, "`version` of the kubelet, or the directory of a Kubernetes checkout; default: as --kubernetes")
	return cmd
}

func newNodeImageList(l *lab) *cobra.Command {
	var format string
	cmd := &cobra.Command{
		Use:     "list",
		Short:   "List the node images that are here",
		Example: `  lab node-image list -o json`,
		Args:    noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkFormat(format, "text", "json"); err != nil {
				return err
			}
			engine, err := host.FindEngine(cmd.Context())
			if err != nil {
				return err
			}
			images, err := nodeimage.List(cmd.Context(), engine)
			if err != nil {
				return err
			}
			if format == "json" {
				if images == nil {
					images = []nodeimage.Image{}
				}
				return printJSON(l.ui.Out(), images)
			}
			table := tabwriter.NewWriter(l.ui.Out(), 0, 0, 2, ' ', 0)
			fmt.Fprintln(table, "IMAGE\tKUBERNETES\tKUBELET\tDEFAULT CNI\tBUILT HERE")
			for _, i := range images {
				fmt.Fprintf(table, "%s\t%s\t%s\t%t\t%t\n", i.Ref, i.Kubernetes, i.Kubelet, i.DefaultCNI, i.Built)
			}
			return table.Flush()
		},
	}
	formatFlag(cmd, &format)
	return cmd
}
