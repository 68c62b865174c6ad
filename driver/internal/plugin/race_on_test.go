//go:build race

package plugin_test

// raceDetector says that a process starts slowly.
const raceDetector = true
