package job

import (
	"fmt"

	"github.com/dra-lab/dra-lab/scenarios/trainer/internal/net"
)

// Result is what a job ends with.
type Result struct {
	FirstLoss float64 // over the whole data set, as the seed made the network
	Loss      float64 // over the whole data set, at the end
	Accuracy  float64
	Weights   string // SHA-256 of the parameters
}

// Reference computes, in one process and undisturbed, what a job with these
// settings must end with, to the bit.
func Reference(s Settings) (Result, error) {
	m, err := newModel(s)
	if err != nil {
		return Result{}, fmt.Errorf("compute reference: %w", err)
	}
	var result Result
	if result.FirstLoss, _, err = m.evaluate(); err != nil {
		return Result{}, fmt.Errorf("compute reference: %w", err)
	}
	sum := make([]float64, len(m.gradient))
	for step := range s.Steps {
		for rank := range s.World {
			_, gradient, err := m.part(step, rank)
			if err != nil {
				return Result{}, fmt.Errorf("compute reference: %w", err)
			}
			if rank == 0 {
				// Not added to zeros: -0 would become +0.
				copy(sum, gradient)
				continue
			}
			for i, g := range gradient {
				sum[i] += g
			}
		}
		if err := m.apply(sum); err != nil {
			return Result{}, fmt.Errorf("compute reference: %w", err)
		}
	}
	if result.Loss, result.Accuracy, err = m.evaluate(); err != nil {
		return Result{}, fmt.Errorf("compute reference: %w", err)
	}
	result.Weights = net.Hash(m.network.Params())
	return result, nil
}
