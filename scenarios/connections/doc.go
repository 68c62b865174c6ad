// Package connections is the connection laboratory: the lazy plugin connection
// of an article beside the eager one of driver/draconn, both against a real gRPC
// plugin on a Unix socket, and what each of them does in the four situations in
// which the article says that the lazy one fails. [Run] measures everything and
// returns one [Report].
//
// The lazy side is a model (see package lazymodel). Where the article claims
// more than its own design does, the report says so; where a kubelet behaves
// otherwise, the report says that too. Nothing here needs a cluster.
package connections
