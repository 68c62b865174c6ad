package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/dra-lab/dra-lab/lab/install"
)

func newImage(l *lab) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "image",
		Short:   "The driver's image, for a registry of your own",
		Example: `  lab image save driver.tar --repository registry.example/dra-lab/driver`,
	}
	noun(cmd)
	var repository string
	save := &cobra.Command{
		Use:   "save FILE",
		Short: "Write the driver's image as an archive and print its reference",
		Long: `Writes an archive that "docker load" and "ctr images import" read, and prints the image's
reference, which names its content: what "docker push" and "lab manifests --image" take.
"lab up" needs none of this.`,
		Example: `  ref=$(lab image save driver.tar --repository registry.example/dra-lab/driver)`,
		Args:    oneArgument("FILE"),
		RunE: func(_ *cobra.Command, args []string) error {
			ref, err := install.SaveDriverImage(args[0], repository, "")
			if err != nil {
				return err
			}
			fmt.Fprintln(l.ui.Out(), ref)
			return nil
		},
	}
	save.Flags().StringVar(&repository, "repository", "docker.io/dra-lab/driver", "`repository` that the image is for, with its registry")
	cmd.AddCommand(save)
	return cmd
}
