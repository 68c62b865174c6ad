// Package reach is how the probes of package probe get at a Pod from outside of
// its node.
//
// Commands run through the API server (exec). The kubelet asks the runtime
// instead, which also ends a command that takes too long; here it is left behind
// and goes on. Its time includes what the API server needs to begin.
//
// Connections have two ways. The true one is an [Agent]: a process in the network
// of the node, which runs the handlers there and connects to the Pod's IP, as the
// kubelet does. It needs the nodes. The other, [PortForward], needs nothing but a
// kubeconfig, and differs from the kubelet where [Difference] says.
package reach
