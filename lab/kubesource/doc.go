// Package kubesource is Kubernetes as source to compile parts of: a released
// version, which Go downloads, or somebody's checkout of it with a mend inside.
//
// Both are compiled the same way, from outside: in a module that is generated,
// requires k8s.io/kubernetes and says where k8s.io/api and its like come from
// ([ReleaseModule], [Checkout.Module]). The checkout itself is only read.
package kubesource
