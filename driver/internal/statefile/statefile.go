// Package statefile keeps one JSON document on disk so that a reader finds
// either the old or the new one, whole, whatever died in between: the process
// or the machine.
//
// A file holds the document once per format version, each with a checksum, so
// that a newer driver can leave behind what an older one understands:
//
//	{"v1":{"checksum":"sha256:...","data":{...}}}
package statefile

import (
	"bytes"
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

// maxBytes bounds what Read accepts.
const maxBytes = 64 << 20

type document struct {
	Checksum string          `json:"checksum"`
	Data     json.RawMessage `json:"data"`
}

// Promise is what holds when a write has returned without an error. Each costs
// a round trip to the disk more than the one before.
type Promise int

const (
	// Whole means that the file is the old or the new one, whole, whatever
	// dies. The new one survives the death of the process; which one survives
	// that of the machine is open.
	Whole Promise = iota
	// Durable means that the new one survives the death of the machine too.
	Durable
)

// Write replaces the file at path by doc as the given version. The directory
// must exist. Writers of the same path must exclude each other.
func Write(path, version string, doc any, promise Promise) error {
	data, err := json.Marshal(doc)
	if err != nil {
		return fmt.Errorf("encode %q: %w", path, err)
	}
	content, err := json.Marshal(map[string]document{version: {Checksum: checksum(data), Data: data}})
	if err != nil {
		return fmt.Errorf("encode %q: %w", path, err)
	}
	return replace(path, append(content, '\n'), promise)
}

// Read decodes the document of the given version from the file at path. A
// missing file gives fs.ErrNotExist.
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
	if err := Decode(content, version, into); err != nil {
		return fmt.Errorf("read %q: %w", path, err)
	}
	return nil
}

// Decode is Read for content that is in memory already.
func Decode(content []byte, version string, into any) error {
	if len(content) > maxBytes {
		return fmt.Errorf("%w: more than %d bytes", ErrCorrupt, maxBytes)
	}
	var versions map[string]document
	if err := json.Unmarshal(content, &versions); err != nil {
		return fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	doc, ok := versions[version]
	if !ok {
		return fmt.Errorf("%w: %q", ErrVersion, version)
	}
	// Spaces do not count, so that a file which a person has reformatted to
	// read it is still good.
	var compact bytes.Buffer
	if err := json.Compact(&compact, doc.Data); err != nil {
		return fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	if got := checksum(compact.Bytes()); got != doc.Checksum {
		return fmt.Errorf("%w: checksum is %s, content has %s", ErrCorrupt, doc.Checksum, got)
	}
	if err := json.Unmarshal(doc.Data, into); err != nil {
		return fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	return nil
}

func checksum(data []byte) string {
	sum := sha256.Sum256(data)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// replace writes content to path by way of a temporary file beside it. The
// content is on the disk before the file gets its name, so no name is ever that
// of half a file.
func replace(path string, content []byte, promise Promise) error {
	tmp := path + ".tmp"
	f, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return fmt.Errorf("write %q: %w", path, err)
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
		return fmt.Errorf("write %q: %w", path, errors.Join(err, os.Remove(tmp)))
	}
	if promise == Whole {
		return nil
	}
	if err := syncDir(filepath.Dir(path)); err != nil {
		return fmt.Errorf("write %q: %w", path, err)
	}
	return nil
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
