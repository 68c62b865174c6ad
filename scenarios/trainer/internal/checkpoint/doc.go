// Package checkpoint keeps the parameters of a network on a volume.
//
// A checkpoint is a whole file: it is written beside its name, synced, and
// renamed, and ends in a checksum, so that a reader sees either all of it or
// nothing. Each rank writes into a folder of its own; all ranks can read all
// folders. Only the newest few are kept. A file that another run left, or that
// is damaged, is passed over, never loaded.
package checkpoint
