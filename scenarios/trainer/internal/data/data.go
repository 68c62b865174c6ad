// Package data generates what the trainer learns from: points on interleaved
// spirals, one spiral per class. No straight line separates them, so that a
// falling loss shows that the hidden layers learn.
//
// Everything follows from a seed: each rank generates the whole set for itself
// and picks its part of each batch by number, so nothing has to be shipped.
package data

import (
	"fmt"
	"math"
	"math/rand/v2"

	"gonum.org/v1/gonum/mat"
)

const (
	// Inputs is the number of values of a point.
	Inputs = 2
	// Classes is the number of spirals.
	Classes = 3

	turns     = 1.0  // how far a spiral winds round the origin
	noise     = 0.08 // standard deviation of a point from its spiral, radians
	maxPoints = 1 << 20
)

// Set is a data set. It is read-only after Spirals and safe for concurrent use.
type Set struct {
	seed   uint64
	points *mat.Dense
	labels []int
}

// Spirals makes a set of the given number of points from seed.
func Spirals(seed uint64, points int) (*Set, error) {
	if points < Classes || points > maxPoints {
		return nil, fmt.Errorf("make data set: %d points, want %d to %d", points, Classes, maxPoints)
	}
	s := &Set{seed: seed, points: mat.NewDense(points, Inputs, nil), labels: make([]int, points)}
	random := rand.New(rand.NewPCG(seed, 0x64617461))
	for i := range points {
		class := i % Classes
		radius := math.Sqrt(random.Float64())
		angle := 2*math.Pi*(turns*radius+float64(class)/Classes) + noise*random.NormFloat64()
		s.points.SetRow(i, []float64{2 * radius * math.Cos(angle), 2 * radius * math.Sin(angle)})
		s.labels[i] = class
	}
	return s, nil
}

// All is every point with its class.
func (s *Set) All() (*mat.Dense, []int) { return s.points, s.labels }

// Part is the share of one rank in the batch of one step: which points are in
// the batch follows from the seed and the step alone, and the ranks' parts
// divide it. The sizes of the parts differ by at most one.
func (s *Set) Part(step, batch, rank, world int) (*mat.Dense, []int, error) {
	if rank < 0 || rank >= world || batch < world {
		return nil, nil, fmt.Errorf("take part of batch: rank %d of %d, batch %d", rank, world, batch)
	}
	random := rand.New(rand.NewPCG(s.seed, uint64(step)))
	first, end := rank*batch/world, (rank+1)*batch/world
	points := mat.NewDense(end-first, Inputs, nil)
	labels := make([]int, end-first)
	for i := range end {
		point := random.IntN(len(s.labels))
		if i < first {
			continue
		}
		points.SetRow(i-first, s.points.RawRowView(point))
		labels[i-first] = s.labels[point]
	}
	return points, labels, nil
}
