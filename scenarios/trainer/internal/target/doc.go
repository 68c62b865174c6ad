// Package target is a server for probes to probe: over HTTP, HTTPS, TCP and gRPC
// it answers as a plan says, from the moment at which its process starts. A plan
// is a list such as
//
//	fail@0s,ok@3s,slow=2s@10s,ok@12s
//
// of what it does from when on. The behaviours:
//
//	ok            it is well
//	fail          HTTP says 503, gRPC NOT_SERVING, and the TCP port is closed
//	slow=TIME     HTTP and gRPC answer well, but only after this time
//	redirect=URL  HTTP sends to this URL
//	large         HTTP answers well, with a body of 1 MiB
//	exit=STATUS   the process ends
//
// HTTP has two more paths: /ok, where it is always well, and /set?plan=PLAN, which
// begins another plan at once. A command probe asks over HTTP:
// -ask URL ends with status 0 if the answer is 2xx, else with 1.
package target
