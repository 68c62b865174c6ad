// Package lesson is what all exercises have in common: how an exercise's folder
// is read, how its start is put onto a cluster and taken away again, what a check
// may look at, and what is remembered of a learner's progress.
//
// A check is a pure function of a [Snapshot], the cluster's real state: whatever
// the learner did to get there, what counts is what is there. It returns a
// [Finding] for each thing that has to hold, in the order in which a learner gets
// there, and each says in a sentence what holds, or what does not yet.
package lesson
