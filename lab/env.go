package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

func newEnv(l *lab) *cobra.Command {
	var name string
	cmd := &cobra.Command{
		Use:     "env",
		Short:   "Print shell exports so that kubectl and docker reach the lab",
		Example: `  eval "$(lab env)"`,
		Args:    noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, engine, err := l.openOn(cmd.Context(), name)
			if err != nil {
				return err
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
