package probe

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// maxOutput bounds what is kept of a body or of a command's output, in bytes
// (pkg/probe/http and pkg/probe/exec).
const maxOutput = 10 << 10

// A Target is one handler with what is needed to run it.
type Target struct {
	Namespace string `json:"namespace"`
	Pod       string `json:"pod"`
	PodIP     string `json:"podIP"`
	// Container has the name, the ports and the variables.
	Container corev1.Container `json:"container"`
	// ContainerID is that of the runtime, such as containerd://2b3c.
	ContainerID string              `json:"containerID"`
	Handler     corev1.ProbeHandler `json:"handler"`
	// Timeout bounds one run. Values below 1 ns mean no bound.
	Timeout time.Duration `json:"timeout"`
	// UserAgent is what the kubelet of the Pod's node calls itself, such as
	// kube-probe/1.37; see [UserAgent].
	UserAgent string `json:"userAgent"`
}

// An Answer is what a run of a handler says.
type Answer struct {
	Handler string        // what was done, such as GET http://10.244.1.7:8080/ready
	Result  Result        // Unknown with Err
	Output  string        // body, output of the command, or what is wrong
	Err     error         // the handler could not be run, which says nothing about the container
	Tries   int           // more than 1 if there were errors
	Took    time.Duration // of the last try
}

// A Prober runs handlers. Its method may be called by any goroutine, returns
// soon after ctx has ended, and then with its cause as Err.
type Prober interface {
	Probe(ctx context.Context, t Target) Answer
}

// Dial makes a connection, as net.Dialer.DialContext does. The network is
// "tcp".
type Dial func(ctx context.Context, network, address string) (net.Conn, error)

// Exec runs a command in a container and returns what it wrote, stdout first.
// An error in which errors.As finds an [ExitError] means that it ran and failed.
type Exec func(ctx context.Context, t Target, command []string) (output []byte, err error)

// ExitError is the error of a command that ran and failed.
type ExitError interface {
	error
	ExitStatus() int
}

// Handlers run the four kinds of handlers over these connections. They have no
// state. A nil field makes the handlers that need it answer with an error.
type Handlers struct {
	Dial Dial
	Exec Exec
}

// Probe implements [Prober]. The order of the cases is the kubelet's
// (prober.go, runProbe): it matters for nobody, because the API server wants
// exactly one of them.
func (h Handlers) Probe(ctx context.Context, t Target) Answer {
	if t.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, t.Timeout, errTimeout)
		defer cancel()
	}
	start := time.Now()
	var a Answer
	switch {
	case t.Handler.Exec != nil:
		a = h.exec(ctx, t, t.Handler.Exec)
	case t.Handler.HTTPGet != nil:
		a = h.httpGet(ctx, t, t.Handler.HTTPGet)
	case t.Handler.TCPSocket != nil:
		a = h.tcpSocket(ctx, t, t.Handler.TCPSocket)
	case t.Handler.GRPC != nil:
		a = h.grpc(ctx, t, t.Handler.GRPC)
	default:
		a = broken("none", fmt.Errorf("probe container %q of Pod %s/%s: unknown kind of handler, want exec, httpGet, tcpSocket or grpc",
			t.Container.Name, t.Namespace, t.Pod))
	}
	a.Took, a.Tries = time.Since(start), 1
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, errTimeout) {
		// Not the probe has ended, but whoever wanted to know.
		a.Result, a.Output, a.Err = Unknown, "", cause
	}
	return a
}

// errTimeout is the cause of the end of a probe that took too long.
var errTimeout = errors.New("timeout of the probe")

func broken(handler string, err error) Answer {
	return Answer{Handler: handler, Result: Unknown, Err: err}
}

// maxTries is how often the kubelet runs a handler that has an error
// (prober.go, maxProbeRetries).
const maxTries = 3

// Try runs a handler, again when there is an error, three times at most, and
// returns the last answer.
func Try(ctx context.Context, p Prober, t Target) Answer {
	for tries := 1; ; tries++ {
		a := p.Probe(ctx, t)
		a.Tries = tries
		if a.Err == nil || tries == maxTries || ctx.Err() != nil {
			return a
		}
	}
}

// resolve finds the number of a port, which may be a name that the container
// gives one (pkg/probe/util.go).
func resolve(port intstr.IntOrString, c corev1.Container) (int, error) {
	number := port.IntValue()
	if port.Type == intstr.String {
		number = 0
		found := false
		for _, p := range c.Ports {
			if p.Name == port.StrVal {
				number, found = int(p.ContainerPort), true
				break
			}
		}
		if !found {
			return 0, fmt.Errorf("find port %q of container %q: it has no port of this name", port.StrVal, c.Name)
		}
	}
	if number < 1 || number > 65535 {
		return 0, fmt.Errorf("find port %q of container %q: not between 1 and 65535", port.String(), c.Name)
	}
	return number, nil
}

