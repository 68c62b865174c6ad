//go:build race

package draconn

// raceDetector says that the race detector slows every access to memory, so
// that nanoseconds mean nothing.
const raceDetector = true
