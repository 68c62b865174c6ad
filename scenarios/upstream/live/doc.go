// Package live compares whole kubelets: it plays one scenario on each worker of
// a cluster whose kubelets differ, on all of them at the same time, and has a
// column for each. What package kubelets asks of the plugin manager alone, this
// asks of the kubelet around it: what becomes of Pods, of their status and of
// the node's ResourceSlices when the driver, its health streams or the kubelet
// itself go away and come back.
//
// The driver of each kubelet is a plugin server in this process, on two sockets:
// one that the kubelet registers it by, which stays, and one with its services,
// which is killed and replaced. So every connection accepted on the second is
// one that the kubelet keeps to its driver. ResourceSlices are published by the
// controller that real drivers have.
//
// [Run] measures, [Result.Deviations] compares a kubelet with what is known of
// its version, [Report] shows the table.
package live
