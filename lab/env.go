package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/dra-lab/dra-lab/lab/cluster"
	"github.com/dra-lab/dra-lab/lab/host"
	"github.com/dra-lab/dra-lab/lab/internal/ui"
)

func newEnv(l *lab) *cobra.Command {
	var name string
	cmd := &cobra.Command{
		Use:     "env",
		Short:   "Print shell exports so that kubectl and docker reach the lab",
		Example: `  eval "$(lab env)"`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			engine, err := host.FindEngine(cmd.Context())
			if err != nil {
				return err
			}
			if err := engine.Use(); err != nil {
				return err
			}
			c, err := cluster.Open(cmd.Context(), name)
			if err != nil {
				return ui.WithHint(err, "lab up --name %s", name)
			}
			for _, assignment := range append(engine.Env(), "KUBECONFIG="+c.Kubeconfig()) {
				key, value, _ := strings.Cut(assignment, "=")
				fmt.Fprintf(l.ui.Out(), "export %s='%s'\n", key, strings.ReplaceAll(value, "'", `'\''`))
			}
			return nil
		},
	}
	nameFlag(cmd, &name)
	return cmd
}
