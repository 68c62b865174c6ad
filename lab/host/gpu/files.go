package gpu

import (
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// tree is a folder that looks like a host's root, or is it. Paths in it are
// absolute: "/dev/nvidia0".
type tree string

func (t tree) path(inside string) string { return filepath.Join(string(t), inside) }

// real says whether the tree is this machine's own root.
func (t tree) real() bool { return filepath.Clean(string(t)) == "/" }

// maxText bounds files of text.
const maxText = 64 << 10

// read returns at most limit bytes of a file; nil if there is none.
func (t tree) read(inside string, limit int64) []byte {
	file, err := os.Open(t.path(inside))
	if err != nil {
		return nil
	}
	defer file.Close()
	data, err := io.ReadAll(io.LimitReader(file, limit))
	if err != nil {
		return nil
	}
	return data
}

// text is the content of a small file, without space around it.
func (t tree) text(inside string) string { return strings.TrimSpace(string(t.read(inside, maxText))) }

func (t tree) exists(inside string) bool {
	_, err := os.Stat(t.path(inside))
	return err == nil
}

// glob lists what matches, sorted.
func (t tree) glob(pattern string) []string {
	paths, err := filepath.Glob(t.path(pattern))
	if err != nil {
		return nil // only for a bad pattern
	}
	for i, p := range paths {
		paths[i] = "/" + strings.TrimPrefix(strings.TrimPrefix(p, filepath.Clean(string(t))), "/")
	}
	slices.Sort(paths)
	return paths
}

// maxLinks bounds the symbolic links on the way to one file, as Linux does.
const maxLinks = 40

// resolve follows symbolic links without leaving the tree: what they say is
// meant from its root. It returns the path of the file itself.
func (t tree) resolve(inside string) (string, error) {
	rest := strings.Split(strings.Trim(path.Clean("/"+inside), "/"), "/")
	at := "/"
	for links := 0; len(rest) > 0; {
		next := path.Join(at, rest[0])
		rest = rest[1:]
		info, err := os.Lstat(t.path(next)) // at has no links
		if err != nil {
			return "", err
		}
		if info.Mode()&fs.ModeSymlink == 0 {
			at = next
			continue
		}
		if links++; links > maxLinks {
			return "", fmt.Errorf("resolve %q: more than %d symbolic links", inside, maxLinks)
		}
		target, err := os.Readlink(t.path(next))
		if err != nil {
			return "", err
		}
		if !path.IsAbs(target) {
			target = path.Join(at, target)
		}
		rest = append(strings.Split(strings.Trim(path.Clean(target), "/"), "/"), rest...)
		at = "/"
	}
	return at, nil
}
