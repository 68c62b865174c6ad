package main

import (
	"errors"
	"os"
	"os/exec"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/dra-lab/dra-lab/lab/cluster"
	"github.com/dra-lab/dra-lab/lab/internal/ui"
)

func newKubectl(l *lab) *cobra.Command {
	return &cobra.Command{
		Use:   "kubectl [--name NAME] [ARGUMENT]...",
		Short: "Run the control-plane node's kubectl, for a machine that has none",
		Example: `  lab kubectl get pods -A
  lab kubectl apply -f - <pod.yaml`,
		DisableFlagParsing:    true, // the flags are kubectl's
		DisableFlagsInUseLine: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 && (args[0] == "--help" || args[0] == "-h") {
				return cmd.Help()
			}
			name, args, err := leadingName(args)
			if err != nil {
				return wrongUsage(cmd, err)
			}
			c, engine, err := l.openOn(cmd.Context(), name)
			if err != nil {
				return err
			}
			node, err := c.ControlPlane(cmd.Context())
			if err != nil {
				return err
			}
			argv := []string{"exec", "-i"}
			if term.IsTerminal(int(os.Stdin.Fd())) && term.IsTerminal(int(os.Stdout.Fd())) {
				argv = append(argv, "-t")
			}
			argv = append(argv, node.Name(), "kubectl", "--kubeconfig=/etc/kubernetes/admin.conf")
			kubectl := engine.Command(cmd.Context(), append(argv, args...)...)
			kubectl.Stdin, kubectl.Stdout, kubectl.Stderr = os.Stdin, l.ui.Out(), os.Stderr
			err = kubectl.Run()
			if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
				return ui.Told(err, exit.ExitCode()) // by kubectl
			}
			return err
		},
	}
}

// leadingName takes the lab's own --name from the front of kubectl's arguments.
func leadingName(args []string) (name string, rest []string, err error) {
	if len(args) == 0 {
		return defaultName, args, nil
	}
	name, joined := strings.CutPrefix(args[0], "--name=")
	switch {
	case joined:
		return name, args[1:], cluster.CheckName(name)
	case args[0] != "--name":
		return defaultName, args, nil
	case len(args) == 1:
		return "", nil, errors.New("flag needs an argument: --name")
	}
	return args[1], args[2:], cluster.CheckName(args[1])
}
