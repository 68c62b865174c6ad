package checkpoint

import (
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestSavedParametersComeBackBitForBit(t *testing.T) {
	s := open(t, t.TempDir(), "run", 0)
	want := []float64{0, math.Copysign(0, -1), 1.0 / 3, math.SmallestNonzeroFloat64, math.MaxFloat64, math.Inf(1)}
	if err := s.Save(7, want); err != nil {
		t.Fatal(err)
	}
	got, err := s.Load(7)
	if err != nil {
		t.Fatal(err)
	}
	for i := range want {
		if math.Float64bits(got[i]) != math.Float64bits(want[i]) {
			t.Errorf("parameter %d is %v, want %v", i, got[i], want[i])
		}
	}
}

func TestOnlyTheNewestAreKept(t *testing.T) {
	s := open(t, t.TempDir(), "run", 0)
	for _, step := range []int64{10, 20, 30, 40, 15} {
		if err := s.Save(step, []float64{1}); err != nil {
			t.Fatal(err)
		}
	}
	checkSteps(t, s, []int64{20, 30, 40}, 0)
}

func TestDamagedFilesArePassedOver(t *testing.T) {
	for name, damage := range map[string]func([]byte) []byte{
		"cut off":     func(data []byte) []byte { return data[:len(data)/2] },
		"empty":       func([]byte) []byte { return nil },
		"bit flipped": func(data []byte) []byte { data[len(data)-40] ^= 1; return data },
		"no magic":    func(data []byte) []byte { data[0] = 'x'; return data },
		"longer":      func(data []byte) []byte { return append(data, 0) },
	} {
		t.Run(name, func(t *testing.T) {
			// Given two checkpoints,
			s := open(t, t.TempDir(), "run", 0)
			for _, step := range []int64{1, 2} {
				if err := s.Save(step, []float64{1, 2, 3, 4, 5}); err != nil {
					t.Fatal(err)
				}
			}
			// when the newer is damaged,
			data, err := os.ReadFile(s.path(2))
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(s.path(2), damage(data), 0o644); err != nil {
				t.Fatal(err)
			}
			// then only the older counts, and the other is named.
			checkSteps(t, s, []int64{1}, 1)
		})
	}
}

func TestCheckpointsOfOthersAreNotLoaded(t *testing.T) {
	volume := t.TempDir()
	if err := open(t, volume, "earlier run", 0).Save(5, []float64{1}); err != nil {
		t.Fatal(err)
	}
	checkSteps(t, open(t, volume, "run", 0), nil, 1)

	// Renamed by hand to another step, it is not that step's.
	s := open(t, volume, "run", 1)
	if err := s.Save(5, []float64{1}); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(s.path(5), s.path(6)); err != nil {
		t.Fatal(err)
	}
	checkSteps(t, s, nil, 1)
}

func TestOpenRemovesWhatAKilledPredecessorLeft(t *testing.T) {
	// Given a checkpoint, and a file that was being written when its process
	// was killed,
	volume := t.TempDir()
	s := open(t, volume, "run", 0)
	if err := s.Save(1, []float64{1}); err != nil {
		t.Fatal(err)
	}
	half := filepath.Join(s.folder(), temporaryPrefix+"123")
	if err := os.WriteFile(half, []byte(magic), 0o644); err != nil {
		t.Fatal(err)
	}
	// when the replacement opens the store,
	s = open(t, volume, "run", 0)
	// then the half is gone and the whole is there.
	if _, err := os.Stat(half); !os.IsNotExist(err) {
		t.Errorf("half-written file is still there: %v", err)
	}
	checkSteps(t, s, []int64{1}, 0)
}

func TestAResultOfAnyRankOfThisRunIsFound(t *testing.T) {
	volume := t.TempDir()
	if err := open(t, volume, "earlier run", 0).SaveResult(Result{Step: 3}); err != nil {
		t.Fatal(err)
	}
	s := open(t, volume, "run", 0)
	if _, ok, err := s.AnyResult(2); ok || err != nil {
		t.Fatalf("AnyResult = %v, %v before there is one of this run", ok, err)
	}
	if err := open(t, volume, "run", 1).SaveResult(Result{Step: 9, Weights: "abc"}); err != nil {
		t.Fatal(err)
	}
	got, ok, err := s.AnyResult(2)
	if err != nil || !ok {
		t.Fatalf("AnyResult = %v, %v", ok, err)
	}
	if diff := cmp.Diff(Result{Run: "run", Rank: 1, Step: 9, Weights: "abc"}, got); diff != "" {
		t.Errorf("result (-want +got):\n%s", diff)
	}
}

func TestSaveSaysWhereItFailed(t *testing.T) {
	s := open(t, t.TempDir(), "run", 0)
	if err := os.RemoveAll(s.folder()); err != nil {
		t.Fatal(err)
	}
	if err := s.Save(4, []float64{1}); err == nil || !strings.Contains(err.Error(), "step 4") {
		t.Errorf("Save = %v, want an error that names step 4", err)
	}
}

func open(t *testing.T, volume, run string, rank int) *Store {
	t.Helper()
	s, err := Open(volume, Identity{Run: run, Settings: "settings", Rank: rank})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func checkSteps(t *testing.T, s *Store, want []int64, skipped int) {
	t.Helper()
	got, reasons, err := s.Steps()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("steps (-want +got):\n%s", diff)
	}
	if len(reasons) != skipped {
		t.Errorf("%d files passed over, want %d: %v", len(reasons), skipped, reasons)
	}
}
