// Package statefile keeps JSON documents on disk so that a reader finds either
// the old or the new one, whole, whatever died in between: the process or the
// machine. There are two ways: [Write] replaces a file, which suits what seldom
// changes; [Pair] is for what changes while somebody waits.
//
// A file holds the document once per format version, each with a checksum, so
// that a newer driver can leave behind what an older one understands:
//
//	{"v1":{"checksum":"sha256:...","data":{...}}}
package statefile

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// ErrCorrupt marks a file whose content is not what was written.
var ErrCorrupt = errors.New("corrupt")

// ErrVersion marks a file that has no document in the wanted version.
var ErrVersion = errors.New("no document in this version")

// maxBytes bounds what is read.
const maxBytes = 64 << 20

// document is one version of a document in a file.
type document struct {
	Checksum string `json:"checksum"`
	// Sequence and Durable are used by Pair.
	Sequence uint64          `json:"sequence,omitempty"`
	Durable  bool            `json:"durable,omitempty"`
	Data     json.RawMessage `json:"data"`
}

// sum is the checksum of everything else in the document. Spaces do not count,
// so that a file which a person has reformatted to read it is still good.
func (d document) sum() (string, error) {
	var compact bytes.Buffer
	if err := json.Compact(&compact, d.Data); err != nil {
		return "", err
	}
	return d.sumOf(compact.Bytes()), nil
}

// sumOf is sum for data without spaces.
func (d document) sumOf(data []byte) string {
	sum := sha256.New()
	fmt.Fprintf(sum, "%d %t ", d.Sequence, d.Durable)
	sum.Write(data)
	return "sha256:" + hex.EncodeToString(sum.Sum(nil))
}

// encode makes the content of a file with one version.
func encode(version string, doc any, sequence uint64, durable bool) ([]byte, error) {
	data, err := json.Marshal(doc)
	if err != nil {
		return nil, err
	}
	d := document{Sequence: sequence, Durable: durable}
	d.Checksum = d.sumOf(data) // Marshal puts no spaces
	content, err := json.Marshal(map[string]document{version: d})
	if err != nil {
		return nil, err
	}
	// The data is the last field. Put in its place like this it is not read a
	// second time, which with hundreds of claims takes as long as all the rest.
	content, found := bytes.CutSuffix(content, []byte("null}}"))
	if !found {
		return nil, fmt.Errorf("encode document: it ends in %q", content[max(0, len(content)-10):])
	}
	return append(append(content, data...), "}}\n"...), nil
}

// decode finds a version in the content of a file.
func decode(content []byte, version string) (document, error) {
	if len(content) > maxBytes {
		return document{}, fmt.Errorf("%w: more than %d bytes", ErrCorrupt, maxBytes)
	}
	var versions map[string]document
	if err := json.Unmarshal(content, &versions); err != nil {
		return document{}, fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	d, ok := versions[version]
	if !ok {
		return document{}, fmt.Errorf("%w: %q", ErrVersion, version)
	}
	got, err := d.sum()
	if err != nil {
		return document{}, fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	if got != d.Checksum {
		return document{}, fmt.Errorf("%w: checksum is %s, content has %s", ErrCorrupt, d.Checksum, got)
	}
	return d, nil
}

// Write replaces the file at path by doc as the given version. When it returns
// nil the new document survives the death of the machine. The directory must
// exist. Writers of the same path wait for each other, as long as ctx allows, at
// a lock beside it, path.lock.
func Write(ctx context.Context, path, version string, doc any) error {
	content, err := encode(version, doc, 0, true)
	if err != nil {
		return fmt.Errorf("write %q: %w", path, err)
	}
	lock, err := Acquire(ctx, path+".lock")
	if err != nil {
		return fmt.Errorf("write %q: %w", path, err)
	}
	if err := errors.Join(Replace(path, content, 0o600), lock.Release()); err != nil {
		return fmt.Errorf("write %q: %w", path, err)
	}
	return nil
}

// Read decodes the document of the given version from the file at path. A
// missing file gives fs.ErrNotExist, a damaged one ErrCorrupt, and one that has
// other versions only ErrVersion.
func Read(path, version string, into any) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	content, err := io.ReadAll(io.LimitReader(f, maxBytes+1))
	if err != nil {
		return fmt.Errorf("read %q: %w", path, err)
	}
	d, err := decode(content, version)
	if err != nil {
		return fmt.Errorf("read %q: %w", path, err)
	}
	if err := json.Unmarshal(d.Data, into); err != nil {
		return fmt.Errorf("read %q: %w: %w", path, ErrCorrupt, err)
	}
	return nil
}

// Replace writes content to path by way of a temporary file beside it, path.tmp,
// for which callers need a lock. The content is on the disk before the file gets
// its name, so no name is ever that of half a file.
func Replace(path string, content []byte, mode os.FileMode) error {
	tmp := path + ".tmp"
	f, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, mode)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	if err == nil {
		err = f.Sync()
	}
	err = errors.Join(err, f.Close())
	if err == nil {
		err = os.Rename(tmp, path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(tmp))
	}
	return syncDir(filepath.Dir(path))
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
