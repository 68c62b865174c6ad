package kubesource

import (
	"fmt"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/dra-lab/dra-lab/lab/internal/ui"
)

// A CompileError says that a checkout does not compile.
type CompileError struct {
	What  string   // was to be compiled
	Dir   string   // of the checkout
	Lines []string // what the compiler said, with paths below Dir
}

func (e *CompileError) Error() string {
	return fmt.Sprintf("compile %s from %q: %s", e.What, e.Dir, e.Lines[0])
}

// maxComplaints bounds the lines of a CompileError: the first ones tell.
const maxComplaints = 10

// CompileError finds what the compiler has to say about the checkout in the
// output of a "go build" that failed in the directory ranIn. It returns nil where
// the build failed for another reason; the error is a [CompileError].
func (c Checkout) CompileError(what, ranIn, output string) error {
	e := &CompileError{What: what, Dir: c.Dir}
	for line := range strings.Lines(output) {
		if line = c.complaint(strings.TrimSpace(line), ranIn); line != "" && len(e.Lines) < maxComplaints {
			e.Lines = append(e.Lines, line)
		}
	}
	if len(e.Lines) == 0 {
		return nil
	}
	err := ui.WithDetail(e, "the compiler", strings.Join(e.Lines, "\n"))
	return ui.WithHint(err, "mend it there and run the same command again; what did compile is kept")
}

// complaint returns a line about a place in a source file of the checkout, with
// the path that the file has there, and "" for other lines.
func (c Checkout) complaint(line, ranIn string) string {
	found := regexp.MustCompile(`^(\S.*\.go)(:\d+(?::\d+)?: .*)$`).FindStringSubmatch(line)
	if found == nil {
		return ""
	}
	path, rest := found[1], found[2]
	if !filepath.IsAbs(path) {
		path = filepath.Join(ranIn, path) // Go shortens paths if it can
	}
	inside, err := filepath.Rel(c.Dir, path)
	if err != nil || !filepath.IsLocal(inside) {
		return ""
	}
	return inside + rest
}
