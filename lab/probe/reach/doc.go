// Package reach is how the probes of package probe get at a Pod from outside of
// its node.
//
// The true way is an [Agent]: a process in the node, which runs the handlers
// there. It connects to the Pod's IP from the node's network, and has commands run
// by the node's runtime, as the kubelet does. It needs the node.
//
// The other, [PortForward], needs nothing but a kubeconfig: port-forward and exec
// of the API server. It differs from the kubelet where [Difference] says.
package reach
