package checkpoint

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

const temporaryPrefix = ".new-"

func isTemporary(name string) bool { return strings.HasPrefix(name, temporaryPrefix) }

// writeWhole replaces the file at path by data: a reader, and whoever looks
// after a crash, sees the old or the new content, never a part.
func writeWhole(path string, data []byte) (err error) {
	folder := filepath.Dir(path)
	f, err := os.CreateTemp(folder, temporaryPrefix)
	if err != nil {
		return fmt.Errorf("make file beside %q: %w", path, err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, removeIfThere(f.Name()))
		}
	}()
	if err := errors.Join(write(f, data), f.Close()); err != nil {
		return fmt.Errorf("write %q: %w", f.Name(), err)
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return fmt.Errorf("put %q in place: %w", path, err)
	}
	// The name is durable only when its folder is.
	d, err := os.Open(folder)
	if err != nil {
		return fmt.Errorf("sync folder: %w", err)
	}
	if err := errors.Join(d.Sync(), d.Close()); err != nil {
		return fmt.Errorf("sync folder %q: %w", folder, err)
	}
	return nil
}

func write(f *os.File, data []byte) error {
	if err := f.Chmod(0o644); err != nil {
		return err
	}
	if _, err := f.Write(data); err != nil {
		return err
	}
	return f.Sync()
}

func removeIfThere(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
