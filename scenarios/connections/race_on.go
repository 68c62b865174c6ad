//go:build race

package connections

const raceDetector = true
