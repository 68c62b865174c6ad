// Package draconn is a connection to one DRA plugin, made eagerly: [Open] makes
// the gRPC connection, starts connecting and makes every client there is, once.
// From then on they are only read. A caller that has seen [Conn.WaitServing]
// succeed knows that the plugin serves, and its first call costs what every
// later call costs.
//
// The kubelet is the client of a DRA plugin and the driver is its server. This
// package stands on the kubelet's side of the socket. The driver uses it to ask
// itself whether it serves, before the kubelet may register it; the lab uses it
// to speak to the driver of anybody.
//
// A plugin offers DRAPlugin as v1 or v1beta1, and its device health as v1 or
// v1alpha1. Callers see v1 of both. Which version is spoken is known from the
// plugin's registration (see [WithServices]) or learned from its first answer,
// and remembered.
//
// Connections end: the plugin restarts, its socket is removed and made anew.
// The one gRPC connection outlives that, and reconnects by itself, after half a
// second at most. A call made while there is no connection fails at once with code
// Unavailable, as it does in the kubelet; nothing is queued, nothing is retried.
//
// The package never logs and never reads the API server.
package draconn
