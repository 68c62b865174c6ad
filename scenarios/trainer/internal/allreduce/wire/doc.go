// Package wire has the messages between the ranks, generated from
// allreduce.proto.
package wire

//go:generate protoc --go_out=. --go_opt=paths=source_relative --go-grpc_out=. --go-grpc_opt=paths=source_relative allreduce.proto
