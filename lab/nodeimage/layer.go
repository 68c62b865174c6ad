package nodeimage

import (
	"archive/tar"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/sys/unix"
)

// A tree is what a layer is made of: directories and files of the host, and
// where they go in the image.
type tree []source

// A source is a file or a directory with all below it.
type source struct {
	from string
	to   string // path in the image without a leading slash, "" for its root

	// modes says that directories have the modes here that they are to have in
	// the image. Without it they get 0755: whatever umask the user has.
	modes bool

	skip func(rel string) bool // leaves out what lies below from; nil leaves out nothing
}

// writeTar writes the tree as a tar stream that depends on nothing but
// contents, names, modes and owners: reading it twice gives the same bytes.
// Every directory above an entry has an entry, too: some engines make the
// missing ones inaccessible.
func (t tree) writeTar(w io.Writer) error {
	p := packer{tar: tar.NewWriter(w), links: map[inode]string{}, directories: map[string]bool{".": true}}
	for _, src := range t {
		if err := p.add(src); err != nil {
			return fmt.Errorf("pack %q: %w", src.from, err)
		}
	}
	return p.tar.Close()
}

type inode struct{ dev, ino uint64 }

type packer struct {
	tar         *tar.Writer
	links       map[inode]string // first names of files that have several
	directories map[string]bool  // that have an entry
}

func (p *packer) add(src source) error {
	return filepath.WalkDir(src.from, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(src.from, path)
		if err != nil {
			return err
		}
		if src.skip != nil && rel != "." && src.skip(rel) {
			if entry.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		name := filepath.Join(src.to, rel)
		if err := p.directory(filepath.Dir(name)); err != nil {
			return err
		}
		if entry.IsDir() && (!src.modes || name == ".") {
			return p.directory(name)
		}
		return p.entry(path, name)
	})
}

// directory writes an ordinary directory and those above it.
func (p *packer) directory(name string) error {
	if p.directories[name] {
		return nil
	}
	if err := p.directory(filepath.Dir(name)); err != nil {
		return err
	}
	p.directories[name] = true
	return p.tar.WriteHeader(&tar.Header{
		Typeflag: tar.TypeDir, Name: name + "/", Mode: 0o755, ModTime: time.Unix(0, 0), Format: tar.FormatPAX,
	})
}

func (p *packer) entry(path, name string) error {
	info, err := os.Lstat(path)
	if err != nil {
		return err
	}
	if info.Mode()&(fs.ModeSocket|fs.ModeDevice|fs.ModeNamedPipe) != 0 {
		return nil // engines bring their own /dev
	}
	var target string
	if info.Mode()&fs.ModeSymlink != 0 {
		if target, err = os.Readlink(path); err != nil {
			return err
		}
	}
	header, err := tar.FileInfoHeader(info, target)
	if err != nil {
		return err
	}
	header.Name = name
	if info.IsDir() {
		header.Name += "/"
		p.directories[name] = true
	}
	header.Uname, header.Gname = "", ""
	header.ModTime = time.Unix(0, 0)
	header.AccessTime, header.ChangeTime = time.Time{}, time.Time{}
	header.Format = tar.FormatPAX
	stat, ok := info.Sys().(*syscall.Stat_t)
	if ok && info.Mode().IsRegular() {
		if stat.Nlink > 1 {
			id := inode{stat.Dev, stat.Ino}
			if first, seen := p.links[id]; seen {
				header.Typeflag, header.Linkname, header.Size = tar.TypeLink, first, 0
				return p.tar.WriteHeader(header)
			}
			p.links[id] = name
		}
		if err := addCapabilities(header, path); err != nil {
			return err
		}
	}
	if err := p.tar.WriteHeader(header); err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return nil
	}
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.Copy(p.tar, f)
	return err
}

// addCapabilities records a program's file capabilities, which replace the
// setuid bit in Debian here and there.
func addCapabilities(header *tar.Header, path string) error {
	value := make([]byte, 64) // a capability set takes 24 bytes at most
	n, err := unix.Lgetxattr(path, "security.capability", value)
	switch {
	case errors.Is(err, unix.ENODATA), errors.Is(err, unix.ENOTSUP):
		return nil
	case err != nil:
		return fmt.Errorf("read capabilities of %q: %w", path, err)
	}
	header.PAXRecords = map[string]string{"SCHILY.xattr.security.capability": string(value[:n])}
	return nil
}

// layer is an image layer that is never stored: it is packed from its tree
// whenever it is read. It is not compressed, as it goes no further than the
// engine on this host.
type layer struct {
	tree tree

	measure sync.Once
	digest  v1.Hash
	size    int64
	err     error
}

var _ v1.Layer = (*layer)(nil)

func (l *layer) measured() error {
	l.measure.Do(func() {
		meter := &meter{hash: sha256.New()}
		if l.err = l.tree.writeTar(meter); l.err != nil {
			return
		}
		l.digest = v1.Hash{Algorithm: "sha256", Hex: hex.EncodeToString(meter.hash.Sum(nil))}
		l.size = meter.size
	})
	return l.err
}

// meter hashes and counts what is written to it.
type meter struct {
	hash hash.Hash
	size int64
}

func (m *meter) Write(p []byte) (int, error) {
	m.size += int64(len(p))
	return m.hash.Write(p)
}

func (l *layer) Digest() (v1.Hash, error) {
	err := l.measured()
	return l.digest, err
}

func (l *layer) Size() (int64, error) {
	err := l.measured()
	return l.size, err
}

func (l *layer) DiffID() (v1.Hash, error)             { return l.Digest() }
func (l *layer) MediaType() (types.MediaType, error)  { return types.DockerUncompressedLayer, nil }
func (l *layer) Compressed() (io.ReadCloser, error)   { return l.Uncompressed() }
func (l *layer) Uncompressed() (io.ReadCloser, error) { return packed(l.tree), nil }

// packed returns the tree as a stream. The caller must close it.
func packed(t tree) io.ReadCloser {
	r, w := io.Pipe()
	go func() { w.CloseWithError(t.writeTar(w)) }()
	return r
}

// below returns a skip function for what lies below the named directories,
// which themselves are kept.
func below(names ...string) func(string) bool {
	return func(rel string) bool {
		for _, name := range names {
			if strings.HasPrefix(rel, name+"/") {
				return true
			}
		}
		return false
	}
}
