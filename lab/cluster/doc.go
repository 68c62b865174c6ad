// Package cluster makes, finds and removes the lab's Kubernetes clusters. It is
// the only package that imports kind.
//
// What a cluster is to be is decided before anything is started, and purely:
// ParseConfig reads the user's kind config, Plan adds what the host, the node
// images and the Kubernetes versions need, and says what it added. Create and
// Ensure then run kind's library on the result.
//
// # Ownership
//
// A cluster is ours if every node container has the shared directory of this
// state directory mounted: a fact that is there from the moment a container
// exists, that no other program makes by chance, and that needs no bookkeeping.
// A cluster of the same name without it is somebody else's: it is refused, and
// never deleted, stopped or written to. The state directory of a cluster
// (StateDir()/clusters/NAME) further records how far its creation got, so that a
// half-made one is recognised and made again.
//
// # What it leaves to callers
//
// Calls that change a cluster (Create, Ensure, Delete) must not run at the same
// time for the same name: callers hold host.Lock for it. The engine comes from
// the environment, as host.Engine.Use sets it, because kind takes it from there.
package cluster
