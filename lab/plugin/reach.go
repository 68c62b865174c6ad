package plugin

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Reach is a way to a node's sockets.
type Reach interface {
	// Dial connects to the Unix socket at path. Errors in which errors.Is finds
	// draconn.ErrAbsent or draconn.ErrStale say what is wrong with it.
	Dial(ctx context.Context, path string) (net.Conn, error)
	// Sockets lists the sockets below dir, oldest first. A directory that does
	// not exist has none.
	Sockets(ctx context.Context, dir string) ([]Socket, error)
}

// Socket is the file of a Unix socket.
type Socket struct {
	Path     string    `json:"path"`
	Modified time.Time `json:"modified"` // when it was made
}

// Local reaches the sockets of the machine, or container, that it runs in.
type Local struct{}

// Dial implements [Reach].
func (Local) Dial(ctx context.Context, path string) (net.Conn, error) {
	var d net.Dialer
	return d.DialContext(ctx, "unix", path)
}

// maxSockets bounds a listing; a node has a handful.
const maxSockets = 1000

// Sockets implements [Reach]. Like the kubelet it looks into directories and
// leaves out what starts with a dot.
func (Local) Sockets(_ context.Context, dir string) ([]Socket, error) {
	var found []Socket
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil // gone since it was listed
		case err != nil:
			return err
		case path == dir:
			return nil
		case strings.HasPrefix(entry.Name(), "."):
			if entry.IsDir() {
				return fs.SkipDir
			}
			return nil
		case entry.Type()&fs.ModeSocket == 0:
			return nil
		case len(found) == maxSockets:
			return fs.SkipAll
		}
		info, err := entry.Info()
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		found = append(found, Socket{Path: path, Modified: info.ModTime()})
		return nil
	})
	if err != nil {
		return nil, err
	}
	slices.SortStableFunc(found, func(a, b Socket) int { return a.Modified.Compare(b.Modified) })
	return found, nil
}
