package plugin

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path"
	"strconv"
	"sync"
	"time"

	"github.com/dra-lab/dra-lab/lab/host"
)

// Command makes a command that runs argv in a node, with its own stdin, stdout
// and stderr connected while it runs. It is not started. When ctx ends, it ends.
type Command func(ctx context.Context, argv ...string) *exec.Cmd

// InNode returns the Command for a node: a container of the engine.
func InNode(engine *host.Engine, node string) Command {
	return func(ctx context.Context, argv ...string) *exec.Cmd {
		return engine.Command(ctx, append([]string{"exec", "--interactive", node}, argv...)...)
	}
}

// Relay reaches the sockets of a node from outside. Its methods may be called
// by any goroutine.
type Relay struct {
	run        Command
	executable string

	stopped context.Context
	stop    context.CancelFunc
	start   sync.Mutex // held to start a process, and to stop
	running sync.WaitGroup

	install sync.Mutex // held to install
	inNode  string     // path of the executable in the node, "" before it is there
}

// NewRelay returns the way into the node that run reaches. The executable is
// the file that is copied into the node and run there with [RelayVerb]; "" means
// that of this process. It has to be linked statically, and for the node's
// architecture. Nothing is started before the first use. The caller has to
// Close the Relay.
func NewRelay(run Command, executable string) *Relay {
	r := &Relay{run: run, executable: executable}
	r.stopped, r.stop = context.WithCancel(context.Background())
	return r
}

// Close ends all connections that are still open and waits for their processes.
func (r *Relay) Close() error {
	r.start.Lock()
	r.stop()
	r.start.Unlock()
	r.running.Wait()
	return nil
}

// installDir is where the executable is put in a node.
const installDir = "/var/lib/dra-lab/bin"

// Unpacking with a name of its own and renaming makes it safe for several labs
// to do this at the same time. The size tells a copy whose sender was
// interrupted, which ends like a whole one, from that. Executables that are
// older than a day are removed; a lab that still wants one copies it again.
const installScript = `set -e
mkdir -p "${1%/*}"
trap 'rm -f "$1.$$"' EXIT
cat > "$1.$$"
if [ "$(wc -c < "$1.$$")" != "$2" ]; then echo "the copy was cut off" >&2; exit 1; fi
chmod 755 "$1.$$"
mv "$1.$$" "$1"
find "${1%/*}" -name 'relay-*' -mtime +0 -exec rm -f {} + || true`

// installed returns the path of the executable in the node, and puts it there
// the first time.
func (r *Relay) installed(ctx context.Context) (string, error) {
	r.install.Lock()
	defer r.install.Unlock()
	if r.inNode != "" {
		return r.inNode, nil
	}
	name := r.executable
	if name == "" {
		self, err := os.Executable()
		if err != nil {
			return "", fmt.Errorf("find own executable: %w", err)
		}
		name = self
	}
	file, err := os.Open(name)
	if err != nil {
		return "", fmt.Errorf("open relay: %w", err)
	}
	defer func() { _ = file.Close() }() // it was only read
	info, err := file.Stat()
	if err != nil {
		return "", fmt.Errorf("open relay: %w", err)
	}
	// Size and time tell one build from another, and cost less than a hash of
	// a large file for every command.
	target := path.Join(installDir, fmt.Sprintf("relay-%x-%x", info.Size(), info.ModTime().UnixNano()))
	if _, err := output(r.run(ctx, "test", "-x", target)); err == nil {
		r.inNode = target
		return target, nil
	} else if ctx.Err() != nil {
		return "", context.Cause(ctx)
	}
	cmd := r.run(ctx, "sh", "-c", installScript, "sh", target, strconv.FormatInt(info.Size(), 10))
	cmd.Stdin = file
	if _, err := output(cmd); err != nil {
		return "", fmt.Errorf("copy relay into the node: %w", err)
	}
	r.inNode = target
	return target, nil
}

// output runs a command; its error ends with what the command said last.
func output(cmd *exec.Cmd) ([]byte, error) {
	var stderr tail
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		if len(stderr.kept) == 0 {
			_, _ = stderr.Write(out) // where docker writes what the OCI runtime says
		}
		return nil, stderr.explain(err)
	}
	return out, nil
}

// missing says that a command could not be run because its executable is not
// there, or cannot be executed: the shell's exit statuses for that, which
// engines use too.
func missing(err error) bool {
	var exit *exec.ExitError
	return errors.As(err, &exit) && (exit.ExitCode() == 126 || exit.ExitCode() == 127)
}

// withInstalled calls f with the path of the executable in the node. If it turns
// out not to be there any more, because somebody has emptied the directory or
// made the node anew, it is copied and f called once more.
func (r *Relay) withInstalled(ctx context.Context, f func(executable string) error) error {
	for again := false; ; again = true {
		executable, err := r.installed(ctx)
		if err != nil {
			return err
		}
		if err = f(executable); again || !missing(err) {
			return err
		}
		r.install.Lock()
		r.inNode = ""
		r.install.Unlock()
	}
}

// Program returns a command, not started, that runs the executable in the node
// with these arguments, and puts it there first. When ctx ends, it ends; closing
// the Relay does not end it.
func (r *Relay) Program(ctx context.Context, args ...string) (*exec.Cmd, error) {
	executable, err := r.installed(ctx)
	if err != nil {
		return nil, err
	}
	return r.run(ctx, append([]string{executable}, args...)...), nil
}

