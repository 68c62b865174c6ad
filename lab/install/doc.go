// Package install puts the lab onto a cluster: it makes the images of driver
// and trainer, loads them into the nodes, says on each node which simulated
// GPUs it has, applies the manifests and waits until the driver serves: its
// Pods are ready, which they are once the kubelet has registered them, and the
// ResourceSlices of every node are complete.
//
// Everything is safe to repeat, and what has not changed costs a question, not
// work: images are named by their content, manifests are applied server-side.
// GetStatus says what is there.
//
// There is no uninstall: the lab goes with its cluster.
package install
