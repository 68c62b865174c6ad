package cluster

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"io/fs"
	"path"
	"strconv"
	"strings"

	"sigs.k8s.io/kind/pkg/cluster/constants"
	"sigs.k8s.io/kind/pkg/cluster/nodes"
	"sigs.k8s.io/kind/pkg/cluster/nodeutils"
	kindexec "sigs.k8s.io/kind/pkg/exec"

	"github.com/dra-lab/dra-lab/lab/internal/ui"
)

// A Node is a node of a cluster: a container with a kubelet. Its methods are
// safe for concurrent use.
type Node struct {
	engine    engine
	container container
}

// Name returns the node's name: of its container, its host and its Node object.
func (n Node) Name() string { return n.container.name }

// ControlPlane reports whether the node runs a control plane.
func (n Node) ControlPlane() bool { return n.container.role == constants.ControlPlaneNodeRoleValue }

// Running reports whether the node's container ran when it was looked up.
func (n Node) Running() bool { return n.container.running() }

// Exec runs a command in the node as root and returns its stdout. Stdin may be
// nil. The error ends with the last line of the command's stderr; if the command
// ran and failed it is an *exec.ExitError of os/exec. When ctx ends, the call
// ends; the command in the node may go on.
func (n Node) Exec(ctx context.Context, stdin io.Reader, argv ...string) (stdout []byte, err error) {
	if len(argv) == 0 {
		return nil, fmt.Errorf("exec on node %q: no command", n.Name())
	}
	var out bytes.Buffer
	err = n.engine.exec(ctx, n.Name(), stdin, &out, argv...)
	if err != nil {
		err = fmt.Errorf("exec %s on node %q: %w", argv[0], n.Name(), err)
	}
	if err != nil && !n.Running() {
		err = ui.WithHint(err, "\"lab up\" with the name of its cluster starts its container again")
	}
	return out.Bytes(), err
}

// Restart restarts the node's container, as a reboot does: its processes end and
// what is in memory, such as /run, is gone. It returns when the container runs
// again; the kubelet takes some seconds more.
func (n Node) Restart(ctx context.Context) error {
	if _, err := n.engine.output(ctx, "restart", n.container.id); err != nil {
		return fmt.Errorf("restart node %q: %w", n.Name(), err)
	}
	return nil
}

// WriteFile writes a file in the node, whole: what reads it sees the old or the
// new content. Missing directories are made.
func (n Node) WriteFile(ctx context.Context, name string, data []byte, mode fs.FileMode) error {
	if !path.IsAbs(name) {
		return fmt.Errorf("write file %q on node %q: not an absolute path", name, n.Name())
	}
	const script = `set -eu
mkdir -p "${1%/*}/"
temp=$(mktemp "${1%/*}/.${1##*/}.XXXXXX")
trap 'rm -f "$temp"' EXIT
cat >"$temp"
# An engine's client that is killed looks like the end of the data.
[ "$(wc -c <"$temp")" -eq "$3" ]
chmod "$2" "$temp"
mv -f "$temp" "$1"`
	_, err := n.Exec(ctx, bytes.NewReader(data), "/bin/sh", "-c", script, "sh", name, fmt.Sprintf("%o", mode.Perm()), strconv.Itoa(len(data)))
	if err != nil {
		return fmt.Errorf("write file %q on node %q: %w", name, n.Name(), err)
	}
	return nil
}

// LoadImageArchive loads the images of an archive, as docker save or crane write
// it, into the node, so that Pods with imagePullPolicy Never or IfNotPresent find
// them.
func (n Node) LoadImageArchive(ctx context.Context, archive io.Reader) error {
	if err := nodeutils.LoadImageArchive(kindNode{node: n, ctx: ctx}, archive); err != nil {
		return fmt.Errorf("load images into node %q: %w", n.Name(), kindError(ctx, err))
	}
	return nil
}

// kindNode is a node as kind's functions take it, for as long as one call. They
// use nothing of the embedded interface, which is nil.
type kindNode struct {
	nodes.Node
	node Node
	ctx  context.Context //nolint:containedctx // kind's functions take none; this is how they get it
}

func (n kindNode) String() string { return n.node.Name() }

func (n kindNode) Command(name string, args ...string) kindexec.Cmd {
	return n.CommandContext(n.ctx, name, args...)
}

func (n kindNode) CommandContext(ctx context.Context, name string, args ...string) kindexec.Cmd {
	return &kindCommand{node: n.node, ctx: ctx, argv: append([]string{name}, args...)}
}

type kindCommand struct {
	node           Node
	ctx            context.Context //nolint:containedctx // as above
	argv, env      []string
	stdin          io.Reader
	stdout, stderr io.Writer
}

func (c *kindCommand) SetEnv(env ...string) kindexec.Cmd  { c.env = env; return c }
func (c *kindCommand) SetStdin(r io.Reader) kindexec.Cmd  { c.stdin = r; return c }
func (c *kindCommand) SetStdout(w io.Writer) kindexec.Cmd { c.stdout = w; return c }
func (c *kindCommand) SetStderr(w io.Writer) kindexec.Cmd { c.stderr = w; return c }
func (c *kindCommand) Run() error {
	argv := c.argv
	if len(c.env) > 0 {
		argv = append(append([]string{"env"}, c.env...), argv...)
	}
	err := c.node.engine.exec(c.ctx, c.node.Name(), c.stdin, c.stdout, argv...)
	if err != nil {
		return &kindexec.RunError{Command: argv, Inner: err}
	}
	return nil
}

// kindError makes an error of kind's library one of ours: why it was stopped, or
// the step that failed and what the command that failed said last.
func kindError(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	failed := failedCommand(err)
	if failed == nil {
		return err
	}
	what, _, _ := strings.Cut(err.Error(), ": command ")
	said := significantLine(string(failed.Output))
	if said == "" {
		said = failed.Inner.Error()
	}
	if strings.HasPrefix(what, "command ") {
		// All of it would be a screenful, and is in the file with the journals.
		return fmt.Errorf("%s: %s", strings.Join(failed.Command[:min(2, len(failed.Command))], " "), said)
	}
	return fmt.Errorf("%s: %s", strings.TrimPrefix(what, "failed to "), said)
}
