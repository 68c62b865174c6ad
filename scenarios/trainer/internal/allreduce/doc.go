// Package allreduce adds the gradients of a group of ranks, over gRPC.
//
// Rank 0 serves; every rank, rank 0 included, is a client of it. The sum is
// taken once per step, in the order of the ranks, and the same bits go to all:
// ranks that start equal stay bit-identical.
//
// Who the group is follows from open streams, not from time-outs. When a rank's
// stream ends, the group's generation ends with it and every other rank learns
// at its next call which rank went ([ErrInterrupted]). It then joins again and
// waits for the rank's replacement; the new generation begins at the newest
// checkpoint that all ranks have. Ranks whose settings differ, or whose
// checkpoints of one step differ, are refused ([ErrRefused]): retrying does not
// help them.
//
// Connections are not encrypted: it is meant for Pods of one job in a lab.
package allreduce
