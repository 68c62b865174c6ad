// Package kubelets measures the DRA plugin manager of released kubelets: the
// code in k8s.io/kubernetes that keeps the connection to a driver, compiled from
// the released source of each version and run in a process of its own, against a
// real plugin server in this one. Neither a cluster nor a kubelet binary is
// needed, only Go and its module proxy, because the module of a version is
// generated and built when it is first asked for. It is kept in the lab's cache.
//
// [Measure] makes all experiments with one version, [Report] puts versions side
// by side, and [Result.Deviations] compares a version with what is known of it.
package kubelets