// Sockets implements [Reach].
func (r *Relay) Sockets(ctx context.Context, dir string) (sockets []Socket, err error) {
	err = r.withInstalled(ctx, func(executable string) error {
		out, err := output(r.run(ctx, executable, RelayVerb, relayList, dir))
		if err != nil {
			return fmt.Errorf("list sockets: %w", err)
		}
		answer, err := readAnswer(bytes.NewReader(out))
		if err != nil {
			return err
		}
		sockets = answer.Sockets
		return answer.err()
	})
	return sockets, err
}

// Dial implements [Reach]: it starts one process per connection.
func (r *Relay) Dial(ctx context.Context, socket string) (net.Conn, error) {
	var conn *relayConn
	err := r.withInstalled(ctx, func(executable string) (err error) {
		conn, err = r.dialOnce(ctx, executable, socket)
		return err
	})
	if err != nil {
		return nil, err
	}
	return conn, nil
}

func (r *Relay) dialOnce(ctx context.Context, executable, socket string) (*relayConn, error) {
	conn, err := r.startProcess(executable, socket) //nolint:contextcheck // the connection outlives the dial
	if err != nil {
		return nil, fmt.Errorf("start relay in the node: %w", err)
	}
	// The relay's answer says whether the socket could be reached.
	abandon := context.AfterFunc(ctx, func() { _ = conn.Close() })
	answer, err := readAnswer(conn)
	if !abandon() {
		return nil, context.Cause(ctx)
	}
	if err != nil {
		return nil, conn.explain(err)
	}
	if err := answer.err(); err != nil {
		_ = conn.Close() // the relay has ended by itself
		return nil, err
	}
	return conn, nil
}

func (r *Relay) startProcess(executable, socket string) (*relayConn, error) {
	r.start.Lock()
	defer r.start.Unlock()
	if r.stopped.Err() != nil {
		return nil, errors.New("the relay was closed")
	}
	// The process lives as long as the connection, not as long as the context
	// of the dial.
	ctx, kill := context.WithCancel(r.stopped)
	cmd := r.run(ctx, executable, RelayVerb, relayDial, socket)
	// What matters is in the node. The command's own process can go at once.
	cmd.Cancel = func() error { return cmd.Process.Kill() }
	cmd.WaitDelay = time.Second
	conn := &relayConn{addr: relayAddr(socket), kill: kill, exited: make(chan struct{})}
	cmd.Stderr = &conn.stderr
	// Files rather than pipes of package exec: both directions then end when
	// the process does, and have deadlines.
	theirIn, ourOut, err := os.Pipe()
	if err != nil {
		kill()
		return nil, err
	}
	ourIn, theirOut, err := os.Pipe()
	if err != nil {
		kill()
		return nil, errors.Join(err, theirIn.Close(), ourOut.Close())
	}
	cmd.Stdin, cmd.Stdout = theirIn, theirOut
	conn.in, conn.out = ourIn, ourOut
	err = cmd.Start()
	_ = theirIn.Close() // the process has its own
	_ = theirOut.Close()
	if err != nil {
		kill()
		return nil, errors.Join(err, ourIn.Close(), ourOut.Close())
	}
	r.running.Go(func() {
		defer kill()
		conn.waitErr = cmd.Wait()
		close(conn.exited)
	})
	return conn, nil
}

// relayConn is the connection to a process in a node, and so to a socket there.
type relayConn struct {
	in, out *os.File // read from the socket, write to it
	addr    relayAddr
	kill    context.CancelFunc
	closing sync.Once
	stderr  tail
	exited  chan struct{}
	waitErr error // written before exited is closed
}

// explain adds to the error of a read that found no answer why there is none:
// what the process said before it ended.
func (c *relayConn) explain(err error) error {
	_ = c.Close()
	select {
	case <-c.exited:
	case <-time.After(2 * farewell):
		return err
	}
	if c.waitErr != nil {
		// What was read instead of an answer may be the engine's words.
		err = fmt.Errorf("%w (%w)", c.waitErr, err)
	}
	return c.stderr.explain(err)
}

func (c *relayConn) Read(p []byte) (int, error)  { return c.in.Read(p) }
func (c *relayConn) Write(p []byte) (int, error) { return c.out.Write(p) }

// Close ends the connection. The process ends when it sees that, and is killed
// if it does not.
func (c *relayConn) Close() error {
	c.closing.Do(func() {
		_ = c.out.Close() // pipes have nothing to flush
		_ = c.in.Close()
		time.AfterFunc(farewell, c.kill) // killing what has ended does nothing
	})
	return nil
}

func (c *relayConn) LocalAddr() net.Addr  { return c.addr }
func (c *relayConn) RemoteAddr() net.Addr { return c.addr }

func (c *relayConn) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}
func (c *relayConn) SetReadDeadline(t time.Time) error  { return c.in.SetReadDeadline(t) }
func (c *relayConn) SetWriteDeadline(t time.Time) error { return c.out.SetWriteDeadline(t) }

// relayAddr is the path of a Unix socket in a node.
type relayAddr string

func (relayAddr) Network() string  { return "unix" }
func (a relayAddr) String() string { return string(a) }
