// Package plugin speaks to the plugins of a node as its kubelet does: it finds
// their registration sockets, asks what they are, and prepares, unprepares and
// watches through the sockets that they name. It speaks to the driver of
// anybody, not only to the lab's.
//
// A Unix socket in a node's file system is of no use to a process outside of
// the node. So the lab copies its own executable into the node and runs it
// there, through the container engine, as a relay between the socket and its
// stdin and stdout (see [Relay]). That works with every engine on every host
// that can run a command in a container. The other way, /proc/<pid>/root, needs
// root, a node on the same machine and the right to trace it, and makes paths
// longer than the 107 bytes of a socket's address.
//
// What is prepared and unprepared here is not known to the kubelet. Unpreparing
// a claim that a Pod uses takes the device away under it; [Claim.InUse] tells.
package plugin
