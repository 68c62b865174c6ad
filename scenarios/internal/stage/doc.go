// Package stage is what a scenario plays on: a namespace of its own, a recorder
// that follows what happens there, and the means to break things.
//
// Everything that a scenario does through a stage is undone when its test ends,
// also when it failed or was interrupted: faults are cleared, the namespace and
// what the Pods left on the shared volume are removed, and the timeline is
// saved. What an earlier run left behind because it was killed is removed
// before a scenario begins.
package stage
