package nodeimage

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dra-lab/dra-lab/lab/internal/ui"
)

// A step makes one directory out of its inputs.
type step struct {
	name  string // part of the directory's name in the cache
	title string // completes "the lab is ...", for the user

	// inputs is everything that decides what the step makes: versions, flags,
	// scripts, and the keys of the steps whose output it reads. The version of
	// the Go toolchain is left out on purpose: an update of Go should not cost
	// ten minutes, the programs are the same.
	inputs []string

	// make fills the empty directory out. It must not touch anything that lies
	// outside and is not a cache itself, so that dropping out undoes it.
	make func(ctx context.Context, out string, progress *ui.Step) error
}

// key identifies the step's output.
func (s step) key() string {
	sum := sha256.New()
	for _, part := range append([]string{s.name}, s.inputs...) {
		// The length keeps {"ab", "c"} and {"a", "bc"} apart.
		fmt.Fprintf(sum, "%d:%s", len(part), part)
	}
	return hex.EncodeToString(sum.Sum(nil))[:16]
}

func (s step) dir() string { return s.name + "-" + s.key() }

// A store is a directory that keeps the outputs of steps. One process at a
// time may write to it: callers hold a lock.
type store struct {
	dir string
	ui  *ui.UI
}

// openStore makes dir where needed and drops what earlier, interrupted runs
// left half-made.
func openStore(dir string, u *ui.UI) (*store, error) {
	if err := os.MkdirAll(filepath.Join(dir, scratch), 0o755); err != nil {
		return nil, fmt.Errorf("open build cache %q: %w", dir, err)
	}
	entries, err := os.ReadDir(filepath.Join(dir, scratch))
	if err != nil {
		return nil, fmt.Errorf("open build cache %q: %w", dir, err)
	}
	for _, entry := range entries {
		if err := removeAll(filepath.Join(dir, scratch, entry.Name())); err != nil {
			return nil, fmt.Errorf("drop half-made %q: %w", entry.Name(), err)
		}
	}
	return &store{dir: dir, ui: u}, nil
}

// scratch is the directory inside a store where outputs are made. It lies on
// the same file system, so that a finished output only has to be renamed.
const scratch = "unfinished"

// has reports whether the step's output is there.
func (s *store) has(st step) bool {
	_, err := os.Stat(filepath.Join(s.dir, st.dir()))
	return err == nil
}

// do returns the directory with the step's output and makes it first if it is
// not there.
func (s *store) do(ctx context.Context, st step) (dir string, err error) {
	final := filepath.Join(s.dir, st.dir())
	if s.has(st) {
		now := time.Now()
		_ = os.Chtimes(final, now, now) // tells prune that it is in use; not worth failing for
		return final, nil
	}
	if ctx.Err() != nil {
		return "", fmt.Errorf("%s: %w", st.title, context.Cause(ctx))
	}
	temp, err := os.MkdirTemp(filepath.Join(s.dir, scratch), st.name+"-")
	if err != nil {
		return "", fmt.Errorf("%s: %w", st.title, err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, removeAll(temp))
		}
	}()
	out := filepath.Join(temp, "out")
	if err := os.Mkdir(out, 0o755); err != nil {
		return "", fmt.Errorf("%s: %w", st.title, err)
	}
	progress := s.ui.Step("%s", st.title)
	err = st.make(ctx, out, progress)
	if err == nil {
		err = syncFilesystem(out)
	}
	progress.Done(err)
	if err != nil {
		return "", fmt.Errorf("%s: %w", st.title, err)
	}
	if err := os.Rename(out, final); err != nil {
		return "", fmt.Errorf("%s: %w", st.title, err)
	}
	if err := removeAll(temp); err != nil {
		return "", fmt.Errorf("%s: %w", st.title, err)
	}
	return final, nil
}

// work returns a directory beside a step's output for what the step needs on
// its way. It goes with the step, however that ends.
func work(out string) (string, error) {
	dir := filepath.Join(filepath.Dir(out), "work")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	return dir, nil
}

// prune removes outputs that no build has used since the given time.
func (s *store) prune(unusedSince time.Time) error {
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return fmt.Errorf("prune build cache %q: %w", s.dir, err)
	}
	var problems []error
	for _, entry := range entries {
		info, err := entry.Info()
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			problems = append(problems, err)
			continue
		}
		if entry.IsDir() && entry.Name() != scratch && info.ModTime().Before(unusedSince) {
			problems = append(problems, removeAll(filepath.Join(s.dir, entry.Name())))
		}
	}
	return errors.Join(problems...)
}

// removeAll is os.RemoveAll for trees that hold read-only directories, such as
// Go's module cache makes.
func removeAll(dir string) error {
	err := os.RemoveAll(dir)
	if err == nil || !errors.Is(err, fs.ErrPermission) {
		return err
	}
	walkErr := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.IsDir() {
			return os.Chmod(path, 0o700)
		}
		return err
	})
	return errors.Join(walkErr, os.RemoveAll(dir))
}

// syncFilesystem makes sure that what lies under dir survives a power cut, so
// that a rename never publishes an output with holes.
func syncFilesystem(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := unix.Syncfs(int(f.Fd())); err != nil {
		return fmt.Errorf("sync %q: %w", dir, err)
	}
	return nil
}

// copyFile copies a file with the given mode.
func copyFile(from, to string, mode fs.FileMode) (err error) {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	out, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, mode)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	if _, err := io.Copy(out, in); err != nil {
		return err
	}
	return out.Chmod(mode) // whatever the umask says
}

// writeFile writes a file and the directories above it.
func writeFile(path string, data []byte, mode fs.FileMode) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(path, data, mode); err != nil {
		return err
	}
	return os.Chmod(path, mode)
}
