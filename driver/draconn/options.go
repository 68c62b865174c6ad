package draconn

import (
	"context"
	"net"
	"time"
)

// Option changes what [Open] does by default.
type Option func(*options)

type options struct {
	services    []string
	haveService bool
	onChange    func(Change)
	maxBackoff  time.Duration
	dial        func(context.Context) (net.Conn, error)
}

// WithServices says what the plugin offers, in the words of its registration
// (PluginInfo.SupportedVersions, such as "v1.DRAPlugin"). Only services listed
// here are called then, the newest version first; names that this package does
// not know are ignored. By default nothing is known, and the version is learned
// from the answer to the first call, at the price of one more round trip for a
// plugin that has only the older version.
func WithServices(supported []string) Option {
	return func(o *options) {
		o.services = append([]string(nil), supported...)
		o.haveService = true
	}
}

// OnChange has f called for every change of the connection, one at a time and
// in order, by the goroutine that owns the connection. f must return soon,
// because reconnecting waits for it, and must not call [Conn.Close], which would
// wait for itself; start a goroutine for that. By default nobody is told.
func OnChange(f func(Change)) Option {
	return func(o *options) { o.onChange = f }
}

// WithDialer replaces connect(2) on the endpoint. The endpoint then only names
// the plugin in errors, so it may be a path on another machine. The connection
// that dial returns has to say that its remote address is a Unix socket
// (net.Addr's Network is "unix"), because nothing else is trusted without TLS.
// An error in which errors.Is finds [ErrAbsent] or [ErrStale] keeps that
// meaning.
func WithDialer(dial func(context.Context) (net.Conn, error)) Option {
	return func(o *options) { o.dial = dial }
}

// WithBackoff bounds the time between two attempts to connect, at least 20 ms.
// The default, 500 ms, suits connect(2); a dialer that costs more may want to
// dial less often.
func WithBackoff(longest time.Duration) Option {
	return func(o *options) { o.maxBackoff = longest }
}
