package net

import (
	"math"
	"runtime"
	"testing"

	"gonum.org/v1/gonum/mat"
)

func TestGradientIsTheSlopeOfTheLoss(t *testing.T) {
	n, x, labels := small(t)
	gradient := make([]float64, len(n.Params()))
	if _, err := n.Gradient(x, labels, gradient); err != nil {
		t.Fatal(err)
	}
	lossAt := func(i int, value float64) float64 {
		before := n.Params()[i]
		n.Params()[i] = value
		defer func() { n.Params()[i] = before }()
		mean, _, err := n.Evaluate(x, labels)
		if err != nil {
			t.Fatal(err)
		}
		return mean * float64(len(labels))
	}
	const h = 1e-6
	for i, p := range n.Params() {
		slope := (lossAt(i, p+h) - lossAt(i, p-h)) / (2 * h)
		if math.Abs(slope-gradient[i]) > 1e-6*(1+math.Abs(slope)) {
			t.Errorf("parameter %d: gradient %g, slope of the loss %g", i, gradient[i], slope)
		}
	}
}

func TestSameSeedGivesSameBitsWhateverTheParallelism(t *testing.T) {
	// Given layers wide enough for gonum to multiply them in parallel,
	// when the same steps are made with one and with many processors,
	// then the parameters are bit-identical.
	train := func(procs int) string {
		defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(procs))
		n, err := New([]int{2, 200, 200, 3}, 7)
		if err != nil {
			t.Fatal(err)
		}
		x, labels := points(300)
		gradient := make([]float64, len(n.Params()))
		for range 5 {
			if _, err := n.Gradient(x, labels, gradient); err != nil {
				t.Fatal(err)
			}
			if err := n.Descend(gradient, 0.001); err != nil {
				t.Fatal(err)
			}
		}
		return Hash(n.Params())
	}
	if one, many := train(1), train(8); one != many {
		t.Errorf("hash %s with one processor, %s with 8", one, many)
	}
}

func TestNewRefusesImpossibleShapes(t *testing.T) {
	for _, shape := range [][]int{nil, {2}, {2, 0, 3}, {2, -1, 3}, {2, maxWidth + 1, 3}, make([]int, maxLayers+1)} {
		if _, err := New(shape, 1); err == nil {
			t.Errorf("New(%v) gave no error", shape)
		}
	}
}

func TestWrongSizesAreErrors(t *testing.T) {
	n, x, labels := small(t)
	if err := n.SetParams(make([]float64, 3)); err == nil {
		t.Error("SetParams took too few values")
	}
	if err := n.Descend(make([]float64, 3), 1); err == nil {
		t.Error("Descend took too few values")
	}
	if _, err := n.Gradient(x, labels, make([]float64, 3)); err == nil {
		t.Error("Gradient took too little room")
	}
	if _, err := n.Gradient(x, labels[1:], make([]float64, len(n.Params()))); err == nil {
		t.Error("Gradient took fewer labels than rows")
	}
}

func small(t *testing.T) (*Network, *mat.Dense, []int) {
	t.Helper()
	n, err := New([]int{2, 5, 4, 3}, 3)
	if err != nil {
		t.Fatal(err)
	}
	x, labels := points(7)
	return n, x, labels
}

func points(count int) (*mat.Dense, []int) {
	x := mat.NewDense(count, 2, nil)
	labels := make([]int, count)
	for i := range count {
		x.SetRow(i, []float64{math.Sin(float64(i)), math.Cos(3 * float64(i))})
		labels[i] = i % 3
	}
	return x, labels
}
