package checkpoint_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/dra-lab/dra-lab/driver/internal/checkpoint"
)

// cut is a claim with devices, among them partitions.
func cut(uid string, parts ...checkpoint.Device) checkpoint.Entry {
	e := entry(uid)
	for _, p := range parts {
		p.Request, p.Pool = "gpu", "node"
		e.Devices = append(e.Devices, p)
	}
	return e
}

func part(name, parent string, start, size int) checkpoint.Device {
	return checkpoint.Device{Name: name, UUID: parent + "/" + name, Partition: &checkpoint.Partition{Parent: parent, Start: start, Size: size}}
}

func whole(name string) checkpoint.Device { return checkpoint.Device{Name: name, UUID: name} }

func TestPartitionsOfAGPUHaveOneHolderEach(t *testing.T) {
	upper := part("upper", "gpu-0", 4, 4)
	for _, tc := range []struct {
		name string
		want checkpoint.Device
		held bool
	}{
		{"the same", upper, true},
		{"a part of it", part("tiny", "gpu-0", 7, 1), true},
		{"more than it", part("all", "gpu-0", 0, 8), true},
		{"the GPU", whole("gpu-0"), true},
		{"beside it", part("lower", "gpu-0", 0, 4), false},
		{"the same place of another GPU", part("upper-1", "gpu-1", 4, 4), false},
		{"another GPU", whole("gpu-1"), false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := open(t, path(t), "boot-1")
			start(t, s, cut("holder", upper), true)
			if _, err := s.Start(t.Context(), cut("other", tc.want)); errors.Is(err, checkpoint.ErrHeld) != tc.held || err != nil != tc.held {
				t.Errorf("got %v, want it held: %v", err, tc.held)
			}
			// It is the same from the other side.
			s = open(t, path(t), "boot-1")
			start(t, s, cut("other", tc.want), true)
			if _, err := s.Start(t.Context(), cut("holder", upper)); errors.Is(err, checkpoint.ErrHeld) != tc.held {
				t.Errorf("the other way round: got %v, want it held: %v", err, tc.held)
			}
		})
	}
}

func TestClaimCannotHaveTheSamePlaceTwice(t *testing.T) {
	s := open(t, path(t), "boot-1")
	_, err := s.Start(t.Context(), cut("a", part("upper", "gpu-0", 4, 4), part("tiny", "gpu-0", 5, 1)))
	if err == nil || !strings.Contains(err.Error(), `"upper" of the same claim`) {
		t.Errorf("got %v", err)
	}
	start(t, s, cut("a", part("upper", "gpu-0", 4, 4), part("tiny", "gpu-0", 3, 1)), true)
}

func TestBaselineOfWhatDidNotExistComesWithTheEnd(t *testing.T) {
	p := path(t)
	s := open(t, p, "boot-1")
	start(t, s, cut("a", part("upper", "gpu-0", 4, 4), part("tiny", "gpu-0", 3, 1)), false)
	if err := s.Complete(t.Context(), "a", map[string]uint64{"upper": 7}); err != nil {
		t.Fatal(err)
	}
	e, ok, err := open(t, p, "boot-1").Get(t.Context(), "a")
	if err != nil || !ok {
		t.Fatal(ok, err)
	}
	if b := e.Devices[0].BaselineBytes; b == nil || *b != 7 || e.Devices[1].BaselineBytes != nil {
		t.Errorf("baselines: %v and %v", b, e.Devices[1].BaselineBytes)
	}
	if pl := e.Devices[0].Partition; pl == nil || *pl != (checkpoint.Partition{Parent: "gpu-0", Start: 4, Size: 4}) {
		t.Errorf("place: %+v", pl)
	}
}
