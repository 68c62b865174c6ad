package draconn

import (
	"errors"
	"fmt"
	"syscall"
)

// Reasons for which a plugin cannot be used. They are found with errors.Is in
// what the functions of this package return, beside the gRPC status where there
// is one.
var (
	// ErrAbsent: there is no file at the endpoint. The plugin has not started
	// yet, or has removed its socket in an orderly exit.
	ErrAbsent = errors.New("the socket does not exist")
	// ErrStale: there is a file, but nobody listens on it. The process that
	// made it was killed, or it was never a socket.
	ErrStale = errors.New("nothing listens on the socket")
	// ErrNotServing: somebody listens, but does not answer as gRPC does.
	ErrNotServing = errors.New("the peer accepts connections and does not answer as gRPC")
	// ErrService: the plugin answers, and has none of the versions of the
	// service that this package speaks.
	ErrService = errors.New("the plugin does not offer the service")
	// ErrClosed: the Conn was closed.
	ErrClosed = errors.New("the connection was closed")
)

// classify adds the reason to an error from connect(2), if it is a known one.
func classify(err error) error {
	switch {
	case errors.Is(err, ErrAbsent), errors.Is(err, ErrStale), errors.Is(err, ErrNotServing):
		return err // a dialer of the caller's has said it already
	case errors.Is(err, syscall.ENOENT):
		return fmt.Errorf("%w: %w", ErrAbsent, err)
	case errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("%w: %w", ErrStale, err)
	default:
		return err
	}
}
