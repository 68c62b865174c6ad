package kubelets

import (
	"bufio"
	"bytes"
	"fmt"
	"path"
	"slices"
	"strings"
)

// applyPatch applies a patch without context lines, as diff -U0 writes it, to
// files by their base name. Removed lines have to be what the file has there.
// Hunks are placed by their line numbers alone: nothing else could place them.
func applyPatch(files map[string][]byte, patch []byte) error {
	var (
		name   string
		lines  []string
		offset int // lines that earlier hunks of this file added
		at     int
	)
	flush := func() {
		if name != "" {
			files[name] = []byte(strings.Join(lines, "\n"))
		}
	}
	scanner := bufio.NewScanner(bytes.NewReader(patch))
	for scanner.Scan() {
		line := scanner.Text()
		switch {
		case strings.HasPrefix(line, "--- "):
		case strings.HasPrefix(line, "+++ "):
			flush()
			name = path.Base(strings.Fields(line)[1])
			data, ok := files[name]
			if !ok {
				return fmt.Errorf("patch %s: no such file", name)
			}
			lines, offset, at = strings.Split(string(data), "\n"), 0, 0
		case strings.HasPrefix(line, "@@ "):
			h, err := parseHunk(line)
			if err != nil {
				return fmt.Errorf("patch %s: %w", name, err)
			}
			at = h.oldStart + offset
			if h.oldLines > 0 {
				at-- // from counting lines at 1; a pure insertion comes after its line
			}
			if at < 0 || at > len(lines) {
				return fmt.Errorf("patch %s: hunk %q is outside of the file", name, line)
			}
			offset += h.newLines - h.oldLines
		case name == "":
		case strings.HasPrefix(line, "-"):
			if at >= len(lines) || lines[at] != line[1:] {
				return fmt.Errorf("patch %s: line %d is not %q", name, at+1, line[1:])
			}
			lines = slices.Delete(lines, at, at+1)
		case strings.HasPrefix(line, "+"):
			lines = slices.Insert(lines, at, line[1:])
			at++
		default:
			return fmt.Errorf("patch %s: unexpected line %q", name, line)
		}
	}
	flush()
	return scanner.Err()
}

type hunk struct{ oldStart, oldLines, newLines int }

func parseHunk(line string) (hunk, error) {
	h := hunk{oldLines: 1, newLines: 1}
	fields := strings.Fields(line)
	if len(fields) < 3 {
		return h, fmt.Errorf("read hunk %q", line)
	}
	for i, side := range fields[1:3] {
		start, count, given := strings.Cut(side[1:], ",")
		lines := &h.oldLines
		if i == 1 {
			lines = &h.newLines
		} else if _, err := fmt.Sscan(start, &h.oldStart); err != nil {
			return h, fmt.Errorf("read hunk %q: %w", line, err)
		}
		if given {
			if _, err := fmt.Sscan(count, lines); err != nil {
				return h, fmt.Errorf("read hunk %q: %w", line, err)
			}
		}
	}
	return h, nil
}