// exec runs the command (pkg/probe/exec). That it cannot be run at all, because
// the file is not there for example, is no failure but an error.
func (h Handlers) exec(ctx context.Context, t Target, action *corev1.ExecAction) Answer {
	command := make([]string, len(action.Command))
	for i, word := range action.Command {
		command[i] = expand(word, t.Container.Env)
	}
	a := Answer{Handler: fmt.Sprintf("exec %q", command)}
	if h.Exec == nil {
		return broken(a.Handler, errors.New("run a command: there is no way into the container"))
	}
	output, err := h.Exec(ctx, t, command)
	a.Output = string(output[:min(len(output), maxOutput)])
	var exit ExitError
	switch {
	case errors.Is(err, ErrCommandTimeout), err != nil && errors.Is(context.Cause(ctx), errTimeout):
		a.Result, a.Output = Failure, fmt.Sprintf("command timed out after %s", t.Timeout)
	case err == nil, errors.As(err, &exit) && exit.ExitStatus() == 0:
		a.Result = Success
	case exit != nil:
		a.Result = Failure
	default:
		return broken(a.Handler, err)
	}
	return a
}

// ErrCommandTimeout is in the error of an Exec that has ended a command because
// it took longer than the target's Timeout. An Exec may count that time itself,
// from when the command began, and need not end with its context.
var ErrCommandTimeout = errors.New("the command took too long")

// expand puts variables into a word of a command: $(NAME) is replaced if the
// container sets NAME, $$ is a dollar sign. A value that comes from elsewhere is
// empty, as it is for the kubelet (pkg/kubelet/container/helpers.go,
// ExpandContainerCommandOnlyStatic).
func expand(word string, env []corev1.EnvVar) string {
	values := map[string]string{}
	for _, v := range env {
		values[v.Name] = v.Value
	}
	var b bytes.Buffer
	for i := 0; i < len(word); i++ {
		if word[i] != '$' || i+1 == len(word) {
			b.WriteByte(word[i])
			continue
		}
		switch next := word[i+1]; next {
		case '$':
			b.WriteByte('$')
			i++
		case '(':
			end := bytes.IndexByte([]byte(word[i+2:]), ')')
			if end < 0 {
				b.WriteString("$(")
				i++
				continue
			}
			name := word[i+2 : i+2+end]
			if value, ok := values[name]; ok {
				b.WriteString(value)
			} else {
				b.WriteString("$(" + name + ")")
			}
			i += 2 + end
		default:
			b.WriteByte('$')
			b.WriteByte(next)
			i++
		}
	}
	return b.String()
}

// tcpSocket opens a connection and closes it (pkg/probe/tcp). That the kernel
// accepts it is all that this proves.
func (h Handlers) tcpSocket(ctx context.Context, t Target, action *corev1.TCPSocketAction) Answer {
	port, err := resolve(action.Port, t.Container)
	if err != nil {
		return broken("TCP", err)
	}
	address := net.JoinHostPort(orPodIP(action.Host, t), strconv.Itoa(port))
	a := Answer{Handler: "TCP " + address, Result: Success}
	conn, err := h.dial(ctx, "tcp", address)
	if err == nil {
		if c, ok := conn.(Confirmer); ok {
			err = c.Confirm(ctx)
		}
		_ = conn.Close() // it has proved what it was for
	}
	if errors.Is(err, ErrNoWay) {
		return broken(a.Handler, err)
	}
	if err != nil {
		a.Result, a.Output = Failure, err.Error()
	}
	return a
}

// A Confirmer is a connection that may turn out not to be one after it was made.
type Confirmer interface {
	// Confirm returns an error if nobody listens at the other end.
	Confirm(ctx context.Context) error
}

func orPodIP(host string, t Target) string {
	if host == "" {
		return t.PodIP
	}
	return host
}

// ErrNoWay is in the error of a Dial that cannot reach an address at all, whoever
// listens there: that is no answer of the Pod.
var ErrNoWay = errors.New("no way to this address")

func (h Handlers) dial(ctx context.Context, network, address string) (net.Conn, error) {
	if h.Dial == nil {
		return nil, fmt.Errorf("connect to %s: %w", address, ErrNoWay)
	}
	return h.Dial(ctx, network, address)
}

// Direct returns the Dial of the network that this process is in. As the
// kubelet's, its connections do not stay in TIME-WAIT for a minute
// (pkg/probe/dialer_others.go).
func Direct() Dial {
	d := &net.Dialer{Control: func(_, _ string, c syscall.RawConn) error {
		var failed error
		err := c.Control(func(fd uintptr) {
			failed = syscall.SetsockoptLinger(int(fd), syscall.SOL_SOCKET, syscall.SO_LINGER, &syscall.Linger{Onoff: 1, Linger: 1})
		})
		return errors.Join(err, failed)
	}}
	return d.DialContext
}
