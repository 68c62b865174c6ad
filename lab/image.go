package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/dra-lab/dra-lab/lab/install"
)

func newImage(l *lab) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "image",
		Short:   "The images of driver and controller, for a registry of your own",
		Example: `  lab image save driver.tar --repository registry.example/dra-lab/driver`,
	}
	noun(cmd)
	var repository, program string
	save := &cobra.Command{
		Use:   "save FILE",
		Short: "Write an image as an archive and print its reference",
		Long: `Writes an archive that "docker load" and "ctr images import" read, and prints the image's
reference, which names its content: what "docker push" and "lab manifests --image" take.
"lab up" needs none of this.`,
		Example: `  ref=$(lab image save driver.tar --repository registry.example/dra-lab/driver)`,
		Args:    oneArgument("FILE"),
		RunE: func(_ *cobra.Command, args []string) error {
			ref, err := install.SaveImage(args[0], program, repository, "")
			if err != nil {
				return err
			}
			fmt.Fprintln(l.ui.Out(), ref)
			return nil
		},
	}
	save.Flags().StringVar(&repository, "repository", "", "`repository` that the image is for, with its registry; empty: the lab's own, which is in none")
	save.Flags().StringVar(&program, "program", "driver", "whose image: `driver` or controller")
	cmd.AddCommand(save)
	return cmd
}
