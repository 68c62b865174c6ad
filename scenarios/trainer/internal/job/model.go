package job

import (
	"fmt"

	"github.com/dra-lab/dra-lab/scenarios/trainer/internal/data"
	"github.com/dra-lab/dra-lab/scenarios/trainer/internal/net"
)

// model is one rank's network and data.
type model struct {
	settings Settings
	set      *data.Set
	network  *net.Network
	gradient []float64
}

// newModel makes the network as the seed makes it.
func newModel(s Settings) (*model, error) {
	if s.Steps < 1 || s.Rate <= 0 {
		return nil, fmt.Errorf("make model: %d steps at rate %g, want at least 1 step and a positive rate", s.Steps, s.Rate)
	}
	set, err := data.Spirals(s.Seed, s.Points)
	if err != nil {
		return nil, err
	}
	network, err := net.New(s.shape(), s.Seed)
	if err != nil {
		return nil, err
	}
	return &model{settings: s, set: set, network: network, gradient: make([]float64, len(network.Params()))}, nil
}

// part computes the gradient of rank's part of the batch of step; the result is
// valid until the next call.
func (m *model) part(step int64, rank int) (loss float64, gradient []float64, err error) {
	points, labels, err := m.set.Part(int(step), m.settings.Batch, rank, m.settings.World)
	if err != nil {
		return 0, nil, err
	}
	loss, err = m.network.Gradient(points, labels, m.gradient)
	return loss, m.gradient, err
}

// apply follows the sum of all parts.
func (m *model) apply(sum []float64) error {
	return m.network.Descend(sum, m.settings.Rate/float64(m.settings.Batch))
}

// evaluate is the mean loss and the accuracy over the whole data set.
func (m *model) evaluate() (loss, accuracy float64, err error) {
	points, labels := m.set.All()
	return m.network.Evaluate(points, labels)
}
