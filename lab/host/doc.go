// Package host knows the machine that the lab runs on: which container engine
// it has, what it withholds, and what is missing.
//
// [Probe] looks and [Facts.Checks] judges; neither changes anything.
// [EnsureEngine] finds an engine that really runs privileged containers. Where
// there is none, and the user is root on Debian or Ubuntu, it installs what is
// missing and starts an engine of the lab's own: a dockerd and a containerd with
// their own sockets, directories, bridge and address range, that [StopEngine]
// removes again.
//
// An engine that is already there belongs to somebody else. The package uses
// it through its command line, and never touches its configuration, bridges,
// firewall rules or containers. In particular the private engine runs without
// Docker's own firewall handling, which would rebuild the chains of an engine
// beside it; see firewall.go.
package host
