package checkpoint

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

const (
	// keep is how many checkpoints a rank keeps. Ranks are never more than
	// one step apart, so the newest common one is among the newest two of
	// each; the third is for a damaged file.
	keep = 3

	maxFiles       = 1024
	maxResultBytes = 64 << 10

	extension  = ".checkpoint"
	resultName = "result.json"
)

// Identity is what a checkpoint belongs to. Checkpoints of another run, or made
// with other settings, are not this job's.
type Identity struct {
	Run      string // unique per job
	Settings string // everything that decides the parameters, as text
	Rank     int
}

// Store has the checkpoints of one rank on a volume that all ranks share. It is
// not safe for concurrent use; ranks in different processes don't disturb each
// other.
type Store struct {
	volume string
	id     Identity
}

// Open makes the rank's folder on the volume and removes half-written files
// that a killed predecessor left there.
func Open(volume string, id Identity) (*Store, error) {
	s := &Store{volume: volume, id: id}
	if err := os.MkdirAll(s.folder(), 0o755); err != nil {
		return nil, fmt.Errorf("make checkpoint folder: %w", err)
	}
	entries, err := readDir(s.folder())
	if err != nil {
		return nil, err
	}
	for _, entry := range entries {
		if !isTemporary(entry.Name()) {
			continue
		}
		if err := removeIfThere(filepath.Join(s.folder(), entry.Name())); err != nil {
			return nil, fmt.Errorf("remove half-written checkpoint: %w", err)
		}
	}
	return s, nil
}

// Save writes the parameters after step, whole or not at all, and then removes
// the rank's oldest checkpoints.
func (s *Store) Save(step int64, params []float64) error {
	data, err := encode(header{Run: s.id.Run, Settings: s.id.Settings, Rank: s.id.Rank, Step: step}, params)
	if err != nil {
		return fmt.Errorf("save checkpoint of step %d: %w", step, err)
	}
	if err := writeWhole(s.path(step), data); err != nil {
		return fmt.Errorf("save checkpoint of step %d: %w", step, err)
	}
	steps, err := s.steps()
	if err != nil {
		return err
	}
	for _, old := range steps[:max(0, len(steps)-keep)] {
		if err := removeIfThere(s.path(old)); err != nil {
			return fmt.Errorf("remove checkpoint of step %d: %w", old, err)
		}
	}
	return nil
}

// Load reads the rank's own checkpoint of step.
func (s *Store) Load(step int64) ([]float64, error) {
	data, err := os.ReadFile(s.path(step))
	if err != nil {
		return nil, fmt.Errorf("load checkpoint of step %d: %w", step, err)
	}
	h, params, err := decode(data)
	if err != nil {
		return nil, fmt.Errorf("load checkpoint of step %d: %w", step, err)
	}
	if want := (header{s.id.Run, s.id.Settings, s.id.Rank, step, len(params)}); h != want {
		return nil, fmt.Errorf("load checkpoint of step %d: it belongs to rank %d, step %d of run %q", step, h.Rank, h.Step, h.Run)
	}
	return params, nil
}

// Steps are those for which the rank has a whole checkpoint of this run, in
// ascending order. What else lies in the folder is in skipped, with the reason.
func (s *Store) Steps() (steps []int64, skipped []error, err error) {
	all, err := s.steps()
	if err != nil {
		return nil, nil, err
	}
	for _, step := range all {
		if _, err := s.Load(step); err != nil {
			skipped = append(skipped, err)
			continue
		}
		steps = append(steps, step)
	}
	return steps, skipped, nil
}

// Result is what a rank leaves on the volume when the job is done.
type Result struct {
	Run       string  `json:"run"`
	Rank      int     `json:"rank"`
	Step      int64   `json:"step"`
	FirstLoss float64 `json:"firstLoss"`
	Loss      float64 `json:"loss"`
	Accuracy  float64 `json:"accuracy"`
	Weights   string  `json:"weights"`
}

// SaveResult writes the rank's result; run and rank are filled in.
func (s *Store) SaveResult(r Result) error {
	r.Run, r.Rank = s.id.Run, s.id.Rank
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("encode result: %w", err)
	}
	if err := writeWhole(filepath.Join(s.folder(), resultName), append(data, '\n')); err != nil {
		return fmt.Errorf("save result: %w", err)
	}
	return nil
}

// AnyResult finds a result of this run, of whichever of the world's ranks. A
// result means that all ranks agreed on the final parameters.
func (s *Store) AnyResult(world int) (Result, bool, error) {
	for rank := range world {
		data, err := os.ReadFile(filepath.Join(s.rankFolder(rank), resultName))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return Result{}, false, fmt.Errorf("read result of rank %d: %w", rank, err)
		}
		var r Result
		if len(data) > maxResultBytes || json.Unmarshal(data, &r) != nil || r.Run != s.id.Run {
			continue // left by another run
		}
		return r, true, nil
	}
	return Result{}, false, nil
}

func (s *Store) folder() string { return s.rankFolder(s.id.Rank) }

func (s *Store) rankFolder(rank int) string {
	return filepath.Join(s.volume, "rank-"+strconv.Itoa(rank))
}

func (s *Store) path(step int64) string {
	return filepath.Join(s.folder(), fmt.Sprintf("step-%08d%s", step, extension))
}

// steps reads the steps from the names of the files, in ascending order.
func (s *Store) steps() ([]int64, error) {
	entries, err := readDir(s.folder())
	if err != nil {
		return nil, err
	}
	var steps []int64
	for _, entry := range entries {
		number, ok := strings.CutPrefix(strings.TrimSuffix(entry.Name(), extension), "step-")
		step, err := strconv.ParseInt(number, 10, 64)
		if !ok || err != nil || s.path(step) != filepath.Join(s.folder(), entry.Name()) {
			continue
		}
		steps = append(steps, step)
	}
	slices.SortFunc(steps, cmp.Compare)
	return steps, nil
}

func readDir(folder string) ([]fs.DirEntry, error) {
	entries, err := os.ReadDir(folder)
	if err != nil {
		return nil, fmt.Errorf("list checkpoints: %w", err)
	}
	if len(entries) > maxFiles {
		return nil, fmt.Errorf("list checkpoints: %d files in %s, at most %d expected", len(entries), folder, maxFiles)
	}
	return entries, nil
}
