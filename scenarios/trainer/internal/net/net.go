// Package net is the small neural network that the trainer trains: fully
// connected layers with tanh between them and a softmax at the end, its matrix
// arithmetic from gonum.
//
// It is pure and deterministic: the same shape, seed and data give the same
// bits on every call and on every rank, whatever GOMAXPROCS is. All parameters
// lie in one slice, in the order in which checkpoints and the all-reduce carry
// them.
package net

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math"
	"math/rand/v2"

	"gonum.org/v1/gonum/mat"
)

// Bounds of a shape, so that a wrong flag does not ask for all memory.
const (
	maxLayers = 16
	maxWidth  = 4096
)

// Network is a network with its parameters. It is not safe for concurrent use.
type Network struct {
	shape   []int
	params  []float64
	weights []*mat.Dense // views into params, layer by layer, in x out
	biases  [][]float64  // views into params
}

// New makes a network whose layers have the widths in shape, inputs first and
// classes last, with parameters drawn from seed.
func New(shape []int, seed uint64) (*Network, error) {
	if len(shape) < 2 || len(shape) > maxLayers {
		return nil, fmt.Errorf("make network: %d layers, want 2 to %d", len(shape), maxLayers)
	}
	size := 0
	for i, width := range shape {
		if width < 1 || width > maxWidth {
			return nil, fmt.Errorf("make network: width %d of layer %d, want 1 to %d", width, i, maxWidth)
		}
		if i > 0 {
			size += shape[i-1]*width + width
		}
	}
	n := &Network{shape: shape, params: make([]float64, size)}
	n.weights, n.biases = views(shape, n.params)

	random := rand.New(rand.NewPCG(seed, 0x6e6574))
	for i, w := range n.weights {
		// Variance 1/inputs keeps the activations of tanh layers in the
		// range where they have a slope.
		scale := 1 / math.Sqrt(float64(shape[i]))
		raw := w.RawMatrix().Data
		for j := range raw {
			raw[j] = random.NormFloat64() * scale
		}
	}
	return n, nil
}

// views cuts params into the weight matrices and bias vectors of shape.
func views(shape []int, params []float64) (weights []*mat.Dense, biases [][]float64) {
	for i := 1; i < len(shape); i++ {
		in, out := shape[i-1], shape[i]
		weights = append(weights, mat.NewDense(in, out, params[:in*out:in*out]))
		biases = append(biases, params[in*out:in*out+out:in*out+out])
		params = params[in*out+out:]
	}
	return weights, biases
}

// Params are the parameters themselves, not a copy.
func (n *Network) Params() []float64 { return n.params }

// SetParams replaces the parameters by a copy of params.
func (n *Network) SetParams(params []float64) error {
	if len(params) != len(n.params) {
		return fmt.Errorf("set parameters: %d values, the network has %d", len(params), len(n.params))
	}
	copy(n.params, params)
	return nil
}

// Gradient writes the gradient of the loss, summed over the rows of x, into
// grad and returns that sum. labels has the class of each row. The sum, not
// the mean, is what ranks can add.
func (n *Network) Gradient(x *mat.Dense, labels []int, grad []float64) (loss float64, err error) {
	if len(grad) != len(n.params) {
		return 0, fmt.Errorf("compute gradient: room for %d values, the network has %d", len(grad), len(n.params))
	}
	activations, err := n.forward(x, labels)
	if err != nil {
		return 0, err
	}
	delta := activations[len(activations)-1]
	loss = crossEntropy(delta, labels)
	for i, label := range labels {
		delta.Set(i, label, delta.At(i, label)-1)
	}
	weights, biases := views(n.shape, grad)
	for layer := len(n.weights) - 1; layer >= 0; layer-- {
		input := activations[layer]
		weights[layer].Mul(input.T(), delta)
		sumColumns(delta, biases[layer])
		if layer == 0 {
			break
		}
		var back mat.Dense
		back.Mul(delta, n.weights[layer].T())
		back.Apply(func(i, j int, v float64) float64 {
			a := input.At(i, j)
			return v * (1 - a*a)
		}, &back)
		delta = &back
	}
	return loss, nil
}

// Evaluate is the mean loss over the rows of x and the fraction of rows whose
// class the network finds.
func (n *Network) Evaluate(x *mat.Dense, labels []int) (loss, accuracy float64, err error) {
	activations, err := n.forward(x, labels)
	if err != nil {
		return 0, 0, err
	}
	out := activations[len(activations)-1]
	right := 0
	for i, label := range labels {
		best := 0
		for j, p := range out.RawRowView(i) {
			if p > out.At(i, best) {
				best = j
			}
		}
		if best == label {
			right++
		}
	}
	rows := float64(len(labels))
	return crossEntropy(out, labels) / rows, float64(right) / rows, nil
}

// Descend moves the parameters against sum, scaled by rate.
func (n *Network) Descend(sum []float64, rate float64) error {
	if len(sum) != len(n.params) {
		return fmt.Errorf("descend: %d values, the network has %d", len(sum), len(n.params))
	}
	for i, g := range sum {
		n.params[i] -= rate * g
	}
	return nil
}

// Hash is the SHA-256 of the bits of params, in hexadecimal: equal hashes mean
// bit-identical networks of one shape.
func Hash(params []float64) string {
	hash := sha256.New()
	var word [8]byte
	for _, p := range params {
		binary.LittleEndian.PutUint64(word[:], math.Float64bits(p))
		hash.Write(word[:])
	}
	return hex.EncodeToString(hash.Sum(nil))
}

// forward returns the input and what each layer makes of it; the last has the
// probabilities of the classes.
func (n *Network) forward(x *mat.Dense, labels []int) ([]*mat.Dense, error) {
	rows, columns := x.Dims()
	if rows != len(labels) || columns != n.shape[0] {
		return nil, fmt.Errorf("read batch: %d rows of %d values with %d labels, want rows of %d values", rows, columns, len(labels), n.shape[0])
	}
	activations := []*mat.Dense{x}
	for layer, weights := range n.weights {
		var out mat.Dense
		out.Mul(activations[layer], weights)
		bias := n.biases[layer]
		last := layer == len(n.weights)-1
		for i := range rows {
			row := out.RawRowView(i)
			for j := range row {
				row[j] += bias[j]
				if !last {
					row[j] = math.Tanh(row[j])
				}
			}
			if last {
				softmax(row)
			}
		}
		activations = append(activations, &out)
	}
	return activations, nil
}

// softmax turns scores into probabilities in place. The largest score is taken
// off first, so that no exponential overflows.
func softmax(row []float64) {
	largest := math.Inf(-1)
	for _, v := range row {
		largest = max(largest, v)
	}
	sum := 0.0
	for i, v := range row {
		row[i] = math.Exp(v - largest)
		sum += row[i]
	}
	for i := range row {
		row[i] /= sum
	}
}

func crossEntropy(probabilities *mat.Dense, labels []int) (sum float64) {
	for i, label := range labels {
		// A probability that underflowed to zero would make the loss
		// infinite and hide that training diverged slowly.
		sum -= math.Log(max(probabilities.At(i, label), math.SmallestNonzeroFloat64))
	}
	return sum
}

func sumColumns(m *mat.Dense, into []float64) {
	clear(into)
	rows, _ := m.Dims()
	for i := range rows {
		for j, v := range m.RawRowView(i) {
			into[j] += v
		}
	}
}
