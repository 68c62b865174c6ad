// Package timeline says what happened, in order: to Pods with GPUs, to their
// claims, to the GPUs, and who did it.
//
// A [Recorder] takes it from API watches, from the reports that the driver
// writes on its output and from the lines that workloads write on theirs; it
// changes nothing in the cluster. What a change of an object means is decided
// by pure functions, one file per kind of object. A [Timeline] is what a
// recorder leaves: it can be saved, loaded and printed.
//
// # Times
//
// Kubernetes stores times in whole seconds, which is too coarse here. So each
// event's time comes from the best source that there is, and says which:
//
//   - [SourceReport]: the driver's own clock, read as the step happened.
//   - [SourceWorkload]: the workload's own clock.
//   - [SourceWatch]: when the change of the object arrived at the recorder,
//     a few milliseconds after the API server stored it.
//   - [SourceEvent]: the time in a Kubernetes Event, where it has microseconds,
//     otherwise its arrival.
//   - [SourceCaller]: what whoever runs the recorder noted.
//
// Nodes of a kind cluster and the recorder share one clock, so the times can be
// compared. An event of a watch can still be a few milliseconds later than its
// true place among driver reports.
package timeline
