package plugin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"time"

	"github.com/dra-lab/dra-lab/driver/draconn"
)

// RelayVerb is the hidden verb of the lab, and of any other program that is
// copied into nodes, under which [RelayMain] runs there.
const RelayVerb = "socket-relay"

// What the relay is asked to do, by its first argument; the second is a path.
const (
	relayDial = "dial"
	relayList = "list"
)

// relayAnswer is the first line that the relay writes, as JSON. After the
// answer to relayDial follow the bytes from the socket.
type relayAnswer struct {
	Sockets []Socket `json:"sockets,omitempty"`
	Error   string   `json:"error,omitempty"`
	Reason  string   `json:"reason,omitempty"` // one of the reasons below, or nothing
}

const (
	reasonAbsent = "absent"
	reasonStale  = "stale"
)

// maxAnswer bounds the line of an answer.
const maxAnswer = 1 << 20

// err is what went wrong in the node, as draconn says it.
func (a relayAnswer) err() error {
	switch {
	case a.Error == "":
		return nil
	case a.Reason == reasonAbsent:
		return fmt.Errorf("%w: %s", draconn.ErrAbsent, a.Error)
	case a.Reason == reasonStale:
		return fmt.Errorf("%w: %s", draconn.ErrStale, a.Error)
	default:
		return errors.New(a.Error)
	}
}

func answerFor(err error) relayAnswer {
	a := relayAnswer{Error: err.Error()}
	switch {
	case errors.Is(err, syscall.ENOENT):
		a.Reason = reasonAbsent
	case errors.Is(err, syscall.ECONNREFUSED):
		a.Reason = reasonStale
	}
	return a
}

// RelayMain is the relay: the process in the node that connects a socket with
// its own stdin and stdout, or lists sockets. It returns the exit status: 0
// also when the socket could not be reached, which the answer says.
func RelayMain(args []string) int {
	if err := relay(args, os.Stdin, os.Stdout); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", RelayVerb, err) // the process at the other end reads it
		return 1
	}
	return 0
}

func relay(args []string, stdin io.Reader, stdout io.Writer) error {
	if len(args) != 2 {
		return fmt.Errorf("got %d arguments, want %s or %s, and a path", len(args), relayDial, relayList)
	}
	answer := json.NewEncoder(stdout)
	switch verb, path := args[0], args[1]; verb {
	case relayList:
		sockets, err := Local{}.Sockets(context.Background(), path)
		if err != nil {
			return answer.Encode(answerFor(err))
		}
		return answer.Encode(relayAnswer{Sockets: sockets})
	case relayDial:
		conn, err := net.DialTimeout("unix", path, 10*time.Second)
		if err != nil {
			return answer.Encode(answerFor(err))
		}
		defer func() { _ = conn.Close() }() // both directions have ended, or failed
		if err := answer.Encode(relayAnswer{}); err != nil {
			return err
		}
		return pump(conn.(*net.UnixConn), stdin, stdout)
	default:
		return fmt.Errorf("got %q, want %s or %s", verb, relayDial, relayList)
	}
}

// farewell is how long a plugin may take to end a connection whose other side
// has ended it.
const farewell = 5 * time.Second

// pump copies in both directions until the socket ends. The end of stdin is
// passed on; a plugin that does not answer it within farewell is left.
func pump(conn *net.UnixConn, stdin io.Reader, stdout io.Writer) error {
	go func() {
		// The process ends with the other direction, and this goroutine with
		// it; there is no way to interrupt a read from stdin.
		_, _ = io.Copy(conn, stdin)
		_ = conn.CloseWrite()
		_ = conn.SetReadDeadline(time.Now().Add(farewell))
	}()
	_, err := io.Copy(stdout, conn)
	if errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET) {
		return nil // one of the two sides has left
	}
	return err
}

// readAnswer reads the relay's first line, and no byte more.
func readAnswer(r io.Reader) (relayAnswer, error) {
	var line []byte
	var b [1]byte // what follows belongs to the connection, so nothing may read ahead
	for {
		if _, err := io.ReadFull(r, b[:]); err != nil {
			if len(line) > 0 {
				err = fmt.Errorf("%w after %.200q", err, line)
			}
			return relayAnswer{}, fmt.Errorf("read answer of the relay: %w", err)
		}
		if b[0] == '\n' {
			break
		}
		if line = append(line, b[0]); len(line) > maxAnswer {
			return relayAnswer{}, fmt.Errorf("read answer of the relay: more than %d bytes", maxAnswer)
		}
	}
	var a relayAnswer
	if err := json.Unmarshal(line, &a); err != nil {
		return relayAnswer{}, fmt.Errorf("read answer of the relay: %w: %.200q", err, line)
	}
	return a, nil
}
