//go:build race

package main

// raceDetector says that a process starts slowly.
const raceDetector = true
