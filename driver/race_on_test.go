//go:build race

package main

// raceDetector says that what takes time takes more of it.
const raceDetector = true
