// Package lazymodel is a model of a lazily made plugin connection: not the
// kubelet's code, and not code that anybody should use.
//
// An article about kubernetes/kubernetes#133964 describes a client that makes
// its connection when a call needs it and its health client when the first
// health call needs that, and names four ways in which this fails. No kubelet
// was ever built like that: kubelets 1.34 and 1.35 connect when the plugin
// registers, guard their lazily made health client with a mutex, and call it
// from one goroutine; from 1.36 on they make the client for each stream. So the
// four failures cannot be seen on a kubelet. This model follows the article's
// description, so that they can be seen, counted and compared with
// driver/draconn, and so that it can be seen which of the article's claims
// follow from its design and which do not.
//
// The bugs here are the subject. They must not be mended.
package lazymodel
