package data

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestPartsOfAllRanksAreTheBatch(t *testing.T) {
	const step, batch = 5, 31
	set := spirals(t, 100)
	_, whole, err := set.Part(step, batch, 0, 1)
	if err != nil {
		t.Fatal(err)
	}
	for _, world := range []int{2, 3, 31} {
		var joined []int
		for rank := range world {
			points, labels, err := set.Part(step, batch, rank, world)
			if err != nil {
				t.Fatal(err)
			}
			if rows, _ := points.Dims(); rows != len(labels) {
				t.Errorf("rank %d of %d: %d points with %d labels", rank, world, rows, len(labels))
			}
			joined = append(joined, labels...)
		}
		if diff := cmp.Diff(whole, joined); diff != "" {
			t.Errorf("%d ranks see another batch (-want +got):\n%s", world, diff)
		}
	}
}

func TestEqualSeedsMakeEqualSets(t *testing.T) {
	a, b := spirals(t, 50), spirals(t, 50)
	x, labels := a.All()
	y, others := b.All()
	if diff := cmp.Diff(x.RawMatrix().Data, y.RawMatrix().Data); diff != "" {
		t.Errorf("points differ (-first +second):\n%s", diff)
	}
	if diff := cmp.Diff(labels, others); diff != "" {
		t.Errorf("labels differ (-first +second):\n%s", diff)
	}
}

func TestBatchesOfDifferentStepsDiffer(t *testing.T) {
	set := spirals(t, 1000)
	_, first, err1 := set.Part(1, 64, 0, 1)
	_, second, err2 := set.Part(2, 64, 0, 1)
	if err1 != nil || err2 != nil {
		t.Fatal(err1, err2)
	}
	if cmp.Equal(first, second) {
		t.Error("steps 1 and 2 have the same batch")
	}
}

func TestImpossibleRequestsAreErrors(t *testing.T) {
	if _, err := Spirals(1, Classes-1); err == nil {
		t.Error("Spirals made fewer points than classes")
	}
	if _, err := Spirals(1, maxPoints+1); err == nil {
		t.Error("Spirals made more points than allowed")
	}
	set := spirals(t, 10)
	for _, c := range []struct{ batch, rank, world int }{{8, 2, 2}, {8, -1, 2}, {1, 0, 2}} {
		if _, _, err := set.Part(0, c.batch, c.rank, c.world); err == nil {
			t.Errorf("Part(batch %d, rank %d of %d) gave no error", c.batch, c.rank, c.world)
		}
	}
}

func spirals(t *testing.T, points int) *Set {
	t.Helper()
	set, err := Spirals(1, points)
	if err != nil {
		t.Fatal(err)
	}
	return set
}
