package lesson

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Exercise is one exercise, read from its folder.
type Exercise struct {
	Number  int
	Name    string // "first-claim"
	Title   string
	Minutes int // that it takes
	Text    string
	Hints   []string // from vague to exact
	// Start is in the cluster when the exercise begins, Draft is what the learner
	// begins with on disk, and Solution is one that passes. By file name.
	Start, Draft, Solution map[string]string
	// Commands are what a solution does that no manifest says, as one types it.
	Commands string
	// Solve does what Commands say, after Solution was applied; nil when there is
	// nothing to do, or when it reaches beyond the API server.
	Solve func(context.Context, *Room) error
	// AtStart is part of a finding that does not hold when the exercise begins.
	AtStart string
	// Breaks says that a GPU has to fail for the exercise to be solved, which is
	// done with "lab fault" and beyond Solve.
	Breaks bool
	// Check says what holds. It is pure.
	Check func(Snapshot) []Finding
}

// Finding is one thing that has to hold.
type Finding struct {
	Holds bool   `json:"holds"`
	Text  string `json:"text"`
}

// Findings collects what a check finds.
type Findings []Finding

// That adds a finding, with the sentence for either case.
func (f *Findings) That(holds bool, yes, no string) {
	text := no
	if holds {
		text = yes
	}
	*f = append(*f, Finding{Holds: holds, Text: text})
}

// Solved reports whether all findings hold; none at all is nothing solved.
func Solved(all []Finding) bool {
	return len(all) > 0 && !slices.ContainsFunc(all, func(f Finding) bool { return !f.Holds })
}

const (
	maxTextLines = 60 // a page
	minHints     = 2
)

var (
	folderName = regexp.MustCompile(`^(\d\d)-([a-z0-9]+(?:-[a-z0-9]+)*)$`)
	minutes    = regexp.MustCompile(`(?m)^Takes (\d+) minutes\.`)
)

// Read reads the folder of an exercise: text.md, whose first line is the title
// and which says how many minutes it takes; hints.md, with lines of "---" between
// the hints; manifests in start, draft and solution; and solution.md, where a
// solution is something to do. A folder that lacks
// something is an error that says what.
func Read(folder string, files fs.FS, atStart string, check func(Snapshot) []Finding) (Exercise, error) {
	e, err := read(folder, files)
	if err != nil {
		return Exercise{}, fmt.Errorf("read exercise %q: %w", folder, err)
	}
	e.AtStart, e.Check = atStart, check
	if atStart == "" || check == nil {
		return Exercise{}, fmt.Errorf("read exercise %q: no check, or nothing that it says at the start", folder)
	}
	return e, nil
}

func read(folder string, files fs.FS) (Exercise, error) {
	m := folderName.FindStringSubmatch(folder)
	if m == nil {
		return Exercise{}, errors.New("want a folder like 01-first-claim")
	}
	number, err := strconv.Atoi(m[1])
	if err != nil {
		return Exercise{}, err
	}
	e := Exercise{Number: number, Name: m[2]}
	text, err := fs.ReadFile(files, "text.md")
	if err != nil {
		return Exercise{}, err
	}
	e.Text = strings.TrimSpace(string(text)) + "\n"
	title, _, _ := strings.Cut(e.Text, "\n")
	if e.Title = strings.TrimPrefix(title, "# "); e.Title == title {
		return Exercise{}, errors.New("text.md: the first line is no title")
	}
	if lines := strings.Count(e.Text, "\n"); lines > maxTextLines {
		return Exercise{}, fmt.Errorf("text.md: %d lines, at most %d are a page", lines, maxTextLines)
	}
	took := minutes.FindStringSubmatch(e.Text)
	if took == nil {
		return Exercise{}, errors.New(`text.md: no line "Takes N minutes."`)
	}
	if e.Minutes, err = strconv.Atoi(took[1]); err != nil {
		return Exercise{}, err
	}
	hints, err := fs.ReadFile(files, "hints.md")
	if err != nil {
		return Exercise{}, err
	}
	for hint := range strings.SplitSeq(string(hints), "\n---\n") {
		e.Hints = append(e.Hints, strings.TrimSpace(hint))
	}
	if len(e.Hints) < minHints || slices.Contains(e.Hints, "") {
		return Exercise{}, fmt.Errorf("hints.md: want at least %d hints, none empty", minHints)
	}
	for dir, to := range map[string]*map[string]string{"start": &e.Start, "draft": &e.Draft, "solution": &e.Solution} {
		if *to, err = manifests(files, dir); err != nil {
			return Exercise{}, err
		}
	}
	commands, err := fs.ReadFile(files, "solution.md")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return Exercise{}, err
	}
	e.Commands = string(commands)
	if len(e.Solution) == 0 && e.Commands == "" {
		return Exercise{}, errors.New("no solution")
	}
	return e, nil
}

func manifests(files fs.FS, dir string) (map[string]string, error) {
	names, err := fs.Glob(files, dir+"/*.yaml")
	if err != nil {
		return nil, err
	}
	found := map[string]string{}
	for _, name := range names {
		data, err := fs.ReadFile(files, name)
		if err != nil {
			return nil, err
		}
		found[path.Base(name)] = string(data)
	}
	return found, nil
}

// Folder is the exercise's name with its number, "01-first-claim".
func (e Exercise) Folder() string { return fmt.Sprintf("%02d-%s", e.Number, e.Name) }

// Namespace is where the exercise plays.
func (e Exercise) Namespace() string { return "exercise-" + e.Name }
