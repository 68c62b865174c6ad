// Package upstream reproduces issues of Kubernetes on real kubelets, the bad
// version beside the good one. A reproduction is a file here: an entry of data
// and one short function, which drives one kubelet and says whether what the
// issue describes was there. [Run] runs it on all versions at the same time and
// draws the conclusion.
//
// The driver of a reproduction is a plugin server in this process, so that its
// misbehaviour is a Go function. Kubelets reach it through the folder that all
// nodes of a lab share with the host.
package upstream
